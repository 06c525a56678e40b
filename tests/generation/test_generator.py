"""`Generator`: streaming, prompts, and text with origins."""

from __future__ import annotations

import _thread
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import transformers

import rest_store
from rest_store.errors import (
    ArgumentError,
    NotSupportedError,
    PromptWarning,
    TokenizerMismatchError,
)
from rest_store.generation.model import load_model
from rest_store.generation.seam import CACHE
from tests.shared.strategies import refused
from tests.shared.tiny import (
    Drafted,
    Scripted,
    bushy,
    futures_of,
    prompts,
    right,
    text_tokenizer,
    tiny_model,
    write_model,
)

FIXED = {"max_new_tokens": 24, "do_sample": False}


class Collected:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.values: list[list[int]] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.values.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


def scripted(
    model: Any, inputs: Any, script: Any = right, **options: Any
) -> tuple[torch.Tensor, Any]:
    plain = model.generate(**inputs, **{**FIXED, **options})
    futures = futures_of(inputs, plain)
    return plain, [Drafted(lambda prompt: Scripted(prompt, futures, script))]


@pytest.mark.parametrize("name", ["streamer", "stream_to"])
def test_a_streamer_gets_what_plain_decoding_gives_it(name: str) -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    expected = Collected()
    model.generate(**inputs, **FIXED, streamer=expected)
    _, drafter = scripted(model, inputs)
    streamer = Collected()
    options = {"custom_generate": rest_store.generate, "sources": drafter, name: streamer}
    model.generate(**inputs, **FIXED, **options)
    assert streamer.values == expected.values
    assert streamer.ended == expected.ended == 1


def test_two_streamers_or_one_for_several_rows_are_refused() -> None:
    model = tiny_model("llama")
    options = {**FIXED, "custom_generate": rest_store.generate}
    both = {"streamer": Collected(), "stream_to": Collected()}
    message = "pass streamer or stream_to, not both"
    refused(NotSupportedError, lambda: model.generate(**prompts(1), **options, **both), message)
    for name in both:
        values = {name: Collected()}
        refused(
            NotSupportedError,
            lambda values=values: model.generate(**prompts(3), **options, **values),
            "3 rows",
        )


def test_the_reader_of_an_iterating_streamer_comes_to_an_end(model_directory: Path) -> None:
    model, words = load_model(str(model_directory))
    streamer = transformers.TextIteratorStreamer(words, skip_prompt=True, timeout=60)
    inputs = words("for i in", return_tensors="pt")
    options = {**FIXED, "custom_generate": rest_store.generate, "streamer": streamer}
    writer = Thread(target=model.generate, kwargs={**inputs, **options})
    writer.start()
    text = "".join(streamer)
    writer.join()
    assert text == words.decode(
        model.generate(**inputs, **FIXED)[0, inputs["input_ids"].shape[1] :]
    )


