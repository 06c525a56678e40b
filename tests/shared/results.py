"""Results of benchmarks by hand, to make reports of."""

from __future__ import annotations

from rest_store.bench.results import Result


def speed_result() -> Result:
    """A result of `bench speed` with two families of prompts."""
    plain = {"prompts": 7, "speedup": 1.0, "mean_tokens": 1.0, "identical": 1.0}
    methods = {"plain": plain, "DraftSession": {**plain, "speedup": 1.94, "mean_tokens": 2.5}}
    return Result("speed", "speed", {"commit": "abc"}, {"threads": 2, "families": {"own": methods, "all": methods}})


def quality_result() -> Result:
    """A result of `bench replay` with many families, which makes its table wide."""
    families = {f"family {number} of prompts": 2.5 for number in range(12)}
    rows = [{"drafting": "session", "nodes": nodes, "M": 3.0, "families": families} for nodes in (16, 64)]
    return Result("replay", "replay", {}, {"rows": rows, "reported": 5, "datastores": {"code": 9}})
