"""Calibrations: from evidence to acceptance probabilities, by boosted trees and online weights."""

from __future__ import annotations

import copy
import functools
import json
import os
import zlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import native_kernel
from rest_store.errors import DataFileError, describe

if TYPE_CHECKING:
    from rest_store._kernel import NativeCalibration

# A file is this line, a line of JSON, and the trees as zlib compresses them, with a checksum: those
# of `gbdt`, then the others. Older files have no `text_size`.
_FIRST_LINE = b"rest-store calibration\n"
_FIELDS = ("version", "weights", "provenance", "live_size")
_VERSION = 1  # of files, and of the features that the trees read


class Calibration:
    """Gradient-boosted trees over the features of a candidate, and experience that grows online.

    The experience is weights, and counts of how often the token that continues a long match came
    next (`rest_store/native/session/match_experience.hpp`). Files hold the weights alone: the
    counts belong to the texts that a process writes. Sessions that share a calibration learn
    together. Thread-safe.

    Args:
        gbdt: the packed trees of steps with recycled logits and without a live datastore, such as
            `fit(...).native.gbdt`; also of each kind of steps that has none of its own.
        weights: float[5], learnt online: a bias, and one weight each for candidates of prompt
            lookup, recycled logits, datastores, and of several sources.
        provenance: the data that it was fitted to, as JSON can hold it; kept in the file.
        live_gbdt: the trees of steps with recycled logits in which a live datastore takes part,
            fitted with one among the sources; empty: there are none, and a live datastore counts as
            any other.
        text_gbdt: the trees of steps without recycled logits, with live datastores or without
            them; empty: there are none, and such steps are scored as those with recycled logits.

    Raises:
        DataFileError: the trees have another format, or a number is not finite.
        NativeKernelError: the kernel was not compiled.
    """

    def __init__(
        self,
        gbdt: bytes,
        weights: list[float] | None = None,
        provenance: Mapping[str, Any] | None = None,
        live_gbdt: bytes = b"",
        text_gbdt: bytes = b"",
    ) -> None:
        try:
            self.native: NativeCalibration = native_kernel().NativeCalibration(
                gbdt, live_gbdt, text_gbdt
            )
        except (TypeError, ValueError) as error:
            fault = _fault(error, "malformed")
            raise DataFileError(
                describe("calibration", "gbdt", fault, "the trees of Calibration.fit")
            ) from error
        try:
            if weights is not None:
                self.native.weights = weights
        except (TypeError, ValueError) as error:
            fault = _fault(error, f"a {type(weights).__name__}")
            raise DataFileError(
                describe("calibration", "weights", fault, "five finite numbers")
            ) from error
        self.provenance = dict(provenance or {})

    @classmethod
    def default(cls) -> Calibration:
        """Return a new copy of the package's calibration.

        `provenance` says to which data it was fitted.
        """
        return _default().copy()

    def copy(self) -> Calibration:
        """Return a copy that begins with the same experience and learns on its own."""
        calibration = Calibration.__new__(Calibration)
        calibration.native = type(self.native)(self.native)  # shares the trees
        calibration.provenance = copy.deepcopy(self.provenance)
        return calibration

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Read a calibration that `save` wrote, with its online weights.

        Raises:
            DataFileError: the file cannot be read, is damaged, or was written by another release.
        """
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise DataFileError(
                describe(path, "calibration", f"unreadable ({error.strerror})", "a file")
            ) from error
        return cls(*_arguments(content, path))

    def __reduce__(self) -> tuple[Any, ...]:
        native = self.native
        trees = (native.live_gbdt, native.text_gbdt)
        return Calibration, (native.gbdt, self.weights, self.provenance, *trees)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write this calibration with its online weights.

        `path` holds the old file or the whole new one.

        Raises:
            DataFileError: the file cannot be written.
        """
        native = self.native
        head = {
            "version": _VERSION,
            "weights": self.weights,
            "provenance": self.provenance,
            "live_size": len(native.live_gbdt),
            "text_size": len(native.text_gbdt),
        }
        trees = zlib.compress(native.gbdt + native.live_gbdt + native.text_gbdt, 6)
        # Unique, since threads may write at the same time; without the name of `path`, which may be
        # as long as can be.
        target = Path(path)
        temporary = target.parent / f".{uuid4().hex}.tmp"
        try:
            temporary.write_bytes(
                _FIRST_LINE + json.dumps(head, sort_keys=True).encode() + b"\n" + trees
            )
            temporary.replace(target)
        except OSError as error:
            raise DataFileError(
                describe(
                    target, "calibration", f"not written ({error.strerror})", "a writable path"
                )
            ) from error
        finally:
            temporary.unlink(missing_ok=True)

    @property
    def weights(self) -> list[float]:
        """The online weights: five numbers of at most 1, zeros at first."""
        return [float(weight) for weight in self.native.weights]

    @classmethod
    def fit(
        cls,
        features: npt.NDArray[np.float32],
        labels: npt.NDArray[np.uint8],
        ends: npt.NDArray[np.uint32],
        *,
        trees: int = 250,
        rate: float = 0.12,
        row_share: float = 0.35,
        provenance: Mapping[str, Any] | None = None,
    ) -> Calibration:
        """Fit gradient-boosted trees to recorded candidates; the same input gives the same trees.

        Args:
            features: float32[rows, F], as sessions record them.
            labels: uint8[rows], 1 where the target model produced the candidate.
            ends: uint32[positions], where the rows of each position end; at most one row of a
                position is right.
            trees: number of trees.
            rate: learning rate.
            row_share: share of the positions that each tree is fitted to.
            provenance: kept with the calibration.

        Raises:
            DataFileError: the arrays do not fit together (`ends` that do not ascend, several right
                rows of one position, features that are not finite), or an option is out of range.
        """
        kernel = native_kernel()
        try:
            gbdt = kernel.fit_gbdt(
                np.ascontiguousarray(features, np.float32),
                np.ascontiguousarray(labels, np.uint8),
                np.ascontiguousarray(ends, np.uint32),
                trees,
                rate,
                row_share,
            )
        except (TypeError, ValueError, OverflowError) as error:
            fault = _fault(error, "of other shapes or types")
            expected = (
                f"finite float32[rows, {kernel.FEATURES}], uint8[rows] of 0 and 1, and ascending"
                " uint32[n]"
            )
            raise DataFileError(
                describe("fit", "features, labels and ends", fault, expected)
            ) from error
        return cls(gbdt, provenance=provenance)

    def __repr__(self) -> str:
        return (
            f"Calibration(weights={[round(weight, 3) for weight in self.weights]},"
            f" provenance={self.provenance})"
        )


