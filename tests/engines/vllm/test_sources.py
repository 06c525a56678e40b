"""Sources beside frozen datastores: a service that dies, and a live datastore that remembers."""

from __future__ import annotations

import shutil
from pathlib import Path

from rest_store.live.live_datastore import LiveDatastore
from tests.engines.vllm.engine import IN_VLLM, Request, answers, counted, engine
from tests.shared.live import until
from tests.shared.services import running

pytestmark = IN_VLLM


def test_a_service_that_dies_costs_drafts_and_no_text(
    model: Path, datastore: Path, requests: list[Request], texts: list[list[int]]
) -> None:
    settings = {"drafting": "remote", "source_timeout": 60}
    with (
        running(datastore) as service,
        engine(model, settings | {"datastores": [service.target]}) as llm,
    ):
        assert answers(llm, requests[:4]) == texts[:4]
        drafted = counted(llm, "spec_decode_num_accepted_tokens")
        assert drafted > 0
        service.kill()
        assert answers(llm, requests) == texts


def test_answers_are_remembered(
    model: Path, requests: list[Request], texts: list[list[int]], tmp_path: Path
) -> None:
    """Finished and aborted requests draft for later ones while the engine runs."""
    with engine(model, {"remember": str(tmp_path / "live")}) as llm:
        assert answers(llm, requests, {5: 30})[0] == texts[0]
        with LiveDatastore.open(tmp_path / "live", read_only=True) as live:
            for text in texts:
                # Of the last tokens before the longest length, vLLM asks for no drafts.
                beginning = text[:10]
                until(lambda beginning=beginning: len(beginning) < 10 or live.count(beginning))
        before = counted(llm, "spec_decode_num_accepted_tokens")
        assert answers(llm, requests) == texts
        again = counted(llm, "spec_decode_num_accepted_tokens") - before
    assert again > 2 * before
    assert again > 200
    shutil.copytree(tmp_path / "live", tmp_path / "kept")
    with engine(model, {"datastores": [str(tmp_path / "kept")]}) as llm:
        assert answers(llm, requests) == texts
        assert counted(llm, "spec_decode_num_accepted_tokens") > 200
