"""A model of the time that a step of a serving engine takes on a device, read from a file."""

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
        fixed: for each step.
        cached_token: for each token in the KV cache.
        draft_token: for each token that it drafts.
        share: a factor of the time of verifying, which is added.
    """

    fixed: float = 0.0
    cached_token: float = 0.0
    draft_token: float = 0.0
    share: float = 0.0


@dataclass(frozen=True)
class CostModel:
    """A linear model of the seconds of a step.

    Each sequence adds cached tokens x cached_token + verified tokens x verified_token to
    fixed + overhead.

    Attributes:
        fixed: for each forward pass.
        overhead: for each step, outside its forward pass.
        cached_token: for each token in the KV cache.
        verified_token: for each token of the step.
        drafters: costs of other drafters, by their names in recordings.
        source: the measurement that the model comes from.
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

        `drafters` holds objects with the fields of `DrafterCosts`.

        Raises:
            DataFileError: the file cannot be read, or is no such object.
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
        is_valid = all(0 <= time < np.inf for time in times.values())
        if not is_valid or times["fixed"] + times["verified_token"] <= 0:
            raise DataFileError(
                f"{path}: a time of the cost model is negative or infinite, or fixed and"
                " verified_token are both 0"
            )
        return cls(**times, drafters=drafters, source=str(fields.get("source", path.name)))


@dataclass(frozen=True)
class Batch:
    """Steps of several sequences that are all alike.

    Attributes:
        model: the time of a step.
        sequences: number of sequences in a step.
        drafting: seconds of drafting for a sequence; None: as measured.
    """

    model: CostModel
    sequences: int
    drafting: float | None = None

    def time(self, cached: int, verified: int) -> float:
        """Return the seconds of a step without drafting.

        Args:
            cached: tokens of each sequence in the KV cache.
            verified: tokens of each sequence that are verified: one, and draft tokens.
        """
        sequence = cached * self.model.cached_token + verified * self.model.verified_token
        return self.model.fixed + self.model.overhead + self.sequences * sequence

    def costs(self, cached: int, max_tokens: int) -> npt.NDArray[np.float64]:
        """Return the seconds of steps that verify 0, 1, ... draft tokens of each sequence.

        The result is float64[max_tokens + 1].
        """
        return np.linspace(self.time(cached, 1), self.time(cached, 1 + max_tokens), max_tokens + 1)

    def step(self, cached: int, drafted: int, measured: float) -> float:
        """Return the seconds of a step with its drafting.

        Args:
            cached: tokens of each sequence in the KV cache.
            drafted: draft tokens of each sequence.
            measured: seconds that drafting took for one sequence.
        """
        drafting = measured if self.drafting is None else self.drafting
        return self.time(cached, 1 + drafted) + self.sequences * drafting

    @property
    def drafting_seconds(self) -> float:
        """Seconds of drafting in a step, for all sequences; 0 where it is measured."""
        return self.sequences * (self.drafting or 0.0)

    def plain(self, begin: int, end: int) -> float:
        """Return the seconds of plain steps that write the tokens from `begin` to `end`."""
        return (end - begin) * (self.time(begin, 1) + self.time(end - 1, 1)) / 2

    def beside(self, name: str, cached: int, length: int) -> float:
        """Return the seconds that another drafter adds to a step that verifies `length` tokens."""
        costs = self.model.drafters.get(name, DrafterCosts())
        sequence = cached * costs.cached_token + length * costs.draft_token
        own_seconds = costs.fixed + self.sequences * sequence
        return self.time(cached, 1 + length) * costs.share + own_seconds

    def simulate_drafter(
        self, name: str, accepted: Sequence[int], prompt: int, length: int
    ) -> tuple[int, float]:
        """Return steps and seconds of another drafter that always drafts `length` tokens.

        Args:
            name: the name of the drafter.
            accepted: for each position, the tokens that it would bring in a step, the bonus token
                included.
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


def make_batches(model: CostModel, sizes: Sequence[int], drafting_us: float | None) -> list[Batch]:
    """Return a batch of each size.

    Args:
        model: the time of a step.
        sizes: numbers of sequences.
        drafting_us: microseconds of drafting for a sequence; None: as measured.
    """
    drafting = None if drafting_us is None else drafting_us / 1e6
    return [Batch(model, size, drafting) for size in sizes]
