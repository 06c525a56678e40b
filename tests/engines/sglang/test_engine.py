"""SGLang on a CPU writes the texts that it writes without drafts, whatever happens."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import TokenTree
from rest_store.engines.sglang.verify_arrays import verify_arrays
from rest_store.errors import RestStoreError, TokenizerMismatchError
from rest_store.live.export import export
from rest_store.live.live_datastore import LiveDatastore
from tests.engines.sglang.engine import IN_SGLANG, answers
from tests.shared.builds import build_quick, documents, write_jsonl
from tests.shared.tiny import text_tokenizer

pytestmark = IN_SGLANG
GREEDY = {"temperature": 0.0, "ignore_eos": True}
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "is_the_first_of_them": {"type": "boolean"},
            "preferred_color": {"enum": ["vermilion", "aquamarine"]},
        },
        "required": ["is_the_first_of_them", "preferred_color"],
        "additionalProperties": False,
    }
)

REGEX = r"\{is_the_first_of_them: (true|false), preferred_color: (vermilion|aquamarine)\}"


def output(answer: dict[str, Any]) -> list[int]:
    ids: list[int] = answer["output_ids"]
    return ids


@pytest.fixture(scope="module")
def rounds(model: Path) -> list[list[dict[str, Any]]]:
    """Rounds of requests of different lengths, one with an end token, and one with a grammar."""
    chance = np.random.default_rng(0)
    vocabulary = len(text_tokenizer())
    lengths = [(7, 90), (60, 80), (14, 12), (9, 70), (100, 60), (5, 100), (30, 1)]
    together = [
        {
            "input_ids": chance.integers(3, vocabulary, prompt).tolist(),
            "sampling_params": {**GREEDY, "max_new_tokens": most},
        }
        for prompt, most in lengths
    ]
    ended = {**together[0], "sampling_params": {**GREEDY, "max_new_tokens": 90}}
    grammar = {
        **together[3],
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 90, "json_schema": SCHEMA},
    }
    regex = {
        **together[4],
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 90, "regex": REGEX},
    }
    return [together, [ended], [grammar, regex]]


@pytest.fixture(scope="module")
def plain(
    model: Path, rounds: list[list[dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """What SGLang answers without drafts."""
    return answers(tmp_path_factory.mktemp("plain") / "run", {"model_path": str(model)}, rounds)


@pytest.fixture(scope="module")
def datastore(
    model: Path, rounds: Any, plain: Any, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What will be written, with wrong continuations that are more frequent than the right ones."""
    folder = tmp_path_factory.mktemp("datastore")
    chance = np.random.default_rng(1)
    build_quick(write_jsonl(folder / "texts.jsonl", documents(20)), model, folder / "empty")
    like = Datastore.open(folder / "empty")
    texts = []
    for request, answer in zip(rounds[0], plain[0], strict=True):
        right = np.array([*request["input_ids"], *output(answer)])
        texts.append(right)
        for place in range(len(request["input_ids"]) + 3, right.size, 7):
            wrong = right[: place + 4].copy()
            wrong[place] = chance.integers(3, like.vocabulary_size)
            texts += [np.append(wrong[-24:], tail) for tail in (3, 4)]
    with LiveDatastore.open(folder / "live", tokenizer=like.tokenizer) as live:
        live.add(texts)
        return export(live, folder / "written").path


@pytest.fixture(scope="module")
def drafted(
    model: Path, rounds: Any, datastore: Path, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """The answers with drafts, and the place of the run.

    The cache has no room for four of the longest requests.
    """
    place = tmp_path_factory.mktemp("drafted")
    settings = {"datastores": [str(datastore)], "remember": str(place / "memory")}
    server = {"model_path": str(model), "max_total_tokens": 340, "schedule_conservativeness": 0.1}
    return answers(place / "run", server, rounds, settings), place


@pytest.mark.parametrize("round", [0, 1, 2], ids=["several", "again", "grammar"])
def test_texts_are_those_without_drafts(plain: Any, drafted: Any, round: int) -> None:
    assert [output(one) for one in drafted[0][round]] == [output(one) for one in plain[round]]


def test_right_branches_are_accepted_after_wrong_ones_and_requests_were_put_off(
    drafted: Any,
) -> None:
    long = [
        one["meta_info"] for one in drafted[0][0] if one["meta_info"]["completion_tokens"] >= 60
    ]
    assert sum(one["completion_tokens"] for one in long) > 3 * sum(
        one["spec_verify_ct"] for one in long
    )
    log = (drafted[1] / "run" / "log").read_text()
    assert "retract" in log.lower()
    assert "rest-store: no drafts" not in log


def test_forced_text_is_drafted(plain: Any, drafted: Any) -> None:
    """The request's own grammar knows each token for which plain SGLang takes a pass."""
    answer = drafted[0][2][1]
    assert re.fullmatch(REGEX, answer["text"])
    facts = answer["meta_info"]
    assert facts["completion_tokens"] > 3 * facts["spec_verify_ct"]
    assert facts["completion_tokens"] == plain[2][1]["meta_info"]["completion_tokens"]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="each rank has a core")
