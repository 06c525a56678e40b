"""Files behind addresses are read from a real S3 server that breaks connections."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest

from rest_store.datastore.fetch import fetch
from rest_store.datastore.manifest import FILE_NAME
from rest_store.errors import DatastoreNotFoundError, FetchError, RestStoreError
from rest_store.loading import remote_files
from rest_store.loading.remote_files import RemoteFiles
from tests.shared.builds import contents
from tests.shared.object_store import BLOCK, Proxy, upload
from tests.shared.strategies import Corpus, write_datastore


def address_of(scheme: str, s3: Proxy, name: str) -> str:
    """The HTTP address of a file in the bucket, which the server gives to anyone."""
    for path in fsspec.filesystem("s3", use_listings_cache=False).find(f"corpus/{name}"):
        fsspec.filesystem("s3").chmod(path, "public-read")
    return f"s3://corpus/{name}" if scheme == "s3" else f"{s3.url}/corpus/{name}"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_datastore_is_copied_in_pieces(s3: Proxy, tmp_path: Path, scheme: str) -> None:
    corpus = Corpus(300, [[random.Random(0).choices(range(300), k=30_000)], [[1, 2, 3]]])
    source = write_datastore(tmp_path / "source", corpus)
    upload({f"ds/{name}": content for name, content in contents(source).items()})
    address = address_of(scheme, s3, "ds/")
    s3.requests.clear()
    copy = fetch(RemoteFiles(address), tmp_path)
    assert contents(copy) == contents(source)
    assert max(size for _, _, size in s3.requests) <= BLOCK
    s3.requests.clear()
    assert fetch(RemoteFiles(address), tmp_path) == copy
    assert {path.rpartition("/")[2] for method, path, _ in s3.requests if method == "GET"} == {
        FILE_NAME
    }


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_connection_that_breaks_is_taken_up_where_it_was(s3: Proxy, scheme: str) -> None:
    content = random.Random(0).randbytes(3 * BLOCK)
    upload({"ds/a": content})
    reader = RemoteFiles(address_of(scheme, s3, "ds"))
    pieces = reader.read("a", 0)
    start = next(pieces)
    s3.breaks = 1 << 30
    with pytest.raises(
        FetchError, match=r"^\S+/corpus/ds: a cannot be read \(.+\)$|^s3://corpus/ds: a cannot be r"
    ):
        list(pieces)
    s3.breaks = 0
    assert start + b"".join(reader.read("a", len(start))) == content


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_an_address_without_a_datastore(s3: Proxy, scheme: str) -> None:
    upload({"ds/a": b"x"})
    with pytest.raises(
        DatastoreNotFoundError, match=r"/ds: datastore is without manifest.json, expected complete"
    ):
        list(RemoteFiles(address_of(scheme, s3, "ds")).read(FILE_NAME, 0))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ftp://host/ds", "scheme is 'ftp', expected one of s3, gs, hf, https, http"),
        (
            "hf://datasets/owner/name/ds",
            r"the Hugging Face hub cannot be reached \(dataset owner/name: no route\)",
        ),
        (
            "hf://owner/name@main/ds",
            r"the Hugging Face hub cannot be reached \(model owner/name: no route\)",
        ),
        ("https://127.0.0.1:1/ds", r"manifest.json cannot be read \(.+\)"),
    ],
)
def test_what_cannot_be_reached_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch, address: str, message: str
) -> None:
    monkeypatch.setattr(remote_files, "hub_failure", lambda name, kind: f"{kind} {name}: no route")
    with pytest.raises(RestStoreError, match=rf"^{address}: {message}") as error:
        list(RemoteFiles(address).read(FILE_NAME, 0))
    assert type(error.value) is FetchError
    assert "\n" not in str(error.value)


def test_without_the_hub_the_latest_copy_is_opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = write_datastore(tmp_path / "source", Corpus(300, [[[1, 2, 3]]]))
    files = SimpleNamespace(open=lambda path, **_: (source / Path(path).name).open("rb"))
    monkeypatch.setattr(remote_files, "file_system", lambda *_: files)
    monkeypatch.setattr(remote_files, "hub_failure", lambda name, kind: None)
    copy = fetch(RemoteFiles("hf://datasets/owner/name/ds"), tmp_path)
    monkeypatch.setattr(remote_files, "hub_failure", lambda name, kind: "no route")
    assert fetch(RemoteFiles("hf://datasets/owner/name/ds"), tmp_path) == copy
