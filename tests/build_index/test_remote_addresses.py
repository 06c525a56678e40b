"""Addresses of corpora: web servers, the hub, and those at which nothing can be read."""

from __future__ import annotations

import sys

import pytest

from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.readers import remote_corpus
from rest_store.errors import CorpusError, CorpusNotFoundError
from tests.shared.object_store import forget_connections, upload

pytestmark = pytest.mark.slow

# --- Bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "kind", "message"),
    [
        ("s3://corpus/absent.txt", CorpusNotFoundError, "corpus is absent"),
        ("s3://absent/a.txt", CorpusNotFoundError, r"corpus is absent \(.*The specified bucket does not exist\)"),
        ("s3://", CorpusError, "address is malformed, expected s3://NAME/"),
        ("hf://owner/name", CorpusError, "address is malformed, expected hf://datasets/OWNER/NAME/"),
        ("hf://datasets/owner", CorpusError, "address is malformed, expected hf://datasets/OWNER/NAME/"),
        ("ftp://host/a.txt", CorpusError, "scheme is 'ftp', expected s3, gs, hf, or a path without one"),
    ],
)
def test_what_is_not_there_is_one_named_error_at_once(s3, address, kind, message):
    upload({"t/a.txt": "x"})
    s3.requests.clear()
    with pytest.raises(kind, match=message) as error:
        list(open_corpus(CorpusSpec(address)))
    assert str(error.value).startswith(address.rstrip("/"))
    assert "\n" not in str(error.value)
    assert type(error.value) is kind


def test_missing_credentials_are_named(s3, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    forget_connections()
    with pytest.raises(CorpusError, match=r"^s3://corpus/a.txt: the corpus cannot be read \(Unable to locate cred"):
        open_corpus(CorpusSpec("s3://corpus/a.txt"))
    forget_connections()


@pytest.mark.parametrize(
    ("address", "package"),
    [("s3://b/k", "s3fs"), ("gs://b/k", "gcsfs")],
)
def test_a_missing_package_names_the_extra(monkeypatch, address, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(CorpusError, match=rf"^{address}: the package '{package}' .* 'rest-store\[remote\]'"):
        open_corpus(CorpusSpec(address))


def test_the_hub_that_cannot_be_reached_is_said_at_once(monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(remote_corpus, "hub_failure", lambda name, kind: f"{kind} {name}: no route")
    with pytest.raises(CorpusError, match=r"b/x.parquet: the Hugging Face hub cannot be reached \(dataset a/b: no r"):
        open_corpus(CorpusSpec("hf://datasets/a/b/x.parquet"))
