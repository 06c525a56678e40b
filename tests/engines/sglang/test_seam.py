"""SGLang is as the table of the plug-in says, and so are the stand-ins of tests without it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from rest_store.engines.sglang.seam import DEPENDENCIES
from rest_store.errors import ArgumentError
from rest_store.seam import attributes_of
from tests.engines.sglang import scheduler
from tests.engines.sglang.engine import IN_SGLANG


@pytest.mark.parametrize(
    "definition",
    [scheduler.Req, scheduler.SamplingParams, scheduler.ScheduleBatch, scheduler.NgramVerifyInput],
    ids=lambda definition: definition.__name__,
)
def test_stand_ins_have_nothing_that_the_table_lacks(definition: Any) -> None:
    """The table therefore has all that drafts for batches use in the tests without SGLang."""
    listed = {part.place.partition(":")[2] for part in DEPENDENCIES}
    assert {f"{definition.__name__}.{field.name}" for field in fields(definition)} <= listed
    assert attributes_of(definition) == {field.name for field in fields(definition)}


@pytest.fixture
def worker(sglang_on_cpu: None) -> Any:
    from rest_store.engines.sglang.worker import RestStoreWorker

    return RestStoreWorker


class TestInSglang:
    pytestmark = IN_SGLANG

    def test_it_has_what_the_table_lists(self, worker: Any) -> None:
        from rest_store.engines.sglang.seam import all_differences

        assert all_differences(worker) == []

    def test_another_worker_is_refused_by_what_differs(
        self, worker: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from sglang.srt.speculative import ngram_worker
        from sglang.srt.speculative.ngram_worker import NGRAMWorker

        from rest_store.engines.sglang.plugin import _require_seam

        def begin(
            self: Any, server_args: Any, gpu_id: Any, nccl_port: Any, target_worker: Any
        ) -> None:
            self.server_args = self.cache_of_trees = server_args

        def clear_cache_pool(self: Any) -> None:
            self.ngram_corpus.forget()

        monkeypatch.setattr(NGRAMWorker, "__init__", begin)
        monkeypatch.setattr(NGRAMWorker, "clear_cache_pool", clear_cache_pool)
        monkeypatch.delattr(ngram_worker.NGRAMWorker, "_prepare_draft_tokens")
        with pytest.raises(ArgumentError) as raised:
            _require_seam()
        assert str(raised.value).startswith(
            "SGLang 0.5.23 differs from 0.5.23, on which the plug-in relies: "
        )
        from rest_store.engines.sglang.seam import all_differences

        phrases = all_differences(worker)
        assert (
            "sglang.srt.speculative.ngram_worker:NGRAMWorker._prepare_draft_tokens is absent"
            in phrases
        )
        assert "NGRAMWorker.__init__ sets cache_of_trees" in phrases
        assert "NGRAMWorker.__init__ no longer sets topk" in phrases
        assert "NGRAMWorker.clear_cache_pool uses ngram_corpus.forget" in phrases

    def test_corpora_of_its_own_lookup_are_refused_by_name(self, worker: Any) -> None:
        """`ExternalCorpusManager` refuses them, which the scheduler has for host drafters."""
        from sglang.srt.managers.io_struct import (
            ListExternalCorporaReqInput,
            RemoveExternalCorpusReqInput,
        )
        from sglang.srt.speculative.external_corpus_manager import ExternalCorpusManager

        one = object.__new__(worker)
        manager = ExternalCorpusManager(one, lambda output, request: None)
        message = "REST_STORE drafts from datastores: name them in REST_STORE_SGLANG"
        for answered in (
            manager.remove(RemoveExternalCorpusReqInput(corpus_id="a")),
            manager.list(ListExternalCorporaReqInput()),
        ):
            assert not answered.success
            assert answered.message == message
        for refused in (
            lambda: one.add_external_corpus("a", [[1]]),
            lambda: one.commit_corpus_load("a", 1),
        ):
            with pytest.raises(ArgumentError, match=message):
                refused()
