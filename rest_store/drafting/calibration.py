"""Calibrations: gradient-boosted trees and online weights that turn evidence into acceptance probabilities."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import native_kernel
from rest_store.drafting.whole_file import decompressed, write_whole
from rest_store.errors import CalibrationError, describe

if TYPE_CHECKING:
    from rest_store._kernel import NativeCalibration

_MAGIC = b"rest-store calibration\n"
_VERSION = 1  # of the file and of the features that the trees read
_LARGEST = 64 << 20  # bytes of trees; the default's take less than one percent of that


class Calibration:
    """Gradient-boosted trees over the features of a candidate, and a few weights that go on learning while in use.

    Sessions that share a calibration learn together. Thread-safe.

    Args:
        gbdt: the trees, as `fit` returns them.
        weights: float[5], learnt online: a bias, and one weight each for candidates of prompt lookup, recycled logits,
            datastores, and of several sources.
        provenance: the data that it was fitted to, as JSON can hold it; kept in the file.
        live_gbdt: the trees of steps in which a live datastore takes part, fitted with one among the sources; empty:
            there are none, and a live datastore counts as any other.

    Raises:
        CalibrationError: `gbdt` or `live_gbdt` is not what `fit` returns, a number is not finite, or JSON cannot hold
            `provenance`.
        NativeKernelError: the kernel was not compiled.
    """

    def __init__(
        self,
        gbdt: bytes,
        weights: list[float] | None = None,
        provenance: Mapping[str, Any] | None = None,
        live_gbdt: bytes = b"",
    ) -> None:
        try:
            self.native: NativeCalibration = native_kernel().NativeCalibration(gbdt, live_gbdt)
        except (TypeError, ValueError) as error:
            fault = _fault(error, "malformed")
            raise CalibrationError(describe("calibration", "gbdt", fault, "what Calibration.fit returns")) from error
        try:
            if weights is not None:
                self.native.weights = weights
        except (TypeError, ValueError) as error:
            fault = _fault(error, f"a {type(weights).__name__}")
            raise CalibrationError(describe("calibration", "weights", fault, "five finite numbers")) from error
        self.provenance = _json_object("calibration", {} if provenance is None else provenance)

    @classmethod
    def default(cls) -> Calibration:
        """Return a new copy of the package's calibration; `provenance` says to which data it was fitted."""
        default = _default()
        calibration = cls.__new__(cls)
        calibration.native = type(default.native)(default.native)  # shares the trees
        calibration.provenance = copy.deepcopy(default.provenance)
        return calibration

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Read a calibration that `save` wrote, including what it had learnt online.

        Raises:
            CalibrationError: the file cannot be read, is damaged, or was written by another release.
        """
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise CalibrationError(describe(path, "calibration", error.strerror, "a readable file")) from error
        return cls(*_parsed(content, path))

    def __reduce__(self) -> tuple[Any, ...]:
        return Calibration, (self.native.gbdt, self.weights, self.provenance, self.native.live_gbdt)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write this calibration with what it has learnt; `path` holds the old file or the whole new one.

        Raises:
            CalibrationError: the file cannot be written, or JSON cannot hold `provenance`.
        """
        target = Path(path)
        packed = zlib.compress(self.native.gbdt + self.native.live_gbdt, 9)
        head = {
            "version": _VERSION,
            "weights": self.weights,
            "provenance": _json_object(target, self.provenance),
            "sha256": hashlib.sha256(packed).hexdigest(),
            "live_size": len(self.native.live_gbdt),
        }
        try:
            write_whole(target, _MAGIC + json.dumps(head, sort_keys=True).encode() + b"\n" + packed)
        except OSError as error:
            raise CalibrationError(describe(target, "calibration", error.strerror, "a writable place")) from error

    @property
    def weights(self) -> list[float]:
        """What was learnt online: five numbers of at most 1, zeros at first."""
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
        ridge: float = 20.0,
        row_share: float = 0.35,
        provenance: Mapping[str, Any] | None = None,
    ) -> Calibration:
        """Fit gradient-boosted trees to recorded candidates; the same input gives the same trees.

        Args:
            features: float32[rows, F], as sessions record them.
            labels: uint8[rows], 1 where the target model produced the candidate.
            ends: uint32[places], where the rows of each place end; at most one row of a place is right.
            trees: number of trees.
            rate: learning rate.
            ridge: L2 regularisation of leaves.
            row_share: share of the places that each tree is fitted to.
            provenance: kept with the calibration.

        Raises:
            CalibrationError: the arrays do not belong together (`ends` that do not ascend, several right rows of one
                place, features that are not finite), an option is out of range, or JSON cannot hold `provenance`.
        """
        provenance = _json_object("fit", {} if provenance is None else provenance)
        kernel = native_kernel()
        try:
            gbdt = kernel.fit_gbdt(
                np.ascontiguousarray(features, np.float32),
                np.ascontiguousarray(labels, np.uint8),
                np.ascontiguousarray(ends, np.uint32),
                trees,
                rate,
                ridge,
                row_share,
            )
        except (TypeError, ValueError, OverflowError) as error:
            fault = _fault(error, "of other shapes or types")
            expected = f"finite float32[rows, {kernel.FEATURES}], uint8[rows] of 0 and 1, and ascending uint32[places]"
            raise CalibrationError(describe("fit", "features, labels and ends", fault, expected)) from error
        return cls(gbdt, provenance=provenance)

    def __repr__(self) -> str:
        return f"Calibration(weights={[round(weight, 3) for weight in self.weights]}, provenance={self.provenance})"


