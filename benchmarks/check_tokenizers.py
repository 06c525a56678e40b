"""Compare what builds store with what `transformers` makes of the
same texts and chats, for a directory of tokenizers.

    python benchmarks/check_tokenizers.py TOKENIZERS [--corpus chats.jsonl.gz]

Each directory in TOKENIZERS is one that `AutoTokenizer` loads. One line is printed for each: the
package that tokenized, how many documents have the ids that `AutoTokenizer` gives to the whole
text, how many single answers are those of `apply_chat_template`, how many answers of longer chats
are stored as that shows them when they are last, and what became of a tool call and of reasoning:
stored, left out or refused. Exits with 1 if any id or answer differs.
"""

from __future__ import annotations

import gzip
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
from build_index.readers.conversations import messages_of
from build_index.tokenization import TargetTokenizer
from build_index.tokenization import load_tokenizer as load_target
from rest_store.datastore.header import separator_id
from rest_store.datastore.manifest import Manifest
from rest_store.datastore.shard import Shard
from rest_store.loading.tokenizer import LoadedTokenizer, load_tokenizer

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
    """Texts of several kinds: the source of the builder, and random
    strings of characters that tokenizers treat.
    """
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
    return [
        *source,
        *("x" + "".join(chance.choices(characters, k=chance.randrange(4, 60))) for _ in range(300)),
    ]


def corpus_texts(corpus: Path, number: int) -> Iterator[str]:
    """Texts of the lists in the lines of a file, as UltraChat has them in `data`."""
    with (
        gzip.open(corpus, "rt", encoding="utf-8")
        if corpus.suffix == ".gz"
        else corpus.open(encoding="utf-8") as file
    ):
        for line, _ in zip(file, range(number), strict=False):
            yield from json.loads(line)["data"]


def compared(directory: Path, documents: list[str]) -> tuple[str, bool]:
    """Return the line of one tokenizer, and whether anything differs."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    loaded = load_tokenizer(tokenizer)
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    plain = list(
        dict.fromkeys(text for text in documents if not any(token in text for token in special))
    )
    single, long = chats_of(plain) if tokenizer.chat_template else ([], [])
    encoder, ids = built(
        loaded,
        [*({"text": text} for text in plain), *({"messages": chat} for chat in single + long)],
    )
    stored_ids = iter(ids)
    equal = sum(
        next(stored_ids) == tokenizer(text, add_special_tokens=False)["input_ids"] for text in plain
    )
    parts, differs = [f"{encoder:<18} texts {equal}/{len(plain)}"], equal < len(plain)
    if not tokenizer.chat_template:
        return f"{parts[0]}, no chat template", differs
    equal = sum(next(stored_ids) == rendered(tokenizer, chat, tokenize=True) for chat in single)
    parts.append(f"answers {equal}/{len(single)}")
    differs |= equal < len(single)
    decoded = [(str(tokenizer.decode(next(stored_ids))), chat) for chat in long]
    equal = sum(answer(tokenizer, chat, end) in text for text, chat in decoded for end in (1, 3, 5))
    parts.append(f"turns {equal}/{3 * len(long)}")
    differs |= equal < 3 * len(long)
    target = load_target(loaded)
    parts += [
        f"{name} {outcome(target, chat)}" for name, chat in (("call", CALL), ("reasoning", THOUGHT))
    ]
    return ", ".join(parts), differs


def chats_of(texts: list[str]) -> tuple[list[Chat], list[Chat]]:
    """Return chats of one question and of three, whose answers are texts."""
    pairs = [(f"Q{number}: {text[:40]}", text) for number, text in enumerate(texts[-200:])]
    single = [
        [{"role": "user", "content": one}, {"role": "assistant", "content": other}]
        for one, other in pairs
    ]
    long = [
        single[number] + single[number + 1] + single[number + 2]
        for number in range(0, len(single) - 2, 3)
    ]
    return single, long


def rendered(tokenizer: Any, chat: Chat, *, tokenize: bool = False, prompt: bool = False) -> Any:
    """Return what the template makes of a chat: its text or its token ids."""
    date = TEMPLATE_DATE.strftime("%d %b %Y")  # where a template asks for one
    options: dict[str, Any] = {"return_dict": False} if tokenize else {}
    return tokenizer.apply_chat_template(
        chat, tokenize=tokenize, add_generation_prompt=prompt, date_string=date, **options
    )


def answer(tokenizer: Any, chat: Chat, end: int) -> str:
    """Return an answer as the template shows it when it is the last
    turn, up to its end, decoded from its tokens.
    """
    text, prompt = (
        rendered(tokenizer, chat[: end + 1]),
        rendered(tokenizer, chat[:end], prompt=True),
    )
    content = chat[end]["content"].strip()
    place = text.rfind(content)
    # Some add a further header.
    own = text[len(prompt) if text.startswith(prompt) else place : place + len(content)]
    return str(tokenizer.decode(tokenizer(own, add_special_tokens=False)["input_ids"])).strip()


def outcome(tokenizer: TargetTokenizer, chat: Chat) -> str:
    """Return what becomes of the call or the reasoning of a chat."""
    counts = CorpusCounts()
    messages = messages_of(chat, "chat", "messages", counts.left_out)
    tokenizer.encode_counted([Document(messages=messages)], counts)
    return "refused" if counts.refusal else "left out" if counts.left_out else "stored"


def built(tokenizer: LoadedTokenizer, records: list[dict[str, Any]]) -> tuple[str, list[list[int]]]:
    """Build a datastore of records.

    Return the package that tokenized, and the ids of each document.
    """
    with tempfile.TemporaryDirectory() as place:
        corpus, out = Path(place) / "corpus.jsonl", Path(place) / "ds"
        corpus.write_text(
            "".join(json.dumps(record) + "\n" for record in records), encoding="utf-8"
        )
        summary = build(BuildOptions((CorpusSpec(str(corpus)),), tokenizer, out, memory=4 << 30))
        return summary.encoder, list(stored(out))


def stored(datastore: Path) -> Iterator[list[int]]:
    """Yield the ids of each document of a datastore."""
    for record in Manifest.read(datastore).shards:
        tokens = Shard.open(datastore, record.name).tokens
        separator, document = separator_id(tokens.header.vocabulary_size), list[int]()
        for symbol in tokens.symbols().tolist():
            if symbol == separator:
                yield document
                document = []
            else:
                document.append(symbol)


if __name__ == "__main__":
    # Here, for the whole process: whoever imports this keeps its log.
    logging.disable(logging.WARNING)
    main()
