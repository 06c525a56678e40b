"""Archives: their files are read as those of a directory are, one after another."""

from __future__ import annotations

import io
import json
import tarfile
import tracemalloc
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from build_index.documents import Document
from build_index.readers import containers
from rest_store.errors import CorpusFormatError
from tests.shared.corpora import compressed, documents_of, read_corpus, write_files


def parquet(*texts: str) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": list(texts)}), sink)
    return sink.getvalue().to_pybytes()


FILES = {
    "src/a.py": b"x = 1\n",
    "src/chats.jsonl": b'{"text": "one"}\n{"text": "two"}\n',
    "src/table.parquet": parquet("three", "four"),
    "src/notes.txt.gz": compressed(b"notes", ".gz"),
    "src/__pycache__/a.py": b"no",
    "image.png": b"\x89PNG\0",
    "bad.jsonl": b"not json",
    "inner.zip": b"PK\x05\x06" + bytes(18),
}
TEXTS = ["x = 1\n", "one", "two", "three", "four", "notes"]
SKIPPED = {"damaged": 1, "media file": 1, "zip archive in an archive": 1}


def tar(files: dict[str, bytes], compression: str = "", form: int = tarfile.PAX_FORMAT) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode=f"w:{compression}", format=form) as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return sink.getvalue()


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return sink.getvalue()


ARCHIVES = {
    "tar": tar,
    "tar of GNU": lambda files: tar(files, form=tarfile.GNU_FORMAT),
    "tar.gz": lambda files: tar(files, "gz"),
    "tar.xz": lambda files: tar(files, "xz"),
    "tar.bz2": lambda files: tar(files, "bz2"),
    "tar.zst": lambda files: compressed(tar(files), ".zst"),
    "zip": zipped,
    "zip stored": lambda files: zipped(files, zipfile.ZIP_STORED),
}


@pytest.fixture(params=ARCHIVES)
def archive(request, tmp_path):
    """Writes an archive of each kind and returns its path."""

    def write(files, name="archive"):
        path = tmp_path / name
        path.write_bytes(ARCHIVES[request.param](files))
        return path

    return write


@pytest.mark.parametrize("held_bytes", [8 << 20, 16])
def test_the_files_of_an_archive_are_documents(archive, monkeypatch, held_bytes):
    """A large file in an archive is written to disk, a small one is held in memory."""
    monkeypatch.setattr(containers, "_HELD_BYTES", held_bytes)
    path = archive(FILES)
    corpus, documents = read_corpus(path)
    assert [document.text for document in documents] == TEXTS
    assert documents[2].origin == f"{path}/src/chats.jsonl:2"
    assert corpus.counts.skipped == SKIPPED
    assert corpus.counts.largest["damaged"][1].startswith(
        f"{path}/bad.jsonl:1: line is not a JSON object"
    )
    assert corpus.counts.bytes_read == corpus.size
    assert corpus.reader == ("zip" if path.read_bytes()[:2] == b"PK" else "tar")


def test_globs_choose_files_in_a_named_archive(archive):
    path = archive(FILES)
    corpus, documents = read_corpus(path, include=("*.py", "*.parquet"), exclude=("table.*",))
    assert documents == [Document(text="x = 1\n")]
    assert corpus.counts.skipped == {"left out by --include": 5}
    provenance = corpus.provenance()
    assert (provenance["include"], provenance["exclude"]) == (["*.py", "*.parquet"], ["table.*"])


def test_an_archive_in_a_directory_is_read_if_a_glob_names_it(archive, tmp_path):
    path = archive(FILES, "archive.kind")
    corpus, documents = read_corpus(tmp_path)
    assert documents == []
    (kind,) = corpus.counts.skipped
    assert kind in ("tar archive", "zip archive")
    assert corpus.counts.largest == {kind: (path.stat().st_size, str(path))}
    assert corpus.counts.lost_share() == 1
    corpus, documents = read_corpus(tmp_path, include=("*.kind",), exclude=("src/*.py",))
    assert [document.text for document in documents] == TEXTS[1:]


def test_a_field_is_looked_for_in_each_file(archive):
    path = archive({"a.json": json.dumps({"body": "x"}, indent=1).encode(), "b.txt": b"no"})
    assert documents_of(path, field="body") == [Document(text="x")]


