"""Remembering names new and known documents, and ends before its datastore is closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rest_store.drafting.output_document import OutputDocument
from rest_store.drafting.remembering import RememberCounts, flush, remember
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.services import PATIENCE
from tests.shared.strategies import identity


def test_outputs_that_are_there_already_are_duplicates(tmp_path: Path) -> None:
    documents = [
        OutputDocument("abc"[place], np.array([1, 2, 3, place], np.int32)) for place in range(3)
    ]
    first = RememberCounts()
    second = RememberCounts()
    with LiveDatastore.open(tmp_path / "live", tokenizer=identity(300)) as live:
        remember(live, documents[:2], first)
        remember(live, documents[1:], second)
        assert flush(live, None)
    assert (first.added, first.duplicates, first.is_decided) == (2, [], True)
    assert (second.added, second.duplicates, second.is_decided) == (1, ["b"], True)


def test_what_waits_for_a_namespace_is_written_before_its_datastore_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "__defaults__", (PATIENCE,))  # a busy machine's disk is slow
    with LiveDatastore.open(tmp_path / "live", tokenizer=identity(300)) as live:
        counts = [RememberCounts() for _ in range(20)]
        for number, one in enumerate(counts):
            remember(
                live.namespace("tenant"), [OutputDocument(f"{number}", np.arange(5 + number))], one
            )
    assert [one.added for one in counts] == [1] * 20


WORKERS = """
import multiprocessing, sys, time
from concurrent.futures import ProcessPoolExecutor
import numpy as np
from rest_store.drafting.output_document import OutputDocument
from rest_store.drafting.remembering import RememberCounts, remember

class Slow:
    def add(self, documents, ids=None):
        time.sleep(0.2)
        with open(sys.argv[2], "a") as file:
            file.write(ids[0])

def write(name):
    remember(Slow(), [OutputDocument(name, np.arange(5))], RememberCounts())

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    write("a")  # so that the parent, which a forked worker copies, has a queue, too
    worker = context.Process(target=write, args=("b",))
    worker.start()
    worker.join()
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        list(pool.map(write, "cd"))
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_what_waits_in_a_worker_process_is_written_before_it_ends(
    method: str, tmp_path: Path
) -> None:
    (tmp_path / "workers.py").write_text(WORKERS)
    written = tmp_path / "written"
    command = [sys.executable, "-W", "ignore", str(tmp_path / "workers.py"), method, str(written)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert sorted(written.read_text()) == list("abcd")