@pytest.mark.parametrize("rows", [1, 3])
def test_pieces_are_what_is_written(rows: int) -> None:
    model = tiny_model("llama")
    inputs = prompts(rows)
    plain, drafter = scripted(model, inputs, bushy)
    generator = rest_store.Generator(model, None, drafter, adaptive=False)
    pieces = generator.stream(inputs, **FIXED)
    written: list[list[int]] = [[] for _ in range(rows)]
    origins: list[list[int]] = [[] for _ in range(rows)]
    for passes, piece in enumerate(pieces, start=1):
        for row in range(rows):
            written[row] += piece.tokens[row]
            origins[row] += piece.origins[row]
            nodes = piece.accepted[row]
            assert piece.trees[row].tokens[nodes].tolist() == piece.tokens[row][: len(nodes)]
        assert 0 < piece.forward_seconds <= piece.seconds
        assert pieces.statistics.forward_passes == passes
        assert torch.is_grad_enabled(), "the caller's own mode, between passes"
    assert written == plain[:, 14:].tolist()
    assert origins == pieces.statistics.origins
    assert (
        sum(origin > 0 for row in origins for origin in row)
        == pieces.statistics.drafts.accepted
        > 0
    )
    assert torch.equal(pieces.result(), plain)
    streamed = [token for piece in generator.stream(inputs, **FIXED) for token in piece.tokens[0]]
    assert streamed == written[0]


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def test_text_in_and_stop_strings(model_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    criterion = Mock(side_effect=transformers.StopStringCriteria)
    monkeypatch.setattr("rest_store.generation.stop_strings.StopStringCriteria", criterion)
    model, words = load_model(str(model_directory))
    generator = rest_store.Generator(model, words, [rest_store.PromptLookup()])
    prompt = "for i in range(10):"
    whole = model.generate(**words(prompt, return_tensors="pt"), **FIXED)
    assert torch.equal(generator.generate(prompt, **FIXED).sequences, whole)
    ids = words(prompt)["input_ids"]
    assert torch.equal(generator.generate(ids, **FIXED).sequences, whole)
    for values in (
        {"input_ids": ids, "attention_mask": [1] * len(ids)},
        {"input_ids": [ids], "attention_mask": None},
    ):
        assert torch.equal(generator.generate(values, **FIXED).sequences, whole)
    stop = next(
        text
        for token in whole[0, -18:-6]
        if (text := words.decode(token)).isascii() and text.strip()
    )
    plain = model.generate(
        **words(prompt, return_tensors="pt"), **FIXED, stop_strings=[stop], tokenizer=words
    )
    assert plain.shape[1] < whole.shape[1]
    output = generator.generate(prompt, **FIXED, stop_strings=[stop], compare=True)
    assert criterion.call_count == 1, (
        "it takes as long as some steps, which no way is to be charged for"
    )
    assert torch.equal(output.sequences, plain)
    assert output.comparison is not None
    assert output.comparison.identical
    without = rest_store.Generator(model, None, [rest_store.PromptLookup()])
    output = without.generate(ids, **FIXED, stop_strings=[stop], tokenizer=words, compare=True)
    assert torch.equal(output.sequences, plain)
    assert output.comparison is not None
    assert output.comparison.identical
    refused(
        ArgumentError, lambda: without.generate(ids, **FIXED, stop_strings=[stop]), "stop strings"
    )
    options = {"custom_generate": rest_store.generate, "sources": [rest_store.PromptLookup()]}
    # What the error of `rest_store.generate` says to pass.
    criteria = [transformers.StopStringCriteria(words, [stop])]
    inputs = words(prompt, return_tensors="pt")
    assert torch.equal(
        model.generate(**inputs, **FIXED, **options, stopping_criteria=criteria), plain
    )


# --- Without drafts -------------------------------------------------------------------------------


def test_no_drafter_is_plain_decoding() -> None:
    model = tiny_model("llama")
    plain = model.generate(**prompts(2), **FIXED)
    for drafter in (None, []):
        output = model.generate(
            **prompts(2),
            **FIXED,
            custom_generate=rest_store.generate,
            sources=drafter,
            return_dict_in_generate=True,
        )
        assert torch.equal(output.sequences, plain)
        assert output.statistics.forward_passes == FIXED["max_new_tokens"]
        assert output.statistics.drafts.requested == 0


# --- Stop strings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place", ["of the call", "of the model", "of both", "of the model, with an argument"]
)
def test_stop_strings_may_be_in_a_generation_configuration(
    place: str, model_directory: Path
) -> None:
    model, words = load_model(str(model_directory))
    ids = words("for i in range(10):", return_tensors="pt")
    whole = model.generate(**ids, **FIXED)
    stop, other = (
        next(
            text
            for token in whole[0, start:]
            if (text := words.decode(token)).isascii() and text.strip()
        )
        for start in (-18, -6)
    )
    config = transformers.GenerationConfig(**FIXED)
    arguments: dict[str, Any] = {"generation_config": config}
    if place == "of the model, with an argument":
        arguments = {**FIXED, "stop_strings": stop}
    else:
        config.stop_strings = None if place == "of the model" else stop
    if place != "of the call":
        model.generation_config.stop_strings = [stop if place == "of the model" else other]
    plain = model.generate(**ids, **arguments, tokenizer=words)
    assert plain.shape[1] < whole.shape[1]
    before = config.stop_strings, model.generation_config.stop_strings
    generator = rest_store.Generator(model, words, [rest_store.PromptLookup()])
    assert torch.equal(generator.generate(ids, **arguments).sequences, plain)
    assert torch.equal(generator.stream(ids, **arguments).result(), plain)
    assert (config.stop_strings, model.generation_config.stop_strings) == before
    without = rest_store.Generator(model, None, [rest_store.PromptLookup()])
    refused(ArgumentError, lambda: without.generate(ids, **arguments), "stop strings")


# --- Chats ----------------------------------------------------------------------------------------


def test_messages_are_rendered_by_the_chat_template(model_directory: Path) -> None:
    model, words = load_model(str(model_directory))
    generator = rest_store.Generator(model, words, [rest_store.PromptLookup()])
    question = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Write a stack."},
    ]
    for messages in (question, [*question, {"role": "assistant", "content": "class Sta"}]):
        continues = messages[-1]["role"] == "assistant"
        rendered = words.apply_chat_template(
            messages,
            add_generation_prompt=not continues,
            continue_final_message=continues,
            return_dict=True,
            return_tensors="pt",
        )
        plain = model.generate(**rendered, **FIXED)
        assert torch.equal(generator.generate(messages, **FIXED).sequences, plain)
        assert torch.equal(generator.generate(tuple(messages), **FIXED).sequences, plain)
        assert torch.equal(generator.stream(messages, **FIXED).result(), plain)


def test_messages_that_cannot_be_rendered_are_refused(model_directory: Path) -> None:
    model, words = load_model(str(model_directory))
    generator = rest_store.Generator(model, words)
    refused(
        ArgumentError,
        lambda: generator.generate([{"content": "hi"}]),
        "message 0 is content, expected a role and",
    )
    refused(
        ArgumentError, lambda: generator.generate([{"role": "user"}, {}]), "message 1 is nothing"
    )
    words.chat_template = "{{ raise_exception('roles must alternate') }}"
    message = "the prompt is refused by the chat template (roles must alternate)"
    refused(ArgumentError, lambda: generator.generate([{"role": "user", "content": "hi"}]), message)
    words.chat_template = None
    message = "the prompt is messages of a chat, expected text: the tokenizer has no chat template"
    refused(ArgumentError, lambda: generator.generate([{"role": "user", "content": "hi"}]), message)
    without = rest_store.Generator(model)
    refused(
        ArgumentError, lambda: without.generate([{"role": "user", "content": "hi"}]), "tokenizer"
    )


