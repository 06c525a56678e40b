"""Beside EAGLE's code with random weights, the head drafts as without the plug-in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engines.vllm.engine import IN_VLLM, Request, answers, counted, drafter_of, engine

pytestmark = IN_VLLM


@pytest.fixture(scope="module")
def head(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head of one layer, the first one of the model."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("head")
    layer = "model.layers.0."
    config = json.loads((model / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    weights = {
        name.removeprefix("model."): tensor
        for name, tensor in load_file(model / "model.safetensors").items()
        if name.startswith(layer) and "input_layernorm" not in name
    }
    half = 0.5 * torch.eye(config["hidden_size"])
    weights["fc.weight"] = torch.cat([half, half], dim=1)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_texts_are_those_of_plain_vllm(
    model: Path, head: Path, datastore: Path, requests: list[Request], texts: list[list[int]]
) -> None:
    """The head is hardly ever right, so that most of what is accepted is from the datastore."""
    with engine(model, {"datastores": [str(datastore)]}, head=head) as llm:
        assert answers(llm, requests[:6]) == texts[:6]
        accepted = counted(llm, "spec_decode_num_accepted_tokens")
        drafted = counted(llm, "spec_decode_num_draft_tokens")
        totals = drafter_of(llm).metrics.totals()
    assert not [label for name, label in totals if name == "errors"]
    assert 0.9 * accepted < totals["accepted_tokens", ""] <= accepted
    assert 50 < totals["draft_tokens", ""] < drafted
