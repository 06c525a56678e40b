"""Recordings: what a model wrote for prompts, read from JSON lines,
and which of them are for fitting.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rest_store.bench.formats import Encode, Messages, RecordedOutput, recorded_outputs
from rest_store.bench.results import file_hash
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME
from rest_store.datastore.render import counted
from rest_store.datastore.store import Store
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.drafting.calibration import Calibration
from rest_store.errors import CorpusError, DataFileError, describe
from rest_store.terminal import loading

if TYPE_CHECKING:
    from build_index.target_tokenizer import TargetTokenizer

PARTS = 10  # that prompts are divided into
FIT_PARTS = 7  # the first ones, for fitting; the others are for reporting
MIN_TO_FIT = 20  # recordings
_LAST_TOKEN = 2**31 - 1


@dataclass(frozen=True)
class Recording:
    """One recorded generation.

    Attributes:
        family: kind of task, for reports.
        part: 0..9, by a fixed hash of the prompt, or of the task's id where several prompts belong
            to one task.
        prompt: int32[p].
        output: int32[n].
        top_k: int32[p + n, k], most likely tokens after each position of prompt + output; k may be
            0.
        key: of the task, as in `RecordedOutput`.
        file: hash of the file that it was read from. A calibration keeps the hashes of the files it
            was fitted to.
        drafters: by name of another drafter, int32[n]: the tokens that it would bring in a step
            that begins after so many tokens of the output, the bonus token counted.
    """

    family: str
    part: int
    prompt: npt.NDArray[np.int32]
    output: npt.NDArray[np.int32]
    top_k: npt.NDArray[np.int32]
    key: str = ""
    file: str = ""
    drafters: Mapping[str, npt.NDArray[np.int32]] = field(default_factory=dict)


def part_of(key: str) -> int:
    """Return the part, 0..9, of the prompt with this key; the same in every release."""
    return int(hashlib.sha256(b"split 1 " + key.encode()).hexdigest(), 16) % PARTS


def read_recordings(path: str | Path, encode: Encode | None = None) -> list[Recording]:
    """Read recordings: JSON lines, also as `.gz`, in the formats of `recorded_outputs`.

    Texts become token ids by `encode`.

    Raises:
        DataFileError: the file cannot be read, or a line is not a valid recording.
    """
    file = file_hash(Path(path))
    return [
        _recording(generation, f"{path}, line {number}", encode, file)
        for number, line in lines_of(path)
        for generation in recorded_outputs(line, f"{path}, line {number}")
    ]


def _recording(
    generation: RecordedOutput, where: str, encode: Encode | None, file: str
) -> Recording:
    prompt, output, top_k, family, key, drafters = generation
    if isinstance(output, str) and (
        isinstance(prompt, str) or (prompt and isinstance(prompt[0], tuple))
    ):
        if encode is None:
            raise DataFileError(
                describe(where, "prompt and output", "text", "token ids, or --tokenizer")
            )
        prompt, output = encode(prompt, output)
    try:
        tokens = integers(prompt, 0), integers(output, 0)
        likely = integers(top_k or np.zeros((0, 0)), -1)
        accepted = {name: integers(counts, 1) for name, counts in drafters.items()}
    except (TypeError, ValueError, OverflowError) as error:
        expected = "prompt and output both as token ids, or both as text"
        raise DataFileError(describe(where, "recording", "of other types", expected)) from error
    size = tokens[0].size + tokens[1].size
    if (tokens[0].ndim, tokens[1].ndim, likely.ndim) != (1, 1, 2) or len(likely) not in (0, size):
        raise DataFileError(
            describe(where, "recording", "of other shapes", "ids, and top-k of each position")
        )
    if any(counts.shape != tokens[1].shape for counts in accepted.values()):
        raise DataFileError(
            describe(
                where, "acceptance", "of another length", "a number for each token of the output"
            )
        )
    part = part_of(key or str(generation.prompt))
    return Recording(family, part, *tokens, likely, key, file, accepted)


def read_all(
    paths: Sequence[Path], stores: Mapping[str, Store], tokenizer: str | None
) -> list[Recording]:
    """Read several files.

    Texts become tokens with `tokenizer`, or with the copy kept in the first datastore.
    """
    encode = encoder(next(iter(stores.values()), None), tokenizer)
    return [recording for path in paths for recording in read_recordings(path, encode)]


def remembered(
    paths: Sequence[Path],
    replayed: Iterable[Recording],
    stores: Mapping[str, Store],
    tokenizer: str | None,
) -> dict[str, list[Recording]]:
    """Return what --history-from says: by the names of files, the
    recordings of each and those before.

    Recordings that are `replayed` are left out.

    The other arguments are those of `read_all`.
    """
    left_out = {(one.prompt.tobytes(), one.output.tobytes()) for one in replayed}
    known: list[Recording] = []
    growing: dict[str, list[Recording]] = {}
    for number, path in enumerate(paths, 1):
        read = read_all([path], stores, tokenizer)
        known = [
            *known,
            *(one for one in read if (one.prompt.tobytes(), one.output.tobytes()) not in left_out),
        ]
        growing[" and ".join(path.name for path in paths[:number])] = known
    return growing


def split(
    recordings: Sequence[Recording], where: str, *, minimum: int = 2
) -> tuple[list[Recording], list[Recording]]:
    """Return the recordings for fitting and those for reporting, without those that have no output.

    Args:
        recordings: all of them.
        where: the command, for messages.
        minimum: how many are needed.

    Raises:
        DataFileError: there are fewer, or one of the two is empty.
    """
    written = [recording for recording in recordings if recording.output.size]
    fitting = [recording for recording in written if recording.part < FIT_PARTS]
    held_out = [recording for recording in written if recording.part >= FIT_PARTS]
    if len(written) < minimum or not fitting or not held_out:
        counts = (
            f"{len(written)}, by a hash {len(fitting)} to fit to and {len(held_out)} to report on"
        )
        expected = (
            f"at least {minimum}, and some of each: record more prompts, or use the calibration of"
            " the package"
        )
        raise DataFileError(describe(where, "number of recordings with output", counts, expected))
    return fitting, held_out


def unfitted(
    recordings: Iterable[Recording], calibration: Calibration, where: str
) -> list[Recording]:
    """Return the recordings that have output and to which `calibration` was not fitted.

    Its `provenance` has under "data" the hashes of the files of which the first `FIT_PARTS` parts
    were fitted to.

    Args:
        recordings: all of them.
        calibration: that is used with them.
        where: the command, for messages.

    Raises:
        DataFileError: there is none.
    """
    data = calibration.provenance.get("data")
    files = data if isinstance(data, list) else []
    chosen = [
        recording
        for recording in recordings
        if recording.output.size and (recording.part >= FIT_PARTS or recording.file not in files)
    ]
    if not chosen:
        what = "number of recordings with output that the calibration was not fitted to"
        raise DataFileError(describe(where, what, 0, "at least one: record more prompts"))
    return chosen


def amount(recordings: Sequence[Recording]) -> str:
    """Return as text how many recordings there are, and how many tokens of output."""
    tokens = sum(recording.output.size for recording in recordings)
    return f"{counted(len(recordings), 'recording')}, {counted(tokens, 'token')}"


def without(recordings: Sequence[Recording], reported: Sequence[Recording]) -> str:
    """Return as text how many of `recordings` `unfitted` left out of `reported`, and why.

    Empty if none.
    """
    empty = sum(not recording.output.size for recording in recordings)
    fitted = len(recordings) - empty - len(reported)
    reasons = {"that the calibration was fitted to": fitted, "without output": empty}
    counts = [f"{number} {reason}" for reason, number in reasons.items() if number]
    return f"; left out: {', '.join(counts)}" if counts else ""


def identity_of_texts(stores: Mapping[str, Store], tokenizer: str | None) -> TokenizerIdentity:
    """Return the identity of the recordings' tokenizer: that of the
    first datastore, or of `tokenizer`.

    Raises:
        DataFileError: there is neither.
    """
    for store in stores.values():
        return store.tokenizer
    if tokenizer is None:
        raise DataFileError(
            describe(
                "bench replay",
                "tokenizer of the recordings",
                "unknown",
                "--datastore or --tokenizer",
            )
        )
    from build_index.tokenization import load_tokenizer

    return load_tokenizer(tokenizer).identity


def integers(values: object, minimum: int) -> npt.NDArray[np.int32]:
    """Return `values` as int32; raise ValueError unless all are integers of at least `minimum`."""
    array = np.array(values)
    if array.size and (
        array.dtype.kind not in "iu" or int(array.min()) < minimum or int(array.max()) > _LAST_TOKEN
    ):
        raise ValueError("not integers of the range")
    return array.astype(np.int32)


def lines_of(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file or a `.gz` with their numbers, without blank ones.

    Raises:
        DataFileError: the file cannot be read.
    """
    try:
        with (gzip.open if str(path).endswith(".gz") else open)(
            path, "rt", encoding="utf-8-sig"
        ) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except UnicodeDecodeError as error:
        raise DataFileError(describe(path, "file", "not UTF-8", "lines of UTF-8")) from error
    except (OSError, EOFError, zlib.error) as error:
        found = f"unreadable ({getattr(error, 'strerror', None) or error})"
        raise DataFileError(describe(path, "file", found, "lines of UTF-8")) from error


