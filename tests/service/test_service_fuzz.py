"""Fuzzed requests: each is answered, or refused by a status of the table; the service meets no defect."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

from tests.shared.messages import CODES, begin_live_datastore, fuzzed, outcomes, write_two_datastores
from tests.shared.services import running

NUMBER = int(os.environ.get("REST_STORE_FUZZED", "3000"))
TOGETHER = 50


def test_every_fuzzed_request_ends_with_an_answer_or_a_status_of_ours(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    chance = random.Random(0)
    options = ["--max-contexts", "200", *begin_live_datastore(tmp_path)]
    with running(*write_two_datastores(tmp_path), options=options) as service:
        with service.channel() as channel:
            for _ in range(0, NUMBER, TOGETHER):
                seen.update(outcomes(channel, [fuzzed(chance) for _ in range(TOGETHER)]))
        assert service.stop() == 0
        assert not [
            line for line in service.log if "serving" not in line and "draining" not in line and "stopped" not in line
        ], "a defect in the log"
    assert seen.keys() <= {"answered", *CODES}
    assert seen.total() >= NUMBER
    usual = {
        "answered",
        "CONTEXT_TYPE",
        "EMPTY_CONTEXT",
        "TOKEN_RANGE",
        "LIMIT",
        "TOKENIZER_MISMATCH",
        "UNKNOWN_DATASTORE",
        "NOT_LIVE",
        "DOCUMENT",
    }
    if NUMBER >= 1000:
        assert set(seen) >= usual, seen