@functools.cache
def _default() -> Calibration:
    """Return the package's calibration; callers must not change it."""
    content = resources.files(__package__).joinpath("default.calibration").read_bytes()
    return Calibration(*_arguments(content, "default"))


def _arguments(
    content: bytes, where: object
) -> tuple[bytes, list[float], dict[str, Any], bytes, bytes]:
    """Return the arguments of `Calibration` that a file holds.

    Raises:
        DataFileError: the file is malformed.
    """
    if not content.startswith(_FIRST_LINE):
        raise DataFileError(f"{where}: this is no calibration file")
    head, _, packed = content[len(_FIRST_LINE) :].partition(b"\n")
    try:
        fields = json.loads(head)
        version, weights, provenance, live_size = (fields[name] for name in _FIELDS)
        text_size = fields.get("text_size", 0)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataFileError(describe(where, "header", "damaged", "one line of JSON")) from error
    if version != _VERSION:
        raise DataFileError(describe(where, "version", version, _VERSION))
    try:
        trees = zlib.decompress(packed)
    except zlib.error as error:
        raise DataFileError(f"{where}: the trees are damaged ({error})") from error
    sizes = {"live_size": live_size, "text_size": text_size}
    for name, size in sizes.items():
        if not isinstance(size, int) or not 0 <= size < len(trees):
            expected = f"0..{len(trees) - 1}, the bytes of the trees"
            raise DataFileError(describe(where, name, size, expected))
    if live_size + text_size >= len(trees):
        expected = f"more than live_size and text_size, {live_size + text_size}"
        raise DataFileError(describe(where, "number of bytes of trees", len(trees), expected))
    if not isinstance(provenance, dict):
        raise DataFileError(describe(where, "provenance", repr(provenance)[:40], "a JSON object"))
    text = len(trees) - text_size
    live = text - live_size
    return trees[:live], weights, provenance, trees[live:text], trees[text:]


def _fault(error: Exception, otherwise: str) -> str:
    """Return the kernel's own message; `otherwise` for an error about types by its binding."""
    return str(error) if isinstance(error, ValueError) and str(error) else otherwise
