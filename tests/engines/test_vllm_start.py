"""The start of the plug-in in vLLM: settings, and the seam that it checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rest_store.engines.vllm import plugin
from rest_store.errors import ArgumentError, DatastoreNotFoundError, TokenizerMismatchError
from tests.shared.engine import VOCABULARY, Engine, Vllm, cyclic
from tests.shared.strategies import ONE_TO_NINE, Corpus, write_datastore

MODEL = cyclic(VOCABULARY)


def test_without_settings_vllm_is_left_alone(vllm: Vllm) -> None:
    runner = vllm.modules["vllm.v1.worker.gpu.model_runner"]
    assert not hasattr(
        runner.init_speculator(vllm.config(None), torch.device("cpu"), None), "rest_store"
    )
    before = runner.init_speculator
    plugin.install()
    assert runner.init_speculator is before, "wrapped once"


def test_a_pipeline_is_refused_by_name(vllm: Vllm) -> None:
    from vllm.engine.arg_utils import EngineArgs

    for settings in (None, {}):
        config = vllm.config(settings)
        config.parallel_config.pipeline_parallel_size = 2
        if settings is None:
            assert EngineArgs(config).create_engine_config() is config
            continue
        with pytest.raises(ArgumentError) as raised:
            EngineArgs(config).create_engine_config()
        expected = "additional_config.rest_store: pipeline_parallel_size is 2, expected 1"
        assert str(raised.value) == expected


def test_a_scheduler_that_differs_is_left_alone_by_name(
    start: Callable[..., Vllm], caplog: pytest.LogCaptureFixture
) -> None:
    vllm = start(installed=False)
    scheduler = vllm.modules["vllm.v1.core.sched.scheduler"].Scheduler
    scheduler.schedule = lambda scheduler_output: None
    plugin._warn_once.cache_clear()
    plugin.install()
    assert not hasattr(scheduler.schedule, "__wrapped__")
    assert "requests cannot switch drafts off in this vLLM: vllm.v1.core.sched" in caplog.text


def test_settings_are_checked_at_the_start(vllm: Vllm, tmp_path: Path, place: str) -> None:
    with pytest.raises(ArgumentError, match=r"additional_config\.rest_store: a key is 'datastors'"):
        Engine(vllm, {"datastors": [place]}, MODEL)
    with pytest.raises(ArgumentError, match="lag is 1, expected true or false"):
        Engine(vllm, {"lag": 1}, MODEL)
    with pytest.raises(DatastoreNotFoundError):
        Engine(vllm, {"datastores": [str(tmp_path / "absent")]}, MODEL)
    (tmp_path / "other").mkdir()
    other = write_datastore(tmp_path / "other", Corpus(301, ONE_TO_NINE.shards))
    with pytest.raises(TokenizerMismatchError):
        Engine(vllm, {"datastores": [str(other)]}, MODEL)


class OtherSpeculator:
    def propose(self, input_batch: Any, num_sampled: Any) -> None:
        """Propose with other parameters than before."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("requests", "vllm.v1.worker.gpu.model_runner:GPUModelRunner.add_requests is absent"),
        ("states", "vllm.v1.worker.gpu.states:RequestState.all_token_ids is absent; "),
        (
            "propose",
            (
                "OtherSpeculator.propose takes self, input_batch, num_sampled, expected self,"
                " input_batch, attn_"
            ),
        ),
    ],
)
def test_a_seam_that_has_changed_is_left_alone(
    vllm: Vllm,
    place: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    message: str,
) -> None:
    runner = vllm.modules["vllm.v1.worker.gpu.model_runner"]
    if change == "requests":
        del runner.GPUModelRunner.add_requests
    elif change == "states":
        monkeypatch.setattr(
            vllm.modules["vllm.v1.worker.gpu.states"], "RequestState", OtherSpeculator
        )
    else:
        vllm.head = lambda states: OtherSpeculator()
    speculator = runner.init_speculator(
        vllm.config({"datastores": [place]}), torch.device("cpu"), None
    )
    assert not hasattr(speculator, "rest_store")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"rest-store: vLLM drafts alone: {message}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"use_v2_model_runner": False}, "not in the V1 model runner"),
        ({"speculative_config": None}, "no speculative configuration"),
    ],
)
def test_one_line_says_why_settings_are_not_used(
    vllm: Vllm, caplog: pytest.LogCaptureFixture, change: dict[str, Any], reason: str | None
) -> None:
    plugin._warn_once.cache_clear()
    arguments = vllm.modules["vllm.engine.arg_utils"].EngineArgs
    for settings in (None, {}, {}):
        config = dataclasses.replace(vllm.config(settings), **change)
        assert arguments(config).create_engine_config() is config
    said = [record.getMessage() for record in caplog.records]
    assert said == ([f"rest-store: {reason}: no drafts, nothing is remembered"] if reason else [])
    with pytest.raises(ArgumentError, match=r"additional_config\.rest_store: a key is 'datastors'"):
        arguments(vllm.config({"datastors": []})).create_engine_config()


def test_a_vllm_without_the_seam_is_left_alone(
    start: Callable[..., Vllm], caplog: pytest.LogCaptureFixture
) -> None:
    vllm = start(installed=False)
    package = vllm.modules["vllm.v1.worker.gpu.spec_decode"]
    package.init_speculator = native = lambda config: None
    plugin.install()
    assert package.init_speculator is native
    assert "rest-store: not in this vLLM: " in caplog.text
    assert "takes config, expected vllm_config, device, req_states" in caplog.text
