"""Recordings of a model's outputs, read from JSON lines, and their split for fitting."""

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

FOLDS = 10  # of all prompts
FIT_FOLDS = 7  # the first ones are for fitting, the others for reporting
MIN_TO_FIT = 20  # recordings
_LAST_TOKEN = 2**31 - 1


@dataclass(frozen=True)
class Recording:
    """One recorded generation.

    Attributes:
        family: kind of task, for reports.
        fold: 0..9, by a fixed hash of the prompt, or of the task's id where several prompts belong
            to one task.
        prompt: int32[p].
        output: int32[n].
        top_k: int32[p + n, k], most likely tokens after each position of prompt + output; k may be
            0.
        key: identifies the task, as in `RecordedOutput`.
        file: hash of its file. A calibration holds the hashes of the files it was fitted to.
        drafters: by name of another drafter, int32[n]: the tokens that it would bring in a step
            that begins after so many tokens of the output, the bonus token counted.
    """

    family: str
    fold: int
    prompt: npt.NDArray[np.int32]
    output: npt.NDArray[np.int32]
    top_k: npt.NDArray[np.int32]
    key: str = ""
    file: str = ""
    drafters: Mapping[str, npt.NDArray[np.int32]] = field(default_factory=dict)


def fold_number(key: str) -> int:
    """Return the fold, 0..9, of the prompt with this key; the same in every release."""
    return int(hashlib.sha256(b"split 1 " + key.encode()).hexdigest(), 16) % FOLDS


def read_recordings(path: str | Path, encode: Encode | None = None) -> list[Recording]:
    """Read recordings: JSON lines, also as `.gz`, in the formats of `recorded_outputs`.

    Texts become token ids by `encode`.

    Raises:
        DataFileError: the file cannot be read, or a line is not a valid recording.
    """
    file = file_hash(Path(path))
    recordings = []
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        for generation in recorded_outputs(line, where):
            recordings.append(_recording(generation, where, encode, file))
    return recordings


def _recording(
    generation: RecordedOutput, where: str, encode: Encode | None, file: str
) -> Recording:
    prompt, output, top_k, family, key, drafters = generation
    is_text = isinstance(prompt, str) or (prompt and isinstance(prompt[0], tuple))
    if isinstance(output, str) and is_text:
        if encode is None:
            raise DataFileError(f"{where}: prompt and output are text; pass --tokenizer")
        prompt, output = encode(prompt, output)
    try:
        prompt_ids = integers(prompt, 0)
        output_ids = integers(output, 0)
        likely = integers(top_k or np.zeros((0, 0)), -1)
        accepted = {name: integers(counts, 1) for name, counts in drafters.items()}
    except (TypeError, ValueError, OverflowError) as error:
        expected = "prompt and output both as token ids, or both as text"
        raise DataFileError(f"{where}: recording has other types, expected {expected}") from error
    size = prompt_ids.size + output_ids.size
    ranks = (prompt_ids.ndim, output_ids.ndim, likely.ndim)
    if ranks != (1, 1, 2) or len(likely) not in (0, size):
        raise DataFileError(
            f"{where}: recording has other shapes, expected ids, and top-k of each position"
        )
    if any(counts.shape != output_ids.shape for counts in accepted.values()):
        expected = "a number for each token of the output"
        raise DataFileError(f"{where}: acceptance has another length, expected {expected}")
    fold = fold_number(key or str(generation.prompt))
    return Recording(family, fold, prompt_ids, output_ids, likely, key, file, accepted)


def read_all(
    paths: Sequence[Path], stores: Mapping[str, Store], tokenizer: str | None
) -> list[Recording]:
    """Read several files.

    Texts become tokens with `tokenizer`, or with the copy in the first datastore.
    """
    encode = encoder(next(iter(stores.values()), None), tokenizer)
    recordings = []
    for path in paths:
        recordings += read_recordings(path, encode)
    return recordings


def remembered(
    paths: Sequence[Path],
    replayed: Iterable[Recording],
    stores: Mapping[str, Store],
    tokenizer: str | None,
) -> dict[str, list[Recording]]:
    """Return the histories of --history-from: for each file, its recordings and those before.

    The key of a history is the names of its files. Recordings that are `replayed` are left out. The
    other arguments are those of `read_all`.
    """
    excluded = {(one.prompt.tobytes(), one.output.tobytes()) for one in replayed}
    known: list[Recording] = []
    histories: dict[str, list[Recording]] = {}
    for number, path in enumerate(paths, 1):
        for one in read_all([path], stores, tokenizer):
            if (one.prompt.tobytes(), one.output.tobytes()) not in excluded:
                known.append(one)
        histories[" and ".join(path.name for path in paths[:number])] = list(known)
    return histories


