"""Which allocator worker processes get."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from build_index import allocator, worker_choice, workers
from build_index.allocator import mimalloc_variables
from build_index.builder import build
from tests.shared.builds import contents, documents, options, write_jsonl

LIBRARY = "libm.so.6"  # in the place of mimalloc, which is not everywhere


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(allocator, "find_library", {"mimalloc": LIBRARY}.get)


def test_what_the_user_preloads_stays(monkeypatch):
    assert mimalloc_variables({"A": "B"}) == {"LD_PRELOAD": LIBRARY}
    for preloaded in ("", "libjemalloc.so.2"):
        assert mimalloc_variables({"LD_PRELOAD": preloaded}) == {}
    monkeypatch.setattr(allocator, "find_library", {}.get)
    assert mimalloc_variables({}) == {}


def test_workers_get_it_where_tokenizers_encodes(tokenizer, out, tmp_path, monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    for name in ("_SHARE", "_ACCELERATED_SHARE"):
        monkeypatch.setattr(worker_choice, name, 1)
    corpus = write_jsonl(tmp_path / "corpus.jsonl", documents(60, seed=3))
    run, environments = workers._Process.run, []

    def noting(self, task):
        environments.append(Path(f"/proc/{self._process.pid}/environ").read_bytes().split(b"\0"))
        return run(self, task)

    monkeypatch.setattr(workers._Process, "run", noting)
    built = []
    for is_fastokens_installed in (True, False):
        if not is_fastokens_installed:
            monkeypatch.setitem(sys.modules, "fastokens", None)
        environments.clear()
        summary = build(options([corpus], tokenizer, out, workers=2))
        of_tokenizers = summary.encoders[0].startswith("tokenizers")
        assert {b"LD_PRELOAD=" + LIBRARY.encode() in environment for environment in environments} == {of_tokenizers}
        built.append({name: data for name, data in contents(out).items() if name != "manifest.json"})
    assert of_tokenizers
    assert built[0] == built[1]
