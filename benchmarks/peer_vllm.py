"""One engine of vLLM with one way of drafting, for `bench_vllm.py`; runs where vLLM is installed.

Requests go through the engine's own steps, so many at a time, in this process. A step's outputs say how many tokens
each row got, and a clock around the drafter's `propose` how long it took.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind

from rest_store.drafting.output_document import OutputDocument
from rest_store.live.live_datastore import LiveDatastore

Text = tuple[list[int], list[int]]  # prompt and output


class Engine:
    """An engine, its drafter, and what the drafter knows.

    Args:
        model: directory.
        speculative: the speculative configuration; None: no drafts.
        settings: of our drafter, if it is ours.
        rows: most requests at once.
        length: of the longest text, with its prompt.
    """

    def __init__(
        self, model: str, speculative: dict[str, Any] | None, settings: dict[str, Any], rows: int, length: int
    ) -> None:
        self._llm = LLM(
            model,
            dtype="float32",
            enforce_eager=True,
            enable_prefix_caching=False,  # later rounds would read no prompts
            kv_cache_memory_bytes=512 << 20,
            max_num_seqs=rows,
            max_model_len=length,
            max_num_batched_tokens=length,
            speculative_config=speculative,
            additional_config={"rest_store": settings} if settings else {},
        )
        self._remember, self._logits = settings.get("remember"), settings.get("logits")
        self._seconds = 0.0  # in `propose`
        self._drafted = 0
        self._requests = 0

    def answer(self, prompts: list[list[int]], rows: int, sampling: dict[str, Any], most: int) -> dict[str, Any]:
        """Answer prompts, `rows` at a time; return the texts and what it took.

        The first token of a text comes from reading its prompt, with which no draft can help: "row steps" are those of
        all rows after it. Steps in which no prompt is read are "decoding".
        """
        engine = self._llm.llm_engine
        texts: list[list[int]] = [[] for _ in prompts]
        self._drafted, seconds = 0, self._propose_seconds()
        waiting = list(range(len(prompts)))
        unread: set[int] = set()  # requests without a token
        row_steps = steps = decoding_tokens = 0
        decoding_seconds = 0.0
        began = time.perf_counter()
        while waiting or engine.has_unfinished_requests():
            while waiting and engine.get_num_unfinished_requests() < rows:
                place = waiting.pop(0)
                params = SamplingParams(
                    **sampling,
                    max_tokens=most,
                    detokenize=False,
                    output_kind=RequestOutputKind.DELTA,
                )
                self._requests += 1
                engine.add_request(f"{place} {self._requests}", {"prompt_token_ids": prompts[place]}, params)
                unread.add(place)
            steps += 1
            is_decoding = not unread
            began_step = time.perf_counter()
            outputs = engine.step()
            if is_decoding:
                decoding_seconds += time.perf_counter() - began_step
                decoding_tokens += sum(len(output.outputs[0].token_ids) for output in outputs)
            for output in outputs:
                place = int(output.request_id.split()[0])
                row_steps += place not in unread
                unread.discard(place)
                texts[place] += output.outputs[0].token_ids
        return {
            "seconds": time.perf_counter() - began,
            "texts": texts,
            "tokens": sum(map(len, texts)),
            "steps": steps,
            "row steps": row_steps,
            "decoding seconds": decoding_seconds,
            "decoding tokens": decoding_tokens,
            "propose seconds": self._propose_seconds() - seconds,
            "drafted": self._drafted,
        }

    def _propose_seconds(self) -> float:
        """Return the seconds that drafting took so far."""
        return self._seconds

    def begin(self, known: list[Text], logits: str | None, settings: dict[str, Any]) -> None:
        """Put a new drafter in place of the one that is there.

        Args:
            known: the texts that it knows.
            logits: file with what the model found likely in them; None: that is not known.
            settings: attributes of a drafter of vLLM's.
        """
        self._llm.collective_rpc(self._replace, args=(known, logits, settings))

    def _replace(self, worker: Any, known: list[Text], logits: str | None, settings: dict[str, Any]) -> None:
        runner = worker.model_runner
        where = "drafter" if hasattr(runner, "drafter") else "speculator"  # of the first model runner, and of V2
        drafter = getattr(runner, where, None)
        if drafter is None:
            return
        make = type(drafter)
        if is_ours := hasattr(drafter, "rest_store"):
            drafter.rest_store.drafter.close()  # lets go of the live datastore, and saves its logits
        if self._remember is not None:
            remember(Path(self._remember), known, self._llm.get_tokenizer())
        if self._logits is not None:
            Path(self._logits).unlink(missing_ok=True)
            if logits is not None:
                shutil.copyfile(logits, self._logits)
        if is_ours:
            from vllm.v1.worker.gpu.spec_decode import init_speculator

            drafter = init_speculator(runner.vllm_config, runner.device, runner.req_states)
        elif where == "drafter":
            drafter = make(runner.vllm_config)
            drafter.load_model(runner.get_model())
        setattr(runner, where, drafter)
        for name, value in settings.items():
            assert hasattr(drafter, name), f"vLLM's {make.__name__} has no {name}"
            setattr(drafter, name, value)
        if hasattr(drafter, "suffix_cache"):
            for number, (prompt, output) in enumerate(known):
                drafter.suffix_cache.start_request(-1 - number, np.array(prompt, np.int32))
                drafter.suffix_cache.add_active_response(-1 - number, output)
                drafter.suffix_cache.stop_request(-1 - number)
        propose = drafter.propose

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            drafts = propose(*arguments, **named)
            self._seconds += time.perf_counter() - began
            self._drafted += sum(map(len, drafts))  # rows of lists, or of a tensor
            return drafts

        drafter.propose = timed


def remember(directory: Path, known: list[Text], tokenizer: Any) -> None:
    """Make the live datastore at `directory` anew, of the documents that remembering these texts would add."""
    shutil.rmtree(directory, ignore_errors=True)
    documents = [document for text in known if (document := OutputDocument.of(*text)) is not None]
    with LiveDatastore.open(directory, tokenizer=tokenizer) as live:
        live.add([document.tokens for document in documents], ids=[document.id for document in documents])


def serve(connection: Connection) -> None:
    """Start the engine that the first request describes, and answer the others until the connection ends."""
    import vllm

    with contextlib.suppress(EOFError):
        _, arguments = connection.recv()
        engine = Engine(**arguments)
        connection.send(str(vllm.__version__))
        while True:
            what, arguments = connection.recv()
            connection.send(getattr(engine, what)(**arguments))
