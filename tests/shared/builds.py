"""Small corpora, a tiny tokenizer, and the content of builds, for tests of the builder."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from build_index.build_command import build as build_command
from build_index.builder import BuildOptions, BuildSummary, build
from build_index.corpus_spec import CorpusSpec
from rest_store.datastore.header import separator_id
from rest_store.datastore.manifest import Manifest
from rest_store.datastore.shard import Shard
from tests.shared.models import byte_level_bpe

_WORDS = (
    *(
        "def",
        "return",
        "for",
        "in",
        "range",
        "print",
        "import",
        "self",
        "add",
        "first",
        "second",
        "i",
        "x",
    ),
    *("=", "+", "(", ")", ":", "naïve", "café", "2024"),
)


def documents(number: int, seed: int = 0) -> list[str]:
    """Texts of 5 to 60 words, all different."""
    source = random.Random(seed)
    return [
        f"{place} " + " ".join(source.choices(_WORDS, k=source.randint(5, 60)))
        for place in range(number)
    ]


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def write_tokenizer(path: Path, vocab_size: int = 300) -> Path:
    path.write_text(byte_level_bpe(vocab_size).to_str())
    return path


def options(corpus: Path | str | list[Path], tokenizer: Path, out: Path, **others) -> BuildOptions:
    paths = corpus if isinstance(corpus, list) else [corpus]
    specs = tuple(CorpusSpec(str(path)) for path in paths)
    return BuildOptions(specs, str(tokenizer), out, **{"memory": 1 << 40, **others})


def build_quick(
    corpus: Path | str | list[Path], tokenizer: Path, out: Path, **others
) -> BuildSummary:
    return build(options(corpus, tokenizer, out, **others))


def command(*arguments: object, before: str = "") -> list[str]:
    """Run the command line of `rest-build` in a process that executes `before` first."""
    return [
        sys.executable,
        "-c",
        f"{before}\nfrom build_index.build_command import build; build()",
        *map(str, arguments),
    ]


def run_build(*arguments: object, before: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments, before=before), capture_output=True, text=True, check=False
    )


def build_here(*arguments: object) -> Result:
    """Run `rest-build` in this process, which takes a tenth of the time."""
    return CliRunner().invoke(build_command, list(map(str, arguments)))


def contents(directory: Path) -> dict[str, bytes]:
    """All files below a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def stored_documents(directory: Path) -> list[list[int]]:
    """The token ids of every stored document or piece, in order."""
    stored = []
    for record in Manifest.read(directory).shards:
        tokens = Shard.open(directory, record.name).tokens
        separator = separator_id(tokens.header.vocabulary_size)
        document: list[int] = []
        for symbol in tokens.symbols().tolist():
            if symbol == separator:
                stored.append(document)
                document = []
            else:
                document.append(symbol)
    return stored


def leftovers(out: Path) -> list[str]:
    """The names of files beside the datastore."""
    return sorted(path.name for path in out.parent.iterdir() if path != out)
