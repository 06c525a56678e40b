"""Requests of tests of vLLM's plug-in, their outputs and counters."""

from __future__ import annotations

import random
from typing import Any

from tests.shared.engine import Engine, Request, plain_output


def totals(engine: Engine, name: str) -> dict[str, float]:
    """Return a counter by label."""
    counted = engine.ours.drafter.metrics.totals().items()
    return {label: total for (counter, label), total in counted if counter == name and total}


def requests(seed: int, count: int = 8, most: int = 40) -> list[Request]:
    chance = random.Random(seed)
    return [
        Request([chance.randrange(290) for _ in range(chance.randrange(2, 30))], most)
        for _ in range(count)
    ]


def outputs_are_plain(engine: Engine, batch_requests: list[Request], **options: Any) -> None:
    outputs = engine.run(*batch_requests, **options)
    assert outputs == [
        plain_output(engine.model, request.prompt, request.most, 200) for request in batch_requests
    ]