def encoder(store: Store | None, name: str | None) -> Encode | None:
    """Return a function that turns a prompt and its answer into
    tokens as in a chat, or None without a tokenizer.

    Args:
        store: a datastore that may keep a tokenizer; None: there is no datastore.
        name: name or path of a tokenizer to use instead.

    Raises:
        TokenizerMismatchError: that tokenizer is not the one of the datastore.
    """
    kept = None if store is None else store.path / TOKENIZER_FILE_NAME
    if name is None and (kept is None or not kept.exists()):
        return None

    @functools.cache  # recordings of token ids need no tokenizer
    def tokenizer() -> TargetTokenizer:
        from build_index.tokenization import load_tokenizer

        source = name if name is not None else os.fspath(kept or "")
        with loading(f"tokenizer {source}"):
            loaded = load_tokenizer(source)
        if store is not None:
            store.tokenizer.require_same(loaded.identity, store.path)
        return loaded

    def encode(prompt: str | Messages, answer: str) -> tuple[list[int], list[int]]:
        target = tokenizer()
        output = target.encode(answer).tolist()
        before = [("user", prompt)] if isinstance(prompt, str) else prompt
        text = "\n".join(content for _, content in before)
        try:
            whole = target.encode_history([*before, ("assistant", answer)]).tolist()
        except CorpusError:  # no chat template, or it refuses the chat
            return target.encode(text).tolist(), output
        for end in range(len(whole), len(output) - 1, -1):
            if whole[end - len(output) : end] == output:
                return whole[: end - len(output)], output
        return target.encode(text).tolist(), output

    return encode
