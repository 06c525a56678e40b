"""What a folder of results comes to, in a few sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rest_store.bench.results import Result

_SESSIONS = ("DraftSession", "DraftSession through a service")
_LOOKUPS = ("transformers prompt lookup", "prompt lookup")
_OTHERS_IN_VLLM = ("none", "empty", "ngram", "suffix, cold", "suffix, warm")


def verdict(results: Mapping[str, Result]) -> list[str]:
    """Return sentences: how many times as fast, M, and what the datastores brought, or that it was not measured.

    Args:
        results: by name.
    """
    said = []
    for kind, say in (("speed", _speed), ("quality", _quality), ("vllm", _vllm)):
        figures = [one.figures for one in results.values() if one.kind == kind and isinstance(one.figures, Mapping)]
        try:
            said.append(say(figures))
        except (KeyError, TypeError, ValueError, AttributeError):  # of another shape
            said.append(say([]))
    return list(filter(None, said))


def _speed(measured: Sequence[Mapping[str, Any]]) -> str:
    families = [one.get("families", {}).get("all", {}) for one in measured]
    runs = [(next((of[name] for name in _SESSIONS if name in of), None), of) for of in families]
    sessions = [(session, of) for session, of in runs if session is not None]
    if not sessions:
        return "How much faster drafts make a model was not measured: that is `rest-store bench speed`."
    speeds = [session["speedup"] for session, _ in sessions]
    means = _range([session["mean_tokens"] for session, _ in sessions])
    if len(sessions) > 1:
        slower = sum(speed < 1 for speed in speeds)
        number = f"{len(speeds)} measurements" + (f", slower in {slower} of them" if slower else "")
        return f"Generation is {_range(speeds)} times as fast with drafts in {number}; M is {means}."
    (session, of), speed = sessions[0], speeds[0]
    prompts = f"{session['prompts']} prompt{'' if session['prompts'] == 1 else 's'}"
    fast = f"{speed:.2f} times as fast" if speed >= 1 else f"slower, {speed:.2f} times as fast,"
    text = f"Generation is {fast} with drafts, over {prompts}: M is {means}"
    lookups = [of[name]["speedup"] for name in _LOOKUPS if name in of]
    return f"{text}. Prompt lookup alone gives {max(lookups):.2f}." if lookups else f"{text}."


def _quality(measured: Sequence[Mapping[str, Any]]) -> str:
    replays = [one for one in measured if any(row["drafting"] == "session" for row in one.get("rows", ()))]
    if not replays:
        return "What datastores bring was not measured: that is `rest-store bench quality`."
    nodes = min(row["nodes"] for one in replays for row in one["rows"] if row["drafting"] == "session")
    means = [{row["drafting"]: row["M"] for row in one["rows"] if row["nodes"] == nodes} for one in replays]
    brought = {
        (name, place): of["session"] - of[f"session without {name}"]
        for place, (one, of) in enumerate(zip(replays, means, strict=True))
        for name in one.get("datastores", {})
        if f"session without {name}" in of
    }
    recordings = sum(one.get("reported", 0) for one in replays)
    text = f"In replays of {recordings} recording{'' if recordings == 1 else 's'} M is "
    text += f"{_range([of['session'] for of in means])} with {nodes} nodes"
    if not any(one.get("datastores") for one in replays):
        text += ", without any datastore"
    elif not brought:
        text += "; what each datastore brings was not measured"
    elif len(replays) == 1:
        text += f", of which {_and([f'{name} brings {gain:.2f}' for (name, _), gain in brought.items()])}"
    else:
        text += f", of which a datastore brings {_range(list(brought.values()))}"
    alone = [of["session, prompt lookup alone"] for of in means if "session, prompt lookup alone" in of]
    return f"{text}; prompt lookup alone gives {_range(alone)}." if alone else f"{text}."


def _vllm(measured: Sequence[Mapping[str, Any]]) -> str:
    speeds = [
        row["of none"]
        for one in measured
        for batch in one.get("batches", {}).values()
        for way, row in batch.items()
        if way not in _OTHERS_IN_VLLM
    ]
    return f"In vLLM drafts give {_range(speeds)} times the speed of none." if speeds else ""


def _range(values: Sequence[float]) -> str:
    least, most = f"{min(values):.2f}", f"{max(values):.2f}"
    return least if least == most else f"{least} to {most}"


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
