"""Opening a datastore: its cost, its cleanup, and its behaviour without the native kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import TAIL_SIZE, SuffixesHeader, TokensHeader, entry_bits
from rest_store.datastore.manifest import FILE_NAME, Manifest, ShardRecord
from rest_store.datastore.shard import Shard
from rest_store.errors import NativeKernelError
from tests.shared.strategies import Corpus, edit_manifest, identity, refused, write_datastore


def run_python(code: str, *arguments: object, **environment: str) -> str:
    """Return what `code` prints in a new process, with the default filter of warnings."""
    done = subprocess.run(
        [sys.executable, *(["-S"] if sys.flags.no_site else []), "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_sparse_datastore(directory: Path, positions: int) -> int:
    """Write a datastore of 3-byte zeros in sparse files; return their size."""
    documents = positions // 2
    header = TokensHeader(70_000, positions, documents, b"t" * 32)
    suffixes = SuffixesHeader(entry_bits(positions), positions - documents, b"s" * 32, b"t" * 32)
    for kind, packed, size in (
        ("tokens", header.pack(), header.file_size),
        ("suffixes", suffixes.pack(), suffixes.file_size),
    ):
        with (directory / f"big.{kind}").open("wb") as file:
            file.write(packed)
            file.truncate(size)
            if kind == "tokens":
                file.seek(size - TAIL_SIZE - 3)
                file.write(b"\xff" * 3)
    record = ShardRecord(
        "big",
        positions,
        positions - documents,
        documents,
        header.file_size,
        (b"t" * 32).hex(),
        suffixes.file_size,
        (b"s" * 32).hex(),
    )
    manifest = Manifest("test", identity(70_000), (record,), (), {})
    (directory / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return header.file_size + suffixes.file_size


OPEN_AND_ASK = """
import sys
from pathlib import Path
from rest_store.datastore.datastore import Datastore

def resident():
    fields = Path("/proc/self/status").read_text().split()
    return int(fields[fields.index("VmRSS:") + 1])

Datastore.open(sys.argv[1])
before = resident()
store = Datastore.open(sys.argv[2])
match = store.longest_suffix_match([1, 2, 3])
store.info()
print(resident() - before, *match)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads resident memory from Linux's /proc"
)
@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""),
    reason="the sanitizer's shadow memory is resident too",
)
def test_opening_maps_and_does_not_read(directory: Path, tmp_path: Path) -> None:
    """Three gigabytes of sparse files take hardly any memory."""
    assert write_sparse_datastore(tmp_path, 1 << 29) > 2_400_000_000
    kibibytes, length, count = map(int, run_python(OPEN_AND_ASK, directory, tmp_path).split())
    assert kibibytes < 20 * 1024
    assert (length, count) == (0, 0)


OPEN_AND_DROP = """
import os, sys
from rest_store.datastore.datastore import Datastore
def held():
    return len(os.listdir("/proc/self/fd")), open("/proc/self/maps").read().count(sys.argv[1])
def opened():
    try:
        store = Datastore.open(sys.argv[1])
    except ValueError as error:
        return str(error)
    store.draft([1])
    return held()[1]
opened()
before = held()
print(*[opened() for _ in range(500)][-1:], held() == before, before[1], sep="; ")
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in Linux's /proc")
def test_dropped_and_refused_datastores_leave_no_open_files_and_no_mappings(
    directory: Path,
) -> None:
    """A new process counts them, since threads of other tests open and close files in this one."""
    assert run_python(OPEN_AND_DROP, directory) == "4; True; 0\n"
    edit_manifest(directory, lambda fields: fields["shards"][1].update(tokens_sha256="00"))
    output = run_python(OPEN_AND_DROP, directory)
    assert "tokens sha256" in output
    assert output.endswith("; True; 0\n")


def test_one_that_a_build_replaces_meanwhile_is_opened_as_it_is_then(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = write_datastore(tmp_path / "new", Corpus(300, [[[5, 6]], [[7, 7]]]))
    open_shard = Shard.open

    def replace_first(place: Path, name: str) -> Shard:
        if new.exists():
            directory.rename(tmp_path / "aside")
            new.rename(directory)
        return open_shard(place, name)

    monkeypatch.setattr(Shard, "open", replace_first)
    assert Datastore.open(directory).count([5, 6]) == 1


def test_without_the_compiled_kernel_opening_says_how_to_install_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rest_store._kernel", None)
    monkeypatch.delattr("rest_store._kernel")
    message = refused(
        NativeKernelError, lambda: Datastore.open(directory), "the native kernel is missing ("
    )
    assert "C++20 compiler" in message


@pytest.mark.parametrize(("short_of", "scattered"), [(1, True), (0, False), (None, False)])
def test_pages_around_those_asked_for_are_read_unless_the_datastore_is_larger_than_memory(
    directory: Path, monkeypatch: pytest.MonkeyPatch, short_of: int | None, scattered: bool
) -> None:
    size = Datastore.open(directory).info().size
    available = None if short_of is None else size - short_of
    monkeypatch.setattr("rest_store.datastore.datastore.available_bytes", lambda: available)
    opened = Datastore.open(directory)
    assert opened.draft([1, 2, 3]).counts.tolist()[:1] == [1]
    flags: dict[str, set[str]] = {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            path = line.split(maxsplit=5)[-1]
        elif line.startswith("VmFlags:"):
            flags[path] = set(line.split()[1:])
    of_shards = [output for path, output in flags.items() if path.startswith(str(directory))]
    assert len(of_shards) == 4
    assert all(("rr" in output) == scattered for output in of_shards)
