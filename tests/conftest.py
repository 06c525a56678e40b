"""What all tests share: Hypothesis profiles."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline anywhere: machines are slow at times. Under the sanitizers each example costs ten times as much.
settings.register_profile("default", deadline=None)
settings.register_profile("sanitize", deadline=None, max_examples=25)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
