"""Random walks over shared live datastores: what a group is told is what an oracle says."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from contextlib import closing

import pytest

from tests.fuzz import campaign
from tests.shared.live import small_segments
from tests.shared.sharing import Walk

_MAX_SHARED_AFTER = 5
_STEPS = 12


class Fuzzer(campaign.Fuzzer):
    """Adds, deletes, merges and reopens, and compares the answers to a group after each step."""

    def run(self, chance: random.Random) -> Counter[str]:
        """Run one case: a walk of some steps."""
        place = self.directory / "live"
        shared_after = chance.randint(1, _MAX_SHARED_AFTER)
        memtable, largest = chance.choice([(16, 400), (64, 4000), (1024, 8000)])
        self.case = f"shared after {shared_after}, memtable {memtable}, segments {largest}"
        try:
            with pytest.MonkeyPatch.context() as patch:
                small_segments(patch, memtable, largest)
                with closing(Walk(place, chance, shared_after)) as walk:
                    for _ in range(_STEPS):
                        walk.step()
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return Counter({"compared": _STEPS})
