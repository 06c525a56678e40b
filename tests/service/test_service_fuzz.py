"""Ten thousand fuzzed requests: each is answered, or refused by a status of the table; the service meets no defect."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import grpc

from rest_store.service.errors import STATUSES
from tests.shared.messages import METHODS, fuzzed
from tests.shared.services import PATIENCE, reason_of, running
from tests.shared.strategies import Corpus, write_datastore

NUMBER = int(os.environ.get("REST_STORE_FUZZED", "10000"))
TOGETHER = 50


def outcome(call: Any, *, stream: bool) -> tuple[int, str, str | None]:
    """How a call ends: number of answers, status, and the reason of an error of ours."""
    try:
        answers = list(call) if stream else [call.result()]
    except grpc.RpcError as error:
        return 0, error.code().name, reason_of(error)
    return len(answers), "OK", None


def test_every_fuzzed_request_ends_with_an_answer_or_a_status_of_ours(tmp_path: Path) -> None:
    places = []
    for name, vocabulary_size in (("one", 300), ("two", 301)):
        (tmp_path / name).mkdir()
        documents = [[place % 7, *range(place % 5, 30)] for place in range(20)]
        places.append(write_datastore(tmp_path / name, Corpus(vocabulary_size, [documents])))
    codes = {status.reason: status.code for status in STATUSES}
    seen: Counter[str] = Counter()
    chance = random.Random(0)
    with running(*places, options=["--max-contexts", "200", "--max-message-bytes", "100000"]) as service:
        with service.channel() as channel:
            prefix = "/rest_store.v1.DatastoreService/"
            unary = {method: channel.unary_unary(prefix + method) for method in METHODS}
            stream = channel.stream_stream(prefix + "DraftStream")
            for start in range(0, NUMBER, TOGETHER):
                asked = [fuzzed(chance) for _ in range(TOGETHER)]
                calls = [
                    stream(iter([data, data]), timeout=PATIENCE)
                    if method == "DraftStream"
                    else unary[method].future(data, timeout=PATIENCE)
                    for method, data in asked
                ]
                for (method, data), call in zip(asked, calls, strict=True):
                    where = f"request {start}.. of seed 0, {method} {data!r}"
                    ended, code, reason = outcome(call, stream=method == "DraftStream")
                    if code == "OK":
                        assert ended == (2 if method == "DraftStream" else 1), where
                    else:
                        assert reason in codes, f"{where}: {code}"
                        assert code == codes[reason], where
                        assert reason != "INTERNAL", where
                    seen[reason or "answered"] += 1
        assert service.stop() == 0
        assert not [line for line in service.log if " reload " not in line][1:-2], "a defect in the log"
    assert seen.total() == NUMBER
    usual = {
        "answered",
        "CONTEXT_TYPE",
        "EMPTY_CONTEXT",
        "TOKEN_RANGE",
        "LIMIT",
        "TOKENIZER_MISMATCH",
        "UNKNOWN_DATASTORE",
    }
    if NUMBER >= 1000:
        assert set(seen) >= usual, seen
