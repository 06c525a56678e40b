"""With this folder on PYTHONPATH, Python has a Triton that interprets kernels, also where it has no driver.

vLLM's model runner V2 needs Triton, which has no back end for CPUs. Its interpreter needs none, but vLLM looks for one
by its name.
"""

from __future__ import annotations

import os
from types import SimpleNamespace


def interpret_kernels() -> None:
    """Must come before vLLM is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton import backends

    driver = SimpleNamespace(is_active=lambda: False)
    backends.backends = {**backends.backends, "cpu": SimpleNamespace(driver=driver, compiler=None)}


interpret_kernels()