def test_what_is_lost_counts_by_the_bytes_on_disk(archive):
    path = archive({"good.txt": b"x" * 1000, "bad.bin": b"\0" * 3000})
    counts = read_corpus(path)[0].counts
    assert counts.lost_share() == pytest.approx(0.75, abs=0.01)
    assert counts.lost_bytes < path.stat().st_size


def test_a_name_that_leads_out_of_the_archive_is_one_inside(archive, tmp_path):
    path = archive({"../../outside.txt": b"x", "/root.txt": b"y"})
    assert [document.origin for document in documents_of(path)] == [
        f"{path}/outside.txt",
        f"{path}/root.txt",
    ]
    assert not (tmp_path.parent / "outside.txt").exists()


def test_links_and_directories_in_a_tar_are_passed_over(tmp_path):
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
            entry = tarfile.TarInfo(f"entry-{kind.decode()}")
            entry.type = kind
            entry.linkname = "/etc/hostname"
            archive.addfile(entry)
        entry = tarfile.TarInfo("a.txt")
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))
    write_files(tmp_path, {"a.tar": sink.getvalue()})
    assert documents_of(tmp_path / "a.tar") == [Document(text="x")]


def test_encrypted_files_are_counted(tmp_path):
    data = bytearray(zipped({"a.txt": b"x"}, zipfile.ZIP_STORED))
    # Flags of the file, and of its entry in the directory.
    for offset in (6, data.index(b"PK\x01\x02") + 8):
        data[offset] |= 1
    write_files(tmp_path, {"a.zip": bytes(data)})
    corpus, documents = read_corpus(tmp_path / "a.zip")
    assert (documents, corpus.counts.skipped) == ([], {"encrypted file": 1})


def damaged_archives() -> dict[str, bytes]:
    files = {f"{number}.txt": bytes(f"text {number} " * 400, "ascii") for number in range(9)}
    plain = tar(files)
    packed = zipped(files, zipfile.ZIP_STORED)
    return {
        "a tar that ends inside a file": plain[: 3 * 512 + 4000],
        "a tar whose header is damaged": plain[: 9 * 1024 - 512 * 3]
        + b"\xff" * 9000
        + plain[9 * 1024 - 512 * 3 + 9000 :],
        "a tar.gz that is cut": compressed(plain, ".gz")[:-40],
        "a zip without its directory": packed[:-200],
    }


@pytest.mark.parametrize("name", damaged_archives())
def test_a_damaged_archive_is_an_error_or_counted_in_a_directory(tmp_path, name):
    path = tmp_path / "archive"
    path.write_bytes(damaged_archives()[name])
    with pytest.raises(
        CorpusFormatError, match=f"^{path}: (archive|compressed file) is damaged or truncated"
    ):
        documents_of(path)
    corpus, _ = read_corpus(tmp_path, include=("archive",))
    assert corpus.counts.skipped["damaged"] >= 1


def test_a_damaged_file_in_a_zip_is_counted_and_the_next_one_read(tmp_path):
    data = zipped({"a.txt": b"first" * 99, "b.txt": b"second"}, zipfile.ZIP_STORED).replace(
        b"firstfirst", b"firstFIRST", 1
    )
    write_files(tmp_path, {"a.zip": data})
    corpus, documents = read_corpus(tmp_path / "a.zip")
    assert documents == [Document(text="second")]
    assert corpus.counts.skipped == {"damaged": 1}


@pytest.mark.parametrize("archive", ["tar", "tar.zst", "zip"], indirect=True)
def test_memory_does_not_grow_with_the_archive(archive):
    """Memory grows neither with a file of the archive nor with the number of files."""
    lines = "".join(
        json.dumps({"text": f"{number} " * 2000}) + "\n" for number in range(1500)
    ).encode()
    path = archive(
        {"a.jsonl": lines, **{f"{number}.txt": b"x %d" % number for number in range(3000)}}
    )
    reading = iter(read_corpus(path, max_documents=1)[0])
    next(reading)
    corpus = read_corpus(path, max_documents=1)[0]
    (file,) = corpus.files(corpus.counts)
    tracemalloc.start()
    try:
        assert sum(1 for _ in corpus.documents(file, corpus.counts)) == 4500
        assert tracemalloc.get_traced_memory()[1] < 24_000_000  # 8 MiB of a file are held in memory
    finally:
        tracemalloc.stop()