@functools.cache
def _default() -> Calibration:
    """Return the package's calibration, which is not to be changed."""
    return Calibration(*_parsed(resources.files(__package__).joinpath("default.calibration").read_bytes(), "default"))


def _parsed(content: bytes, where: object) -> tuple[bytes, list[float], dict[str, Any], bytes]:
    """Return what a file holds, as `Calibration` takes it; raise CalibrationError if it is not one of this release."""
    if not content.startswith(_MAGIC):
        raise CalibrationError(describe(where, "content", "something else", "a calibration"))
    head, _, packed = content[len(_MAGIC) :].partition(b"\n")
    try:
        fields = json.loads(head)
        version, weights, provenance = fields["version"], fields["weights"], fields["provenance"]
        digest, live_size = fields["sha256"], fields["live_size"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CalibrationError(describe(where, "header", "damaged", "one line of JSON")) from error
    if version != _VERSION:
        raise CalibrationError(describe(where, "version", version, _VERSION))
    if hashlib.sha256(packed).hexdigest() != digest:
        raise CalibrationError(describe(where, "checksum of the trees", "wrong", digest))
    try:
        trees = decompressed(packed, _LARGEST)
    except zlib.error as error:
        raise CalibrationError(describe(where, "trees", f"damaged ({error})", "compressed by zlib")) from error
    if not isinstance(live_size, int) or not 0 <= live_size < len(trees):
        raise CalibrationError(describe(where, "bytes of trees for live datastores", live_size, "as many as there are"))
    rest = len(trees) - live_size
    return trees[:rest], [] if weights is None else weights, _json_object(where, provenance), trees[rest:]


def _json_object(where: object, value: object) -> dict[str, Any]:
    """Return a copy of the provenance `value` as JSON holds it; raise CalibrationError if it cannot."""
    try:
        if isinstance(value, Mapping):
            return json.loads(json.dumps(dict(value)))  # type: ignore[no-any-return]
        fault = f"a {type(value).__name__}"
    except (TypeError, ValueError, RecursionError) as error:
        fault = f"something else ({error})"
    raise CalibrationError(describe(where, "provenance", fault, "a JSON object"))


def _fault(error: Exception, otherwise: str) -> str:
    """Return the kernel's own words, but not those of its binding about types."""
    return str(error) if isinstance(error, ValueError) and str(error) else otherwise
