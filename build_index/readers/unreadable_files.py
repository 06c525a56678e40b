"""Files without a reader: their names in the summary of a build, and commands that convert them."""

from __future__ import annotations

import codecs
from pathlib import PurePosixPath

BINARY = "binary"
DAMAGED = "damaged"
LFS_POINTER = "Git LFS pointer"
BARE_REPOSITORY = "bare Git repository"
TAR = "tar archive"
ZIP = "zip archive"
SQLITE = "SQLite database"
ROW_NUMBERS = "table of row numbers"
CACHED = "cached result of datasets"

_LFS_HEAD = b"version https://git-lfs.github.com/spec/v1\n"
_PDF = "PDF"
_SEVEN_ZIP = "7z archive"
_RAR = "RAR archive"
_UTF16 = "UTF-16 text"
_OFFICE = "office document"
_AVRO = "Avro file"
_ORC = "ORC file"
_MAGICS = {
    b"%PDF-": _PDF,
    b"7z\xbc\xaf\x27\x1c": _SEVEN_ZIP,
    b"Rar!\x1a\x07": _RAR,
    codecs.BOM_UTF16_LE: _UTF16,
    codecs.BOM_UTF16_BE: _UTF16,
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": _OFFICE,
    b"Obj\x01": _AVRO,
    b"ORC": _ORC,
}
HINTS = {
    LFS_POINTER: "`git lfs pull` fetches the files",
    BARE_REPOSITORY: "`git clone DIR` checks its files out",
    TAR: "read if --corpus or --include names it",
    ZIP: "read if --corpus or --include names it",
    SQLITE: "read if --corpus or --include names it",
    CACHED: "Dataset.save_to_disk keeps one",
    ROW_NUMBERS: "Dataset.save_to_disk writes the rows of a filtered data set",
    _PDF: "`pdftotext FILE` extracts the text",
    _SEVEN_ZIP: "`7z x FILE` unpacks it",
    _RAR: "`unrar x FILE` unpacks it",
    _UTF16: "`iconv -f UTF-16 -t UTF-8 FILE` converts it",
    _OFFICE: "`libreoffice --convert-to txt:Text FILE` extracts the text",
    _AVRO: "`fastavro FILE` prints its records as JSON",
    _ORC: "`pyarrow.orc.read_table` reads it, `pyarrow.parquet.write_table` writes it as parquet",
    "ignored by .gitignore": "--no-gitignore reads it",
}
"""By the reason to skip a file, a command that helps, where there is one."""

_NOUNS = (
    *HINTS,
    "zip archive",
    "datastore",
    "media file",
    "malformed record",
    "encrypted file",
    "linked directory",
)
_PLURALS = {noun: f"{noun}s" for noun in _NOUNS}
_PLURALS |= {
    BARE_REPOSITORY: "bare Git repositories",
    ROW_NUMBERS: "tables of row numbers",
    CACHED: "cached results of datasets",
    "ignored by .gitignore": "ignored by .gitignore",
    "linked directory": "linked directories",
    "table without a known column": "tables without a known column",
    "JSONL without a known field": "JSONL files without a known field",
}

MEDIA = "media file"
CODE = "compiled code"
WITHOUT_TEXT = {MEDIA, CODE}  # to leave them out is no loss
_ENDINGS = {
    MEDIA: (
        "png jpg jpeg gif webp avif bmp ico icns tif tiff psd heic xcf mp3 wav ogg oga opus flac"
        " m4a aac mid mp4 m4v mkv webm mov avi mpg mpeg ttf otf ttc woff woff2 eot pfb"
    ),
    CODE: "so o a dll dylib exe lib obj pyc pyd class wasm beam pdb rlib rmeta",
}
_KINDS = {ending: kind for kind, endings in _ENDINGS.items() for ending in endings.split()}
_CODE_MAGICS = (b"\x7fELF", b"MZ", b"\xca\xfe\xba\xbe", b"\xcf\xfa\xed\xfe", b"\0asm", b"!<arch>\n")


def reason_text(reason: str, number: int) -> str:
    """Return the number of things skipped for a reason, as text for people."""
    return f"{number:,} {reason if number == 1 else _PLURALS.get(reason, reason)}"


def is_lfs_pointer(head: bytes) -> bool:
    """Return whether a file is a pointer to a file that Git LFS has not fetched."""
    return head.startswith(_LFS_HEAD) and b"\noid " in head


def unreadable_kind(head: bytes, where: str) -> str | None:
    """Return the kind of content without a reader, by its first bytes; None: it may be a text.

    Args:
        head: the first bytes.
        where: name of the file; its ending identifies pictures, sound, fonts and compiled code.
    """
    kind = next((kind for magic, kind in _MAGICS.items() if head.startswith(magic)), None)
    if kind is not None and (kind != _ORC or b"\0" in head):
        return kind
    if b"\0" not in head:
        return None
    if head.startswith(_CODE_MAGICS):
        return CODE
    return _KINDS.get(PurePosixPath(where).suffix.lower().lstrip("."), BINARY)
