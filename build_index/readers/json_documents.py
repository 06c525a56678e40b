"""JSON files of one document each: Jupyter notebooks, trajectories of (mini-)SWE-agent."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from build_index.documents import CorpusCounts, Document
from build_index.readers.json_records import TOO_LARGE, JsonValues
from build_index.readers.record_reader import RecordReader
from build_index.readers.table_rows import record_documents
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
    """Yield the document of a notebook or a trajectory.

    The document of a notebook is the sources of its cells in order, without their outputs; that of
    a trajectory is its conversation.

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
            sources = [_source(cell) for cell in cells or ()]
            field = _TEXT
            value = {_TEXT: "\n\n".join(filter(None, sources))}
        origin = where if line == 1 else f"{where}:{line}"
        session = ""
        if field != _TEXT:
            session = name_of(where) if line == 1 else f"{name_of(where)}-{line}"
            value = {**value, field: [*_turns(value[field], records.counts)]}
        for document in record_documents(replace(records, field=field), value, origin):
            yield replace(document, session=session)


def _cells(value: Mapping[str, Any]) -> list[Any] | None:
    """Return the cells of a notebook (in format 3 on worksheets), or None: it is no notebook."""
    cells = value.get("cells")
    sheets = value.get("worksheets")
    if cells is None and isinstance(sheets, list):
        cells = []
        for sheet in sheets:
            if isinstance(sheet, Mapping) and isinstance(sheet.get("cells"), list):
                cells += sheet["cells"]
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
    if isinstance(value.get("trajectory"), list) and _is_conversation(value.get("history")):
        return "history"  # SWE-agent
    if "trajectory_format" in value and _is_conversation(value.get("messages")):
        return "messages"  # mini-SWE-agent
    return None


def _turns(history: list[Any], counts: CorpusCounts) -> Iterator[Any]:
    """Yield the turns of a trajectory without demonstrations, which another author wrote."""
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
    if not isinstance(turns, list) or not turns:
        return False
    return isinstance(turns[0], Mapping) and "role" in turns[0]
