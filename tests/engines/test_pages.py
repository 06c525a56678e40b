"""Tables of the pages on engines name all parameters that are tried or refused there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from rest_store.engines.sglang.seam import DEPENDENCIES as OF_SGLANG
from rest_store.engines.sglang.seam import NGRAM_ARGUMENTS
from rest_store.engines.vllm.seam import DEPENDENCIES as OF_VLLM
from tests.engines.sglang import test_parameters as in_sglang
from tests.engines.vllm import test_parameters as in_vllm
from tests.shared.pages import PAGES, section

SGLANG = PAGES["docs/how-to/sglang.md"]
VLLM = PAGES["docs/how-to/vllm.md"]


def rows(page: str) -> dict[str, str]:
    """Return the table of features: what is said of each."""
    lines = [
        line.strip("|").split("|")
        for line in section(page, "What works").splitlines()
        if line.startswith("| ")
    ]
    return {feature.strip(): said.strip() for feature, said in lines[2:]}


def names(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def tried(requests: Mapping[str, Mapping[str, Any]]) -> set[str]:
    return {name for parameters in requests.values() for name in parameters}


@pytest.mark.parametrize(
    ("page", "requests"), [(VLLM, in_vllm.ASKED), (SGLANG, in_sglang.ASKED)], ids=["vLLM", "SGLang"]
)
def test_each_parameter_that_is_tried_has_a_line(
    page: str, requests: Mapping[str, Mapping[str, Any]]
) -> None:
    assert tried(requests) <= names(" ".join(rows(page)))


def test_what_vllm_refuses_has_a_line() -> None:
    [said] = [
        said
        for feature, said in rows(VLLM).items()
        if names(feature) == tried(in_vllm.REFUSED) - {"temperature"}
    ]
    assert "refused by vLLM" in said


def test_penalties_have_no_draft_nodes_in_sglang() -> None:
    requests = {name: in_sglang.ASKED[name] for name in [*in_sglang.PENALIZED, "fewest tokens"]}
    without = " ".join(
        feature for feature, said in rows(SGLANG).items() if "without draft nodes" in said
    )
    assert names(without) == tried(requests) - {"stop_token_ids"}


def test_arguments_that_sglang_alone_has_a_use_for_are_named() -> None:
    for name in NGRAM_ARGUMENTS:
        assert f"-{name.removeprefix('speculative_ngram_').replace('_', '-')}`" in SGLANG


@pytest.mark.parametrize(
    ("page", "name", "parts"), [(VLLM, "vllm", OF_VLLM), (SGLANG, "sglang", OF_SGLANG)]
)
def test_pages_say_where_the_tables_are(page: str, name: str, parts: tuple[Any, ...]) -> None:
    assert f"`rest_store/engines/{name}/seam.py`" in page
    assert len({part.place for part in parts}) == len(parts)
