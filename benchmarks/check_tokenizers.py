"""Compare stored ids with those of `transformers` for texts and chats, by tokenizer.

    python benchmarks/check_tokenizers.py TOKENIZERS [--corpus chats.jsonl.gz]

`AutoTokenizer` loads each directory in TOKENIZERS. The script prints a line for each, with

- the package that tokenized;
- the number of documents whose ids are those of `AutoTokenizer` for the whole text;
- the number of single answers that are those of `apply_chat_template`;
- the number of answers of longer chats that are stored as the template shows them in last place;
- the fate of a tool call and of reasoning: stored, left out or refused.

It exits with 1 if any id or answer differs.
"""

from __future__ import annotations

import gzip
import itertools
import json
import logging
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import click

import build_index
from build_index.builder import BuildOptions, build
from build_index.chat_template import TEMPLATE_DATE
from build_index.corpus_spec import CorpusSpec
from build_index.documents import CorpusCounts, Document
from build_index.readers.conversations import parse_messages
from build_index.tokenization import TargetTokenizer
from build_index.tokenization import load_tokenizer as load_target
from rest_store.datastore.header import separator_id
from rest_store.datastore.manifest import Manifest
from rest_store.datastore.shard import Shard
from rest_store.loading.loaded_tokenizer import LoadedTokenizer, load_tokenizer

Chat: TypeAlias = list[dict[str, Any]]
_CALL = {"name": "get_weather", "arguments": '{"city": "Paris", "unit": "C"}'}
_CALLS = [{"id": "a1b2c3d4e", "type": "function", "function": _CALL}]
_QUESTION = {"role": "user", "content": "Weather in Paris?"}
_ANSWER = {"role": "assistant", "content": "It is 18 degrees."}
_RESULT = {
    "role": "tool",
    "tool_call_id": "a1b2c3d4e",
    "name": "get_weather",
    "content": "18 degrees",
}
CALL: Chat = [
    _QUESTION,
    {"role": "assistant", "content": None, "tool_calls": _CALLS},
    _RESULT,
    _ANSWER,
]
THOUGHT: Chat = [_QUESTION, {**_ANSWER, "reasoning_content": "Paris lies in France."}] * 2


@click.command()
@click.argument("tokenizers", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--corpus",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Chats, a list each line.",
)
@click.option("--chats", default=200, show_default=True, help="Chats of the corpus to compare.")
def main(tokenizers: Path, corpus: Path | None, chats: int) -> None:
    """Compare the tokenizers in the directories of TOKENIZERS."""
    documents = [*texts(), *(corpus_texts(corpus, chats) if corpus else [])]
    is_equal = True
    for directory in sorted(path for path in tokenizers.iterdir() if path.is_dir()):
        line, differs = compared(directory, documents)
        click.echo(f"{directory.name:<16} {line}")
        is_equal &= not differs
    sys.exit(0 if is_equal else 1)


def texts() -> list[str]:
    """Return texts of several kinds: the builder's source, and random strings of odd characters."""
    source = [
        path.read_text(encoding="utf-8")
        for path in sorted(Path(build_index.__file__).parent.glob("*.py"))
    ]
    chance = random.Random(1)
    characters = [
        *"ab \n\t'sS1.,(){}",
        "  ",
        "\r\n",
        "\u00e9",
        "e\u0301",
        "\u6f22",
        "\u2581",
        "\U0001f469",
        "return ",
    ]
    strings = []
    for _ in range(300):
        size = chance.randrange(4, 60)
        strings.append("x" + "".join(chance.choices(characters, k=size)))
    return [*source, *strings]


def corpus_texts(corpus: Path, number: int) -> Iterator[str]:
    """Yield the texts of the lists in the lines of a file, which UltraChat has in `data`."""
    open_file: Any = gzip.open if corpus.suffix == ".gz" else open
    with open_file(corpus, "rt", encoding="utf-8") as file:
        for line in itertools.islice(file, number):
            yield from json.loads(line)["data"]


