"""What a step of a serving engine would cost: a model of its time on a device, read from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.errors import DataFileError, describe

_TIMES = ("fixed", "overhead", "cached_token", "verified_token")
_EXPECTED = f"a JSON object with {', '.join(_TIMES)} in seconds"


@dataclass(frozen=True)
class DrafterCosts:
    """Seconds that another drafter takes in a step.

    Attributes:
        fixed: of a step.
        cached_token: for each token in the KV cache.
        draft_token: for each token that it drafts.
        share: of the time of verifying.
    """

    fixed: float = 0.0
    cached_token: float = 0.0
    draft_token: float = 0.0
    share: float = 0.0


@dataclass(frozen=True)
class CostModel:
    """Seconds of a step: fixed + overhead + rows x (cached tokens x
    cached_token + verified tokens x verified_token).

    Attributes:
        fixed: of a forward pass.
        overhead: of a step outside it.
        cached_token: for each token in the KV cache.
        verified_token: for each token of the step.
        drafters: what other drafters take, by the name that recordings give them.
        source: what was measured, and by whom.
    """

    fixed: float
    overhead: float
    cached_token: float
    verified_token: float
    drafters: Mapping[str, DrafterCosts]
    source: str

    @classmethod
    def read(cls, path: Path) -> CostModel:
        """Read a file: a JSON object with these fields.

        `drafters` holds objects with those of `DrafterCosts`.

        Raises:
            DataFileError: it cannot be read, or is something else.
        """
        try:
            fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            drafters = {
                name: DrafterCosts(**costs) for name, costs in fields.get("drafters", {}).items()
            }
            times = {name: float(fields[name]) for name in _TIMES}
        except OSError as error:
            raise DataFileError(
                describe(path, "cost model", f"unreadable ({error.strerror})", _EXPECTED)
            ) from error
        except KeyError as error:
            raise DataFileError(
                describe(path, f"cost model's {error.args[0]}", "absent", _EXPECTED)
            ) from error
        except (ValueError, TypeError, AttributeError) as error:
            raise DataFileError(
                describe(path, "cost model", f"malformed ({error})", _EXPECTED)
            ) from error
        if (
            not all(0 <= time < np.inf for time in times.values())
            or times["fixed"] + times["verified_token"] <= 0
        ):
            raise DataFileError(
                describe(
                    path, "cost model", "of other numbers", "seconds, of which some are above 0"
                )
            )
        return cls(**times, drafters=drafters, source=str(fields.get("source", path.name)))


@dataclass(frozen=True)
class Batch:
    """Steps of several rows that are all alike.

    Attributes:
        model: what a step takes.
        rows: of a step.
        drafting: seconds that drafting takes for a row; None: what is measured.
    """

    model: CostModel
    rows: int
    drafting: float | None = None

    def time(self, cached: int, verified: int) -> float:
        """Return the seconds of a step that verifies so many tokens of each row, without drafting.

        Args:
            cached: tokens of each row in the KV cache.
            verified: one, and draft tokens.
        """
        row = cached * self.model.cached_token + verified * self.model.verified_token
        return self.model.fixed + self.model.overhead + self.rows * row

    def costs(self, cached: int, most: int) -> npt.NDArray[np.float64]:
        """Return the seconds of a step that verifies 0 ..

        most draft tokens of each row, float64[most + 1].
        """
        return np.linspace(self.time(cached, 1), self.time(cached, 1 + most), most + 1)

    def step(self, cached: int, drafted: int, measured: float) -> float:
        """Return the seconds of a step with so many draft tokens of each row.

        Drafting took `measured` for one.
        """
        drafting = measured if self.drafting is None else self.drafting
        return self.time(cached, 1 + drafted) + self.rows * drafting

    @property
    def of_sessions(self) -> float:
        """Seconds that drafting takes in a step, for all rows; 0 where it is measured."""
        return self.rows * (self.drafting or 0.0)

    def plain(self, begin: int, end: int) -> float:
        """Return the seconds of the steps that write the
        tokens from `begin` to `end` one by one.
        """
        return (end - begin) * (self.time(begin, 1) + self.time(end - 1, 1)) / 2

    def beside(self, name: str, cached: int, length: int) -> float:
        """Return the seconds of a step that another drafter
        adds to verifying its `length` tokens.
        """
        costs = self.model.drafters.get(name, DrafterCosts())
        row = cached * costs.cached_token + length * costs.draft_token
        return self.time(cached, 1 + length) * costs.share + costs.fixed + self.rows * row

    def drafted_by(
        self, name: str, accepted: Sequence[int], prompt: int, length: int
    ) -> tuple[int, float]:
        """Return steps and seconds of another drafter that always drafts `length` tokens.

        Args:
            name: of the drafter.
            accepted: tokens that it would bring in a step at each position, the bonus token
                counted.
            prompt: tokens before the output.
            length: tokens that it drafts.
        """
        position = steps = 0
        seconds = 0.0
        while position < len(accepted):
            cached = prompt + position
            seconds += self.time(cached, 1 + length) + self.beside(name, cached, length)
            position += min(accepted[position], length + 1)
            steps += 1
        return steps, seconds


def batches_of(model: CostModel, rows: Sequence[int], drafting_us: float | None) -> list[Batch]:
    """Return batches of so many rows, each drafted for in `drafting_us` microseconds.

    None: as measured.
    """
    return [
        Batch(model, number, None if drafting_us is None else drafting_us / 1e6) for number in rows
    ]
