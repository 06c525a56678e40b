"""Kubernetes knows the manifests of deploy/kubernetes, and they and their command agree."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from rest_store.service.channel import target_groups
from rest_store.service.server.serve_command import serve
from tests.shared.pages import ROOT

MANIFESTS = ROOT / "deploy/kubernetes"
PROGRAM = "/opt/rest-store/bin/rest-store"

pytestmark = pytest.mark.skipif(
    not MANIFESTS.exists(), reason="an installed package without its deployment"
)


@pytest.fixture(scope="module")
def kinds() -> dict[str, dict[str, Any]]:
    """The objects by kind, of which there is one each."""
    objects = [
        one
        for path in sorted(MANIFESTS.glob("*.yaml"))
        for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]
    assert {(one["apiVersion"], one["kind"]) for one in objects} == {
        ("apps/v1", "StatefulSet"),
        ("v1", "Service"),
        ("v1", "ConfigMap"),
        ("policy/v1", "PodDisruptionBudget"),
    }
    return {one["kind"]: one for one in objects}


@pytest.fixture(scope="module")
def container(kinds: dict[str, Any]) -> dict[str, Any]:
    (only,) = kinds["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    return dict(only)


def partitions_in(container: dict[str, Any]) -> int:
    (value,) = (one["value"] for one in container["env"] if one["name"] == "PARTITIONS")
    return int(value)


def options_of(container: dict[str, Any], ordinal: int) -> dict[str, Any]:
    """Return the options of `rest-store serve` in the pod of an ordinal.

    Fails if the command would refuse an option.
    """
    shell, flag, line = container["command"]
    assert line.startswith(f"exec {PROGRAM} serve ")
    printed = subprocess.run(
        [shell, flag, line.replace(f"exec {PROGRAM} serve", r"printf '%s\n'")],
        env={**os.environ, "PARTITIONS": str(partitions_in(container)), "ORDINAL": str(ordinal)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return serve.make_context("serve", printed).params


@pytest.mark.parametrize("version", ["1.28", kubernetes_validate.latest_version()])
def test_kubernetes_knows_every_field(kinds: dict[str, Any], version: str) -> None:
    for one in kinds.values():
        kubernetes_validate.validate(one, version, strict=True)


def test_each_partition_has_its_replicas(kinds: dict[str, Any], container: dict[str, Any]) -> None:
    number = kinds["StatefulSet"]["spec"]["replicas"]
    partitions = partitions_in(container)
    served = [str(options_of(container, ordinal)["partition"]) for ordinal in range(number)]
    assert served == [f"{ordinal % partitions + 1}/{partitions}" for ordinal in range(number)]
    assert number == 2 * partitions


def test_clients_find_every_pod_in_its_partition(
    kinds: dict[str, Any], container: dict[str, Any]
) -> None:
    name = kinds["StatefulSet"]["metadata"]["name"]
    service = kinds["Service"]["metadata"]["name"]
    (port,) = (one["port"] for one in kinds["Service"]["spec"]["ports"] if one["name"] == "grpc")
    number = kinds["StatefulSet"]["spec"]["replicas"]
    partitions = partitions_in(container)
    assert target_groups(kinds["ConfigMap"]["data"]["target"]) == [
        [f"{name}-{ordinal}.{service}:{port}" for ordinal in range(partition, number, partitions)]
        for partition in range(partitions)
    ]


def test_the_objects_select_the_same_pods(kinds: dict[str, Any]) -> None:
    stateful, service, budget = (
        kinds[kind]["spec"] for kind in ("StatefulSet", "Service", "PodDisruptionBudget")
    )
    labels = stateful["template"]["metadata"]["labels"]
    assert stateful["selector"]["matchLabels"] == labels
    assert service["selector"] == budget["selector"]["matchLabels"] == labels
    (rule,) = stateful["template"]["spec"]["affinity"]["podAntiAffinity"].popitem()[1]
    assert rule["labelSelector"]["matchLabels"] == labels
    assert stateful["serviceName"] == kinds["Service"]["metadata"]["name"]
    assert service["clusterIP"] == "None", "headless"
    assert budget["maxUnavailable"] == 1


def test_probes_and_services_reach_what_is_listened_on(
    kinds: dict[str, Any], container: dict[str, Any]
) -> None:
    options = options_of(container, 0)
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert options["listen"] == (f"0.0.0.0:{ports['grpc']}",)
    assert options["metrics"] == f"0.0.0.0:{ports['metrics']}"
    assert {one["targetPort"] for one in kinds["Service"]["spec"]["ports"]} == set(ports)
    for probe, path in (("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}
    assert options["insecure"]
    grace = kinds["StatefulSet"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert options["drain_seconds"] < grace


def test_files_come_from_volumes_that_are_read_only(
    kinds: dict[str, Any], container: dict[str, Any]
) -> None:
    pod = kinds["StatefulSet"]["spec"]["template"]["spec"]
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    assert {one["name"] for one in pod["volumes"]} == set(mounts)
    assert all(one["readOnly"] for one in mounts.values())
    options = options_of(container, 0)
    (datastore,) = map(Path, options["datastores"])
    assert datastore.parent == Path(mounts["datastores"]["mountPath"])
    assert options["token_file"].parent == Path(mounts["secrets"]["mountPath"])
    assert container["securityContext"]["readOnlyRootFilesystem"]


def test_the_image_is_that_of_the_dockerfile(
    kinds: dict[str, Any], container: dict[str, Any]
) -> None:
    dockerfile = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
    assert f'ENTRYPOINT ["{PROGRAM}", "serve"]' in dockerfile
    pod = kinds["StatefulSet"]["spec"]["template"]["spec"]
    assert f"USER {pod['securityContext']['runAsUser']}\n" in dockerfile
    assert f'version = "{container["image"].partition(":")[2]}"' in (
        ROOT / "pyproject.toml"
    ).read_text("utf-8")


@pytest.mark.parametrize("version", ["1.28", kubernetes_validate.latest_version()])
def test_a_live_datastore_has_one_pod_and_a_volume_of_its_own(version: str) -> None:
    service, stateful = yaml.safe_load_all(
        (MANIFESTS / "live/live.yaml").read_text(encoding="utf-8")
    )
    for one in (service, stateful):
        kubernetes_validate.validate(one, version, strict=True)
    (claim,) = stateful["spec"]["volumeClaimTemplates"]
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    assert (stateful["spec"]["replicas"], claim["spec"]["accessModes"]) == (1, ["ReadWriteOncePod"])
    assert service["spec"]["selector"] == stateful["spec"]["template"]["metadata"]["labels"]
    assert container["command"][:2] == [PROGRAM, "serve"]
    options = serve.make_context("serve", container["command"][2:]).params
    assert [name for name, mount in mounts.items() if not mount.get("readOnly")] == [
        claim["metadata"]["name"]
    ]
    (place,) = options["live"]
    assert Path(place.partition("=")[2]).parent == Path(mounts["live"]["mountPath"])
    assert Path(options["datastores"][0]).parent == Path(mounts["datastores"]["mountPath"])
