"""JSON files that hold one document each: notebooks of Jupyter, and
trajectories of SWE-agent and mini-SWE-agent.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from build_index.documents import CorpusCounts, Document
from build_index.readers.json_records import TOO_LARGE, JsonValues
from build_index.readers.records import RecordReader
from build_index.readers.table_rows import documents_of
from build_index.readers.transcripts import name_of

_TEXT = "text"


def json_document_kind(value: Mapping[str, Any]) -> str | None:
    """Return `"notebook"` or `"trajectory"` if the object of a file is one, or None."""
    if isinstance(value.get("nbformat"), int) and _cells(value) is not None:
        return "notebook"
    return None if _history(value) is None else "trajectory"


def read_json_document(
    stream: io.BufferedReader, where: str, records: RecordReader
) -> Iterator[Document]:
    """Yield the document of a notebook, the sources of its cells in
    order, or of a trajectory, its conversation.

    What cells have put out is left out: results and images.

    Args:
        stream: content of the file.
        where: the file, for messages; origin of its first document, which is mostly the only one.
        records: extracts the document.

    Raises:
        CorpusFormatError: the file is not JSON any more, or the conversation is malformed.
        CorpusError: see `RecordReader.too_large`.
    """
    for value, line in JsonValues(stream, where):
        if value is TOO_LARGE:
            records.too_large(f"{where}:{line}")
            continue
        field = _history(value) if isinstance(value, Mapping) else None
        if field is None:
            cells = _cells(value) if isinstance(value, Mapping) else None
            field, value = _TEXT, {_TEXT: "\n\n".join(filter(None, map(_source, cells or ())))}
        origin = where if line == 1 else f"{where}:{line}"
        session = ""
        if field != _TEXT:
            session = name_of(where) if line == 1 else f"{name_of(where)}-{line}"
            value = {**value, field: [*_turns(value[field], records.counts)]}
        for document in documents_of(replace(records, field=field), value, origin):
            yield replace(document, session=session)


def _cells(value: Mapping[str, Any]) -> list[Any] | None:
    """Return the cells of a notebook, also of format 3, in which they are on worksheets.

    None: it is none.
    """
    cells = value.get("cells")
    if cells is None and isinstance(sheets := value.get("worksheets"), list):
        lists = (sheet.get("cells") for sheet in sheets if isinstance(sheet, Mapping))
        cells = [cell for some in lists if isinstance(some, list) for cell in some]
    return cells if isinstance(cells, list) else None


def _source(cell: object) -> str:
    """Return the text of a cell, which may be a list of lines.

    `input` is the name of code in format 3.
    """
    source = cell.get("source", cell.get("input", "")) if isinstance(cell, Mapping) else ""
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def _history(value: Mapping[str, Any]) -> str | None:
    """Return the field of a trajectory that holds its conversation.

    None: the object is no trajectory.
    """
    is_of_swe_agent = isinstance(value.get("trajectory"), list) and _is_conversation(
        value.get("history")
    )
    if is_of_swe_agent:
        return "history"
    return (
        "messages"
        if "trajectory_format" in value and _is_conversation(value.get("messages"))
        else None
    )


def _turns(history: list[Any], counts: CorpusCounts) -> Iterator[Any]:
    """Yield the turns of a trajectory, without answers that
    demonstrate the task: others wrote them.
    """
    for turn in history:
        if not isinstance(turn, Mapping):
            yield turn
        elif turn.get("is_demo") and turn.get("role") == "assistant":
            counts.left_out["answers of demonstrations"] += 1
        else:
            calls = turn.get("tool_call_ids")  # SWE-agent's name, for one call
            named = {"tool_call_id": calls[0]} if isinstance(calls, list) and calls else {}
            yield {**turn, **named}


def _is_conversation(turns: object) -> bool:
    return (
        isinstance(turns, list)
        and bool(turns)
        and isinstance(turns[0], Mapping)
        and "role" in turns[0]
    )