def compared(directory: Path, documents: list[str]) -> tuple[str, bool]:
    """Return the line of one tokenizer, and whether anything differs."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    loaded = load_tokenizer(tokenizer)
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    plain = []
    for text in dict.fromkeys(documents):
        if not any(token in text for token in special):
            plain.append(text)
    single, long = make_chats(plain) if tokenizer.chat_template else ([], [])
    records: list[dict[str, Any]] = [{"text": text} for text in plain]
    records += [{"messages": chat} for chat in single + long]
    encoder, ids = built(loaded, records)
    stored_ids = iter(ids)
    equal = 0
    for text in plain:
        equal += next(stored_ids) == tokenizer(text, add_special_tokens=False)["input_ids"]
    line = f"{encoder:<18} texts {equal}/{len(plain)}"
    differs = equal < len(plain)
    if not tokenizer.chat_template:
        return f"{line}, no chat template", differs
    equal = sum(next(stored_ids) == rendered(tokenizer, chat, tokenize=True) for chat in single)
    line += f", answers {equal}/{len(single)}"
    differs |= equal < len(single)
    equal = 0
    for chat in long:
        text = str(tokenizer.decode(next(stored_ids)))
        equal += sum(answer(tokenizer, chat, end) in text for end in (1, 3, 5))
    line += f", turns {equal}/{3 * len(long)}"
    differs |= equal < 3 * len(long)
    target = load_target(loaded)
    line += f", call {outcome(target, CALL)}, reasoning {outcome(target, THOUGHT)}"
    return line, differs


def make_chats(texts: list[str]) -> tuple[list[Chat], list[Chat]]:
    """Return chats of one question and of three, whose answers are texts."""
    pairs = [(f"Q{number}: {text[:40]}", text) for number, text in enumerate(texts[-200:])]
    single: list[Chat] = []
    for question, text in pairs:
        single.append(
            [{"role": "user", "content": question}, {"role": "assistant", "content": text}]
        )
    long = []
    for number in range(0, len(single) - 2, 3):
        long.append(single[number] + single[number + 1] + single[number + 2])
    return single, long


def rendered(tokenizer: Any, chat: Chat, *, tokenize: bool = False, prompt: bool = False) -> Any:
    """Return a chat as the template renders it: its text or its token ids."""
    date = TEMPLATE_DATE.strftime("%d %b %Y")  # where a template asks for one
    options: dict[str, Any] = {"return_dict": False} if tokenize else {}
    return tokenizer.apply_chat_template(
        chat, tokenize=tokenize, add_generation_prompt=prompt, date_string=date, **options
    )


def answer(tokenizer: Any, chat: Chat, end: int) -> str:
    """Return an answer as the template shows it in last place, decoded from its tokens."""
    text = rendered(tokenizer, chat[: end + 1])
    prompt = rendered(tokenizer, chat[:end], prompt=True)
    content = chat[end]["content"].strip()
    place = text.rfind(content)
    # Some templates add a further header, after which the prompt is no beginning of the text.
    own = text[len(prompt) if text.startswith(prompt) else place : place + len(content)]
    return str(tokenizer.decode(tokenizer(own, add_special_tokens=False)["input_ids"])).strip()


def outcome(tokenizer: TargetTokenizer, chat: Chat) -> str:
    """Return the fate of the call or the reasoning of a chat."""
    counts = CorpusCounts()
    messages = parse_messages(chat, "chat", "messages", counts.left_out)
    tokenizer.encode_counted([Document(messages=messages)], counts)
    if counts.refusal:
        return "refused"
    return "left out" if counts.left_out else "stored"


def built(tokenizer: LoadedTokenizer, records: list[dict[str, Any]]) -> tuple[str, list[list[int]]]:
    """Build a datastore; return the package that tokenized, and the ids of each document."""
    with tempfile.TemporaryDirectory() as place:
        corpus = Path(place) / "corpus.jsonl"
        out = Path(place) / "ds"
        lines = [json.dumps(record) + "\n" for record in records]
        corpus.write_text("".join(lines), encoding="utf-8")
        summary = build(BuildOptions((CorpusSpec(str(corpus)),), tokenizer, out, memory=4 << 30))
        return summary.encoder, list(stored(out))


def stored(datastore: Path) -> Iterator[list[int]]:
    """Yield the ids of each document of a datastore."""
    for record in Manifest.read(datastore).shards:
        tokens = Shard.open(datastore, record.name).tokens
        separator = separator_id(tokens.header.vocabulary_size)
        document: list[int] = []
        for symbol in tokens.symbols().tolist():
            if symbol == separator:
                yield document
                document = []
            else:
                document.append(symbol)


if __name__ == "__main__":
    # Here and not above: a program that imports this module has a log of its own.
    logging.disable(logging.WARNING)
    main()
