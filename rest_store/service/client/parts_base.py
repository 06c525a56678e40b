"""What `PartsClient` and `AsyncPartsClient` share: the clients of the parts, and which parts are away."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Generic, TypeVar

from rest_store.datastore.tokenizer import identity_of
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.drafting.evidence import Evidence
from rest_store.errors import LiveFormatError, QueryError, RestStoreError, TargetError, TreeError, describe
from rest_store.service.channel import seconds_of
from rest_store.service.client.assembly import Assembly
from rest_store.service.client.client_base import ClientBase
from rest_store.service.client.codec import Codec
from rest_store.service.client.counters import ClientCounters, ClientStatistics
from rest_store.service.client.merged_drafts import Drafts
from rest_store.service.client.part_groups import Groups, Targets, part_groups, path_of
from rest_store.service.client.requests import Requests, longest_match

C = TypeVar("C", bound=ClientBase)
T = TypeVar("T")
U = TypeVar("U")

_OF_CALLS = ("calls", "answers", "absent_parts", "unproved_trees")  # counted here, once for all parts
_OF_FAILURES = ("unavailable", "deadlines", "not_asked", "overloaded", "refused", "broken")
_LEAST_SECONDS = 1e-6
OF_CALLER = (QueryError, TreeError)  # errors in the arguments of a call, whichever part raises them
_READ_AGAIN = 1.0  # seconds after which a parts file is read again while a part is away


class PartsBase(Generic[C]):
    """A client of several parts without the calls, which either block or are awaited.

    Args:
        targets: a parts file, or for each part a list of the endpoints of its replicas.
        kind: makes the client of a part.
        options: of the client of each part.
    """

    def __init__(self, targets: Targets, kind: Callable[..., C], options: Mapping[str, Any]) -> None:
        for name in ("remember", "shared_calibration"):
            if options.get(name) is not None:
                raise TargetError(describe("client", name, ascii(options[name]), "None where a datastore is in parts"))
        self._groups = groups = part_groups(targets)
        self._file = path_of(targets)
        self._read_at = time.monotonic()
        self._options = dict(options)
        if (tokenizer := options.get("tokenizer")) is not None:
            self._options["tokenizer"] = identity_of(tokenizer)  # once for all parts
        self._timeout = seconds_of(options.get("timeout", 0.1))
        self._parts: list[C] = [kind(group, **self._options) for group in groups]
        self._counters = ClientCounters()
        self._codecs: list[Codec] = [part._codec for part in self._parts]
        self._requests_of: list[Requests] = [part._requests for part in self._parts]
        self._assembly = Assembly(groups, self._codecs)
        self._before_close: dict[Callable[[Any], object], None] = {}

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        """Pickle the arguments of the client, as `ClientBase.__reduce__`, with the present endpoints."""
        settled = next((codec.tokenizer for codec in self._codecs if codec.tokenizer is not None), None)
        options = {**self._options, **({} if settled is None else {"tokenizer": settled})}
        return functools.partial(_made_again, type(self), self._groups, self._file, options), ()

    @property
    def statistics(self) -> ClientStatistics:
        """What this client has done so far; attempts, circuits and streams are summed over all parts."""
        own, of_parts = self._counters.snapshot(), [part.statistics for part in self._parts]
        summed = [field.name for field in fields(own) if field.name not in (*_OF_CALLS, *_OF_FAILURES)]
        return replace(own, **{name: sum(getattr(one, name) for one in of_parts) for name in summed})

    def frozen(self) -> LiveFormatError:
        """Return the error of a call that would write."""
        return LiveFormatError(describe("client", f"datastore at {self._assembly}", "in parts, frozen", "a live one"))

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else seconds_of(timeout)

    def _ends(self, timeout: float | None) -> float:
        """Return the deadline of a call that begins now, for all parts together."""
        return time.monotonic() + self._seconds(timeout)

    @staticmethod
    def _end_of_round(ends: float) -> float:
        """Return the deadline of a round that others follow before `ends`, which leaves half of the time to them."""
        return ends - (ends - time.monotonic()) / 2

    @staticmethod
    def _left(ends: float) -> float:
        """Return the seconds left for a request; at least a microsecond, since a timeout of 0 is invalid."""
        return max(_LEAST_SECONDS, ends - time.monotonic())

    def _note(self, answers: Mapping[int, object], failures: Mapping[int, RestStoreError]) -> None:
        """Note which parts have answered; if one has not, look whether the parts file has new endpoints."""
        self._assembly.note(answers, failures)
        now = time.monotonic()
        if not failures or self._file is None or now - self._read_at < _READ_AGAIN:
            return
        self._read_at = now
        try:
            groups = part_groups(self._file)
        except TargetError:  # the file is missing or being written: the endpoints stay as they are
            return
        if len(groups) != len(self._parts) or groups == self._groups:
            return
        for part, group in zip(self._parts, groups, strict=True):
            part._move_to(group)
        self._assembly.move(groups)
        self._groups = groups

    def _require_usable(self) -> dict[int, Requests]:
        """Return the requests of the parts that can be asked; without any, raise the error that says why."""
        usable = {place: self._requests_of[place] for place in self._assembly.usable}
        if not usable:
            raise self._assembly.fault()
        return usable

    def require_answers(self, answers: Mapping[int, T]) -> list[T]:
        """Count an answered call and the parts missing from it; without answers, raise the error that says why."""
        if not answers:
            raise self._assembly.fault()
        self._answered()
        return [*answers.values()]

    def _answered(self) -> None:
        self._counters.add("calls", "answers")
        if absent := self._assembly.absent:
            self._counters.add("absent_parts", times=absent)

    def _require_drafts(self, drafts: Drafts | None) -> list[TokenTree]:
        """Count an answered call for trees, and return them; without any, raise the error that says why."""
        if drafts is None:
            raise self._assembly.fault()
        self._answered()
        if drafts.unproved:
            self._counters.add("unproved_trees", times=drafts.unproved)
        return drafts.trees

    def of_parts(self, answers: Iterable[list[Evidence] | None]) -> list[Evidence] | None:
        """Return the evidence of all parts that have answered; None if a service has no evidence."""
        found: list[Evidence] = []
        for of_part in answers:
            if of_part is None:
                return None
            found += of_part
        if found and (lacks := self._assembly.lacks):
            found[0] = replace(found[0], lacks=lacks)
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._assembly)!r})"


def _made_again(kind: Callable[..., Any], groups: Groups, file: str | None, options: Mapping[str, Any]) -> Any:
    """Return a client of type `kind`, which reads `file` again as the one that was pickled does."""
    client = kind(groups, **options)
    client._file = file
    return client


def all_give_evidence(usable: Mapping[int, Requests]) -> bool:
    """Return whether all parts that can be asked have evidence."""
    return all(requests.codec.max_evidence_rows for requests in usable.values())


def ask_together(
    starts: Mapping[int, Callable[[], Callable[[], T]]],
) -> tuple[dict[int, T], dict[int, RestStoreError]]:
    """Begin every call, by place, and then wait for each; return the answers, and the errors of failed calls.

    Raises:
        QueryError, TreeError: the arguments of the calls are invalid.
    """
    answers: dict[int, T] = {}
    failures: dict[int, RestStoreError] = {}
    waiting: dict[int, Callable[[], T]] = {}

    def attempt(place: int, call: Callable[[], U], results: dict[int, U]) -> None:
        try:
            results[place] = call()
        except OF_CALLER:
            raise
        except RestStoreError as error:
            failures[place] = error

    for place, start in starts.items():
        attempt(place, start, waiting)
    for place, finish in waiting.items():
        attempt(place, finish, answers)
    return answers, failures


def sum_of_matches(answers: Sequence[dict[str, SuffixMatch]]) -> SuffixMatch:
    """Return the longest match over all parts, with the sum of its counts; of equal datastores, that of the first."""
    whole = []
    for name in answers[0]:
        of_parts = [answer[name] for answer in answers]
        length = max(match.length for match in of_parts)
        whole.append(SuffixMatch(length, sum(match.count for match in of_parts if match.length == length)))
    return longest_match(whole)