def split(
    recordings: Sequence[Recording], where: str, *, minimum: int = 2
) -> tuple[list[Recording], list[Recording]]:
    """Return the recordings for fitting and those for reporting, without those that have no output.

    Args:
        recordings: all of them.
        where: the command, for messages.
        minimum: number of recordings that are needed.

    Raises:
        DataFileError: there are fewer, or one of the two is empty.
    """
    written = [recording for recording in recordings if recording.output.size]
    fitting = [recording for recording in written if recording.fold < FIT_FOLDS]
    held_out = [recording for recording in written if recording.fold >= FIT_FOLDS]
    if len(written) < minimum or not fitting or not held_out:
        raise DataFileError(
            f"{where}: number of recordings with output is {len(written)}, by a hash"
            f" {len(fitting)} to fit to and {len(held_out)} to report on, expected at least"
            f" {minimum}, and some of each: record more prompts, or use the calibration of the"
            " package"
        )
    return fitting, held_out


def unfitted(
    recordings: Iterable[Recording], calibration: Calibration, where: str
) -> list[Recording]:
    """Return the recordings that have output and to which `calibration` was not fitted.

    Its `provenance` has under "data" the hashes of files; the calibration was fitted to the first
    `FIT_FOLDS` folds of each.

    Args:
        recordings: all of them.
        calibration: the calibration that is used with them.
        where: the command, for messages.

    Raises:
        DataFileError: there is none.
    """
    data = calibration.provenance.get("data")
    files = data if isinstance(data, list) else []
    chosen = [
        recording
        for recording in recordings
        if recording.output.size and (recording.fold >= FIT_FOLDS or recording.file not in files)
    ]
    if not chosen:
        figure = "number of recordings with output that the calibration was not fitted to"
        raise DataFileError(describe(where, figure, 0, "at least one: record more prompts"))
    return chosen


def amount(recordings: Sequence[Recording]) -> str:
    """Return the number of recordings and of their output tokens as text."""
    tokens = sum(recording.output.size for recording in recordings)
    return f"{counted(len(recordings), 'recording')}, {counted(tokens, 'token')}"


def without(recordings: Sequence[Recording], reported: Sequence[Recording]) -> str:
    """Return the numbers of `recordings` that are not `reported`, by reason, as text."""
    empty = sum(not recording.output.size for recording in recordings)
    fitted = len(recordings) - empty - len(reported)
    reasons = {"that the calibration was fitted to": fitted, "without output": empty}
    counts = [f"{number} {reason}" for reason, number in reasons.items() if number]
    return f"; left out: {', '.join(counts)}" if counts else ""


def tokenizer_identity(stores: Mapping[str, Store], tokenizer: str | None) -> TokenizerIdentity:
    """Return the identity of the tokenizer: that of the first datastore, or of `tokenizer`.

    Raises:
        DataFileError: there is neither.
    """
    for store in stores.values():
        return store.tokenizer
    if tokenizer is None:
        expected = "--datastore or --tokenizer"
        raise DataFileError(
            describe("bench replay", "tokenizer of the recordings", "unknown", expected)
        )
    from build_index.tokenization import load_tokenizer

    return load_tokenizer(tokenizer).identity


def integers(values: object, minimum: int) -> npt.NDArray[np.int32]:
    """Return `values` as int32; raise ValueError unless all are integers of at least `minimum`."""
    array = np.array(values)
    if array.size:
        if array.dtype.kind not in "iu":
            raise ValueError("not integers")
        if int(array.min()) < minimum or int(array.max()) > _LAST_TOKEN:
            raise ValueError("not integers of the range")
    return array.astype(np.int32)


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file or a `.gz` with their numbers, without blank ones.

    Raises:
        DataFileError: the file cannot be read.
    """
    open_file = gzip.open if str(path).endswith(".gz") else open
    try:
        with open_file(path, "rt", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except UnicodeDecodeError as error:
        raise DataFileError(describe(path, "file", "not UTF-8", "lines of UTF-8")) from error
    except (OSError, EOFError, zlib.error) as error:
        problem = f"unreadable ({getattr(error, 'strerror', None) or error})"
        raise DataFileError(describe(path, "file", problem, "lines of UTF-8")) from error


def encoder(store: Store | None, name: str | None) -> Encode | None:
    """Return a function from prompt and answer to their tokens in a chat; None: no tokenizer.

    Args:
        store: a datastore that may hold a tokenizer; None: there is no datastore.
        name: name or path of a tokenizer to use instead.

    Raises:
        TokenizerMismatchError: that tokenizer is not the one of the datastore.
    """
    stored = None if store is None else store.path / TOKENIZER_FILE_NAME
    if name is None and (stored is None or not stored.exists()):
        return None

    @functools.cache  # recordings of token ids need no tokenizer
    def tokenizer() -> TargetTokenizer:
        from build_index.tokenization import load_tokenizer

        source = name if name is not None else os.fspath(stored or "")
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