def test_a_chat_model_that_ends_a_text_at_once_gets_a_hint(model_directory: Path) -> None:
    model, words = load_model(str(model_directory))
    generator = rest_store.Generator(model, words)
    end = words.eos_token_id
    bias = {
        "logits_processor": [lambda ids, scores: scores.index_fill(1, torch.tensor([end]), 1e9)]
    }
    options = {**FIXED, **bias, "eos_token_id": end}
    with pytest.warns(PromptWarning, match=r"ended the text after 1 token.* pass messages: "):
        assert generator.generate("Write a stack.", **options).text == ""
    generator.generate([{"role": "user", "content": "Write a stack."}], **options)
    generator.generate(words("Write a stack.")["input_ids"], **options)
    generator.generate("Write a stack.", max_new_tokens=1)
    words.chat_template = None
    generator.generate("Write a stack.", **options)


# --- Tokenizers -----------------------------------------------------------------------------------


def test_datastores_of_another_tokenizer_are_refused(model_directory: Path, tmp_path: Path) -> None:
    model, words = load_model(str(model_directory))
    other = text_tokenizer()
    other.add_tokens(["<mine>"])
    text = tmp_path / "text.txt"
    text.write_text("for i in range(10):\n")
    right_one = rest_store.build(text, words, tmp_path / "right.ds")
    wrong_one = rest_store.build(text, other, tmp_path / "wrong.ds")
    sources = [right_one, rest_store.PromptLookup()]
    generator = rest_store.Generator(model, words, sources)
    assert generator.generate("for i in", **FIXED).statistics.tokens == 24
    message = f"generate: {wrong_one.path}: tokenizer"
    refused(
        TokenizerMismatchError,
        lambda: rest_store.Generator(model, words, [*sources, wrong_one]),
        message,
    )
    with rest_store.LiveDatastore.open(tmp_path / "live", tokenizer=other) as live:
        for values in ({"sources": [live]}, {"sources": sources, "remember": live}):
            refused(
                TokenizerMismatchError,
                lambda values=values: rest_store.Generator(model, words, **values),
                "live",
            )
    options = {"custom_generate": rest_store.generate, "sources": [*sources, wrong_one]}
    inputs = words("for i in", return_tensors="pt")
    refused(TokenizerMismatchError, lambda: model.generate(**inputs, **FIXED, **options), message)
    assert (
        rest_store.Generator(model, other, [wrong_one])
        .generate("for i in", **FIXED)
        .statistics.tokens
        == 24
    )
    words.add_tokens(["<mine>"])
    rest_store.Generator(model, words, [wrong_one])
    refused(
        TokenizerMismatchError,
        lambda: rest_store.Generator(model, words, sources),
        "right.ds: tokenizer",
    )


# --- Streams --------------------------------------------------------------------------------------


def test_an_interrupt_while_a_stream_is_read_ends_it_after_the_pass() -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    cache = transformers.DynamicCache(config=model.config)
    seen: list[int] = []

    def criterion(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        seen.append(ids.shape[1])
        if len(seen) == 8:
            _thread.interrupt_main()
            time.sleep(0.1)
        return torch.tensor([False])

    generator = rest_store.Generator(model, None, [])
    arguments = {CACHE: cache, "stopping_criteria": [criterion]}
    stream = generator.stream(inputs, **FIXED, **arguments)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    assert list(stream) == []
    assert [len(tokens) for tokens in stream.tokens] == [8]
    assert stream.result().shape[1] == 14 + 8
    assert cache.get_seq_length() == 14 + 8 - 1, "the caller has the cache"


def test_a_stream_may_be_read_by_one_thread_after_the_other() -> None:
    """Web servers read generators in this way: each item in some thread of a pool."""
    model = tiny_model("llama")
    inputs = prompts(1)
    plain = model.generate(**inputs, **FIXED)
    stream = rest_store.Generator(model, None, [rest_store.PromptLookup()]).stream(inputs, **FIXED)
    with ThreadPoolExecutor(4) as pool:
        pieces = [pool.submit(next, stream, None).result() for _ in range(25)]
    written = [token for piece in pieces if piece is not None for token in piece.tokens[0]]
    assert written == plain[0, 14:].tolist()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork of a process with threads
def test_a_stream_is_of_its_process() -> None:
    stream = rest_store.Generator(tiny_model("llama"), None, []).stream(prompts(1), **FIXED)
    next(stream)
    child = os.fork()
    if not child:
        try:
            next(stream)
        except NotSupportedError as error:
            os._exit(7 if "the stream began before the process was forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(list(stream)) == 23
