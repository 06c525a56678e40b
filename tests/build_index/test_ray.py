"""Builds on a Ray cluster give the same bytes, whatever happens to its nodes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from build_index import ray_workers, slices
from build_index.build_command import build as command
from build_index.builder import build
from build_index.staging import finished_shards
from rest_store.errors import CorpusFormatError, MemoryBudgetError, MissingExtraError, WorkerError
from tests.shared.builds import contents, documents, leftovers, options, write_jsonl
from tests.shared.corpora import write_files

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("default")  # its own

TEXTS = documents(150, seed=7)
MEMORY = 1 << 33  # more than the test process may hold


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three nodes with a CPU each, the first of which is the head."""
    if "REST_STORE_RAY" not in os.environ:
        pytest.skip("starts a Ray cluster: make test-ray")
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    others = [cluster.add_node(**node, wait=False) for _ in range(2)]
    cluster.wait_for_nodes()
    yield cluster, others
    cluster.shutdown()


@pytest.fixture
def address(cluster):
    return cluster[0].address


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """A directory of many files, and a file that is large beside them."""
    top = tmp_path_factory.mktemp("corpora")
    files = {f"{number:02}.txt": text for number, text in enumerate([*TEXTS[:60], *TEXTS[:20]])}
    return [write_files(top / "tree", files), write_jsonl(top / "one.jsonl", [*TEXTS[50:], *TEXTS])]


@pytest.fixture(scope="module")
def expected(corpora, tokenizer, tmp_path_factory):
    """The datastore that this machine alone builds of them."""
    out = tmp_path_factory.mktemp("expected") / "ds"
    build(options(corpora, tokenizer, out, shard_tokens=1500, memory=MEMORY))
    return contents(out)


@pytest.fixture(autouse=True)
def many_tasks(monkeypatch):
    monkeypatch.setattr(slices, "SLICE_BYTES", 500)
    monkeypatch.setattr(slices, "SLICE_CHARACTERS", 2000)


# --- Bad input, before any work -------------------------------------------------------------------


def test_without_ray_the_extra_is_named(corpora, tokenizer, out, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        MissingExtraError, match=r"build: the package 'ray' .* pip install 'rest-store\[ray\]'"
    ):
        build(options(corpora, tokenizer, out, ray="auto"))
    assert leftovers(out) == []


@pytest.mark.parametrize(
    ("words", "address"), [(["127.0.0.1:1"], "127.0.0.1:1"), (["no"], "no"), ([], "[::1]:1")]
)
def test_a_wrong_address_is_refused(corpora, tokenizer, out, monkeypatch, words, address):
    monkeypatch.setenv("RAY_ADDRESS", "[::1]:1")  # the default address
    arguments = [
        "--ray",
        *words,
        "--corpus",
        str(corpora[0]),
        "--tokenizer",
        str(tokenizer),
        "--out",
        str(out),
    ]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: --ray: the cluster at '{address}' cannot be used (")
    assert leftovers(out) == []


def test_other_versions_on_a_node_are_refused(address, corpora, tokenizer, out, monkeypatch):
    monkeypatch.setattr("build_index.ray_workers.__version__", "9.9.9")
    with pytest.raises(
        WorkerError, match=r"node [0-9.]+: rest-store is [0-9.]+, expected 9\.9\.9, as in the build"
    ):
        build(options(corpora, tokenizer, out, shard_tokens=1500, memory=MEMORY, ray=address))
    assert not out.exists()


def test_files_that_nodes_do_not_see_are_refused(
    address, corpora, tokenizer, tmp_path, monkeypatch
):
    """Directories that only this process sees stand for those of this machine alone."""
    write_jsonl(tmp_path / "corpus.jsonl", ["text"])
    descriptor = os.open(tmp_path, os.O_RDONLY)
    mine = Path(f"/proc/self/fd/{descriptor}")
    try:
        with pytest.raises(
            WorkerError, match=rf"node .*: the corpus {mine}/corpus\.jsonl is absent"
        ):
            build(
                options(
                    mine / "corpus.jsonl", tokenizer, tmp_path / "ds", memory=MEMORY, ray=address
                )
            )
        monkeypatch.setattr(
            "build_index.staging.building_directory", lambda directory: mine / "building"
        )
        with pytest.raises(
            WorkerError,
            match=rf"node .*: the output {mine}/building/slices is not visible, expected",
        ):
            build(options(corpora, tokenizer, tmp_path / "ds", memory=MEMORY, ray=address))
    finally:
        os.close(descriptor)


def test_shards_larger_than_any_node_are_refused(address):
    with (
        ray_workers.connected(address),
        pytest.raises(
            MemoryBudgetError,
            match=r"--ray: the memory of the largest node is .*, expected at least",
        ),
    ):
        ray_workers.RayWorkers(None, None, 8 << 50)


# --- The same bytes -------------------------------------------------------------------------------


def test_the_bytes_are_those_of_a_build_here(address, corpora, tokenizer, out, expected):
    arguments = [word for path in corpora for word in ("--corpus", str(path))]
    arguments += [
        "--tokenizer",
        str(tokenizer),
        "--out",
        str(out),
        "--shard-tokens",
        "1500",
        "--memory",
        "8G",
    ]
    done = CliRunner().invoke(command, [*arguments, "--ray", address])
    assert done.exit_code == 0, done.output
    assert "in 3 processes" in done.output
    assert contents(out) == expected
    assert leftovers(out) == []
    assert not ray.is_initialized()


def test_an_error_on_a_node_is_that_of_a_build_here(address, tokenizer, tmp_path, out):
    tree = write_files(
        tmp_path / "tree", {f"{number:03}.txt": text for number, text in enumerate(TEXTS)}
    )
    bad = tree / "140 bad.jsonl"
    bad.write_text('{"text": "good"}\n{not JSON\n')
    for place, others in ((out, {}), (out.with_name("on-nodes"), {"ray": address})):
        with pytest.raises(CorpusFormatError, match=r"140 bad\.jsonl:2: content is not JSON"):
            build(options(tree, tokenizer, place, shard_tokens=1500, memory=MEMORY, **others))
        assert leftovers(place) == []
    bad.unlink()


def test_a_build_that_the_cluster_cannot_end_is_resumed_here(
    cluster, corpora, tokenizer, out, expected, monkeypatch
):
    monkeypatch.setattr(ray_workers, "_RETRIES", 0)
    monkeypatch.setattr(ray_workers, "sort_shard", lambda *arguments: os._exit(1))
    with pytest.raises(WorkerError, match=r"shard-0000\d: Ray has not finished the task \("):
        build(
            options(
                corpora, tokenizer, out, shard_tokens=1500, memory=MEMORY, ray=cluster[0].address
            )
        )
    assert finished_shards(out) > 0
    build(options(corpora, tokenizer, out, shard_tokens=1500, memory=MEMORY, resume=True))
    assert contents(out) == expected


def test_a_node_that_dies_costs_its_tasks_only(
    cluster, corpora, tokenizer, out, expected, monkeypatch
):
    """One node of three is killed while it reads."""
    nodes, others = cluster
    submit = ray_workers.RayWorkers.submit
    tasks = []

    def killing(self, task):
        future = submit(self, task)
        tasks.append(task)
        if len(tasks) == 15:
            nodes.remove_node(others[0], allow_graceful=False)
        return future

    monkeypatch.setattr(ray_workers.RayWorkers, "submit", killing)
    build_options = options(
        corpora, tokenizer, out, shard_tokens=1500, memory=MEMORY, ray=nodes.address
    )
    assert build(build_options).workers == 3
    assert len(tasks) > 20
    assert contents(out) == expected
