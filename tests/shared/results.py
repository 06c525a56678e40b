"""Results of benchmarks by hand, to make reports of."""

from __future__ import annotations

from typing import Any

from rest_store.bench.results import Result


def speed_of(families: dict[str, float], **others: float) -> Result:
    """A result of `bench speed`, in which the session has these speeds by family, and all other methods one speed."""

    def row(speedup: float) -> dict[str, Any]:
        rest = {"median_speedup": speedup, "tokens_per_second": 9.0, "identical": 1.0, "prompts": 7}
        return {"speedup": speedup, "mean_tokens": 2.5, **rest}

    of = {
        name: {"plain": row(1.0), "DraftSession": row(speed), **{other: row(one) for other, one in others.items()}}
        for name, speed in families.items()
    }
    return Result("speed", "speed", {}, {"families": of, "prompts": [{}] * 7})


def quality_of(datastores: dict[str, float], **rows: float) -> Result:
    """A result of `bench quality` with M 3.0 of the session and what it loses without each datastore."""
    means = {"session": 3.0, **{f"session without {name}": 3.0 - loss for name, loss in datastores.items()}, **rows}
    of = [
        {"drafting": name, "nodes": nodes, "M": m, "families": {"own": m}}
        for nodes in (16, 64)
        for name, m in means.items()
    ]
    return Result("quality", "quality", {}, {"rows": of, "reported": 5, "datastores": dict.fromkeys(datastores, 9)})
