"""Generation with a datastore behind a service writes the same text, also if it goes away."""

from __future__ import annotations

from pathlib import Path

import pytest

import rest_store
from rest_store.errors import DraftingWarning
from tests.shared.services import running
from tests.shared.strategies import Corpus, write_datastore
from tests.shared.tiny import VOCABULARY, prompts, tiny_model

FIXED = {"max_new_tokens": 60, "do_sample": False}


@pytest.mark.parametrize("send_text", [True, False], ids=["whole text", "its end"])
@pytest.mark.parametrize("way", ["answers", "killed", "stopped", "paused"])
def test_the_text_is_that_of_plain_decoding(tmp_path: Path, way: str, send_text: bool) -> None:
    model = tiny_model("llama")
    plain = model.generate(**prompts(1), **FIXED)[0].tolist()
    # It holds what the model will write, and something else.
    datastore = write_datastore(tmp_path, Corpus(VOCABULARY, [[plain, list(range(VOCABULARY))]]))
    timeout = 10 if way == "answers" else 0.1
    with (
        running(datastore) as service,
        rest_store.DatastoreClient(service.target, send_text=send_text, timeout=timeout) as client,
    ):
        assert client.info().datastores
        generation = rest_store.Generator(model, None, [client], adaptive=False).stream(
            prompts(1), **FIXED
        )
        while len(generation.tokens[0]) < 30:
            next(generation)
        assert generation.statistics.mean_tokens > 2 or way != "answers"
        if way == "answers":
            generation.result()
        else:
            {"killed": service.kill, "stopped": service.stop, "paused": service.pause}[way]()
            says = f"went on without a session, source or reference: {service.target}: "
            with pytest.warns(DraftingWarning, match=says) as issued:
                generation.result()
            assert len(issued) == 1
        assert prompts(1)["input_ids"][0].tolist() + generation.tokens[0] == plain
        drafts = generation.statistics.drafts
        assert (sum(drafts.omissions.values()) > 0) == (way != "answers")
        assert drafts.errors == [], "the session goes on without the source"
