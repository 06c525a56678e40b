"""The generated messages are those of the definition in proto/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rest_store

ROOT = Path(rest_store.__file__).parents[1]
DEFINITION = ROOT / "proto/rest_store/v1/datastore.proto"
GENERATED = ["datastore_pb2.py", "datastore_pb2.pyi", "datastore_pb2_grpc.py"]


@pytest.mark.skipif(not DEFINITION.exists(), reason="an installed package without its definition")
def test_the_generated_code_is_that_of_the_definition(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="of the extra dev, which pins it")
    options = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"-I{ROOT / 'proto'}",
        *options,
        str(DEFINITION),
    ]
    subprocess.run(command, check=True)
    for name in GENERATED:
        made = (tmp_path / "rest_store/v1" / name).read_text()
        committed = (ROOT / "rest_store/v1" / name).read_text()
        assert made == committed, f"rest_store/v1/{name} is behind its definition: run `make proto`"