def test_two_ranks_verify_what_the_first_one_drafts(
    model: Path, rounds: Any, datastore: Path, tmp_path: Path
) -> None:
    server = {"model_path": str(model), "tp_size": 2}
    few = [rounds[0][:3]]
    [plain] = answers(tmp_path / "plain", server, few)
    settings = {"datastores": [str(datastore)], "remember": str(tmp_path / "memory")}
    first, again = answers(tmp_path / "drafted", server, few * 2, settings)
    assert (
        [output(one) for one in first]
        == [output(one) for one in again]
        == [output(one) for one in plain]
    )
    assert all(
        4 * one["meta_info"]["spec_verify_ct"] < len(output(one))
        for one in again
        if len(output(one)) >= 60
    )
    with LiveDatastore.open(tmp_path / "memory", read_only=True) as live:
        assert live.info().document_count == len(plain), "each output is remembered once"


def test_outputs_are_remembered(model: Path, rounds: Any, drafted: Any) -> None:
    with LiveDatastore.open(drafted[1] / "memory", read_only=True, tokenizer=str(model)) as live:
        for request, answer in zip(rounds[0], drafted[0][0], strict=True):
            if len(output(answer)) > 4:
                text = [*request["input_ids"][-16:], *output(answer)]
                assert live.longest_suffix_match(text, max_suffix=64).length == min(64, len(text))


@pytest.mark.usefixtures("sglang_on_cpu")
def test_links_that_sglang_derives_are_those_of_the_trees() -> None:
    """SGLang's own tests of its kernel show that the device derives the same from the mask."""
    from sglang.srt.speculative.ngram_worker import _derive_tree_links

    chance = np.random.default_rng(2)
    for size in range(8):
        tree = TokenTree(
            range(size), [int(chance.integers(-1, node)) for node in range(size)], [1] * size
        )
        _, mask = verify_arrays([1], [tree], 8)
        next_token, next_sibling = (links[0].tolist() for links in _derive_tree_links(mask, 1, 8))
        parents = [-1, *(tree.parents + 1).tolist(), *[-1] * (7 - size)]
        for node in range(8):
            children = [child for child in range(8) if parents[child] == node]
            assert next_token[node] == (children[0] if children else -1)
            later = [other for other in range(node + 1, 8) if parents[other] == parents[node] >= 0]
            assert next_sibling[node] == (later[0] if later else -1)
        links = {*next_token, *next_sibling}
        assert not links & set(range(1 + size, 8)), "nothing leads to padding"


@pytest.mark.usefixtures("sglang_on_cpu")
@pytest.mark.parametrize(
    ("settings", "server", "message"),
    [
        ({"datastore": ["x"]}, {}, "REST_STORE_SGLANG: a key is 'datastore'"),
        ({"datastores": []}, {"pp_size": 2}, "REST_STORE: --pp-size is 2, expected 1"),
        ({"datastores": []}, {"page_size": 16}, "REST_STORE: --page-size is 16, expected 1, or "),
        # Chains.
        ({"datastores": []}, {"page_size": 16, "speculative_ngram_max_bfs_breadth": 1}, ""),
        (
            {"datastores": []},
            {"speculative_ngram_external_corpus_path": "texts.jsonl"},
            "REST_STORE: --speculative-ngram-external-corpus-path is texts.jsonl, expected absent: "
            "REST_STORE drafts from the datastores that REST_STORE_SGLANG names",
        ),
        (
            {"datastores": []},
            {"speculative_ngram_capacity": 9},
            "REST_STORE: --speculative-ngram-capacity is 9, expected",
        ),
        ({"datastores": ["/nonexistent/code.ds"]}, {}, "/nonexistent/code.ds: "),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(
    settings: dict[str, Any], server: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REST_STORE_SGLANG", json.dumps(settings))
    with pytest.raises(RestStoreError, match=re.escape(message)) if message else nullcontext():
        check_arguments(**server)


def check_arguments(**server: Any) -> None:
    """Have the algorithm check SGLang's arguments, those that are named here and the defaults."""
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from rest_store.engines.sglang.plugin import NAME, register

    if NAME not in str(vars(sys.modules["sglang.srt.speculative.spec_registry"])["_REGISTRY"]):
        register()
    own = {
        "model_path": "absent",
        "device": "cpu",
        "page_size": 1,
        "attention_backend": "torch_native",
    }
    SpeculativeAlgorithm.from_string(NAME).handle_server_args(ServerArgs(**own | server))


@pytest.mark.usefixtures("sglang_on_cpu")
@pytest.mark.parametrize("name", ["datastores", "remember"])
def test_datastores_of_another_tokenizer_are_refused_before_the_model_is_loaded(
    model: Path, datastore: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the tokenizer of this model is there."""
    (tmp_path / "model").mkdir()
    for file in model.glob("*"):
        if file.suffix == ".json":
            shutil.copy(file, tmp_path / "model")
    place = datastore
    if name == "remember":
        place = tmp_path / "live"
        LiveDatastore.open(place, tokenizer=Datastore.open(datastore).tokenizer).close()
    settings = {name: [str(place)] if name == "datastores" else str(place)}
    monkeypatch.setenv("REST_STORE_SGLANG", json.dumps(settings))
    check_arguments(model_path=str(tmp_path / "model"))
    tokenizer = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append(
        {**tokenizer["added_tokens"][-1], "id": 5000, "content": "<|another|>"}
    )
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(TokenizerMismatchError, match="a vocabulary of 373, expected 372"):
        check_arguments(model_path=str(tmp_path / "model"))


def test_the_log_says_at_the_start_what_is_drafted_from(drafted: Any, datastore: Path) -> None:
    log = (drafted[1] / "run" / "log").read_text()
    assert log.count("rest-store: drafts from ") == 1
    assert f"rest-store: drafts from {datastore}, outputs, prompt, logits; trees of 8 nodes" in log
    assert log.count("rest-store: on cpu, SGLang verifies greedily, requests that sample, too") == 1
