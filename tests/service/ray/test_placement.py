"""Where replicas run, and the files that say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rest_store.service.client.part_groups import part_groups

from rest_store.errors import ServeError
from rest_store.service.ray.placement import Node, placement
from rest_store.service.ray.published_files import write_metrics, write_parts

NODES = [Node(name, f"10.0.0.{place}") for place, name in enumerate("abcde")]


@pytest.mark.parametrize("machines", range(1, 6))
@pytest.mark.parametrize(("parts", "replicas"), [(1, 1), (4, 2), (3, 3), (2, 5)])
def test_machines_share_the_work_and_the_replicas_of_a_part_keep_apart(
    machines: int, parts: int, replicas: int
) -> None:
    placed = placement(NODES[:machines], parts, replicas)
    assert [(one.part, one.number) for one in placed] == [
        (part, number) for part in range(1, parts + 1) for number in range(1, replicas + 1)
    ]
    of_machines = [sum(one.node == node for one in placed) for node in NODES[:machines]]
    assert max(of_machines) - min(of_machines) <= 1
    for part in range(1, parts + 1):
        assert len({one.node for one in placed if one.part == part}) == min(machines, replicas)


def test_the_file_says_where_each_part_is(tmp_path: Path) -> None:
    file = tmp_path / "parts.toml"
    for groups in ([["a:1", "b:2"], ["c:3"]], [["[::1]:4", "b:2"], ["unix:/d"]]):
        write_parts(file, groups)
        assert part_groups(str(file)) == groups
    assert list(tmp_path.iterdir()) == [file], "nothing is left beside it"


def test_prometheus_finds_the_metrics_of_each_replica(tmp_path: Path) -> None:
    """In the format of `file_sd_configs`."""
    file = tmp_path / "metrics.json"
    for targets in (["a:1", "b:2"], ["[::1]:4", "b:2"]):
        write_metrics(file, zip(placement(NODES, 1, 2), targets, strict=True))
        assert json.loads(file.read_text()) == [
            {"targets": [targets[0]], "labels": {"part": "1", "replica": "1"}},
            {"targets": [targets[1]], "labels": {"part": "1", "replica": "2"}},
        ]
    assert list(tmp_path.iterdir()) == [file], "nothing is left beside it"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match=r"absent/parts.toml: the parts file cannot be written \(No such file"):
        write_parts(tmp_path / "absent" / "parts.toml", [["a:1"]])
    with pytest.raises(ServeError, match=r"absent/metrics.json: the metrics file cannot be written \(No such file"):
        write_metrics(tmp_path / "absent" / "metrics.json", [])
