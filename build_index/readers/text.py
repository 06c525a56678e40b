"""Plain text: one document a file."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator

from build_index.documents import CorpusCounts, Document
from rest_store.errors import CorpusFormatError, describe

PIECE_BYTES = 8 << 20
"""Longer files are read in pieces of at most this many bytes, cut after a line end."""


def read_text(
    stream: io.BufferedReader, where: str, counts: CorpusCounts, size: int, *, strict: bool
) -> Iterator[Document]:
    """Yield the document in a text file, or several if it is larger than `PIECE_BYTES`.

    Args:
        stream: its content.
        where: the file, which is the origin of the document.
        counts: counts skipped files.
        size: bytes of the file, for the counts.
        strict: whether a file that is binary or not UTF-8 is an error. Otherwise it is skipped and
            counted.

    Yields:
        Documents. The text is as in the file, line ends included, without a byte order mark.

    Raises:
        CorpusFormatError: `strict`, and the file holds a NUL byte or is not UTF-8.
    """
    data = b""
    piece = 1
    offset = 0
    while True:
        data += stream.read(PIECE_BYTES - len(data))
        has_more = len(data) == PIECE_BYTES and bool(stream.peek(1))
        cut = (data.rfind(b"\n") + 1 or _character_boundary(data)) if has_more else len(data)
        text = _decoded(data[:cut], where, offset, counts, size, strict=strict)
        if text is None:
            return
        if piece == 1:
            text = text.removeprefix("\ufeff")
        is_whole = piece == 1 and not has_more
        document = Document(text=text, origin=where if is_whole else f"{where} (part {piece})")
        if document.is_empty:
            counts.leave_out("empty", where)
        else:
            yield document
        if not has_more:
            return
        data = data[cut:]
        offset += cut
        piece += 1


def _decoded(
    data: bytes, where: str, offset: int, counts: CorpusCounts, size: int, *, strict: bool
) -> str | None:
    """Return the text, or None for a file that is skipped."""
    index = data.find(b"\0")
    if index >= 0:
        reason = "binary"
        problem = f"binary (a NUL byte at {offset + index})"
    else:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = data[error.start]
            reason = "not UTF-8"
            problem = f"not UTF-8 (byte 0x{byte:02x} at {offset + error.start})"
    if strict:
        raise CorpusFormatError(
            describe(where, "content", problem, "UTF-8 text, JSON, JSONL or parquet")
        )
    counts.skip_file(reason, f"{where}: {problem}", size)
    return None


def _character_boundary(data: bytes) -> int:
    """Return the position behind the last complete UTF-8 character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-4:])
    return len(data) - len(decoder.getstate()[0])
