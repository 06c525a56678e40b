"""Which parts of a datastore belong together, and which of them are away."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rest_store.errors import PartError, RestStoreError, ServiceUnavailableError, describe
from rest_store.service.client.answers import PartInfo, ServedDatastore, ServiceInfo
from rest_store.service.client.codec import Codec
from rest_store.service.client.process_lock import ProcessLock

_LOOK_AGAIN = 1.0  # seconds after which a part that does not belong to the others is described again


class Assembly:
    """The parts of one datastore, by their places among the groups of endpoints. Thread-safe.

    The first descriptions must agree on the build. From then on it is the build of most parts; on a tie it stays as it
    was. Parts of other builds are left out.

    Args:
        groups: for each part the endpoints of its replicas.
        codecs: the codec of each part's client.
    """

    def __init__(self, groups: Sequence[Sequence[str]], codecs: Sequence[Codec]) -> None:
        self._targets = [tuple(group) for group in groups]
        self._codecs = codecs
        for codec in codecs:
            codec.asks_parts = True
        self._lock = ProcessLock()
        self._infos: dict[int, ServiceInfo] = {}
        self._faults: dict[int, RestStoreError] = {}  # of the latest answer
        self._misplaced: dict[int, tuple[RestStoreError, float]] = {}  # what is wrong, and when it was found
        self._build: tuple[str, ...] = ()  # of each datastore; empty: not known yet

    def __str__(self) -> str:
        return "; ".join(map(", ".join, self._targets))

    @property
    def undescribed(self) -> list[int]:
        """The parts whose description has to be asked for before they can be asked."""
        now = time.monotonic()

        def is_due(place: int) -> bool:
            if not self._build or not self._codecs[place].is_known:
                return True
            return place in self._misplaced and now - self._misplaced[place][1] >= _LOOK_AGAIN

        with self._lock:
            return [place for place in range(len(self._codecs)) if is_due(place)]

    def learn(self, infos: Mapping[int, ServiceInfo]) -> None:
        """Take in descriptions of parts.

        Raises:
            TokenizerMismatchError, PartError: they do not belong together, and no build is known yet.
        """
        with self._lock:
            self._infos.update(infos)
            known = {place: info for place, info in sorted(self._infos.items()) if self._codecs[place].is_known}
            builds = {place: _build_of(info) for place, info in known.items()}
            if not known:
                return
            number = Counter(builds.values())
            build = max(number, key=lambda build: (number[build], build == self._build))
            first = next(place for place in known if builds[place] == build)
            now, settled = time.monotonic(), bool(self._build)
            misplaced: dict[int, tuple[RestStoreError, float]] = {}
            taken: dict[int, int] = {}  # number of a part -> its place
            for place in (first, *(place for place in known if place != first)):
                try:
                    self._require_fits(place, known[place], first, known[first], taken)
                except RestStoreError as error:
                    if not settled:
                        raise
                    misplaced[place] = error, now
            self._misplaced = misplaced
            self._build = build

    def _require_fits(
        self, place: int, info: ServiceInfo, first: int, model: ServiceInfo, taken: dict[int, int]
    ) -> None:
        """Raise an error unless a part is of the build of the part in place `first`, and its number is not `taken`."""
        where, parts = self._name(place), len(self._targets)
        model.tokenizer.require_same(info.tokenizer, where)
        names = [datastore.name for datastore in info.datastores]
        expected = [datastore.name for datastore in model.datastores]
        if names != expected:
            other = self._name(first)
            raise PartError(describe(where, "datastores", ", ".join(names), f"{', '.join(expected)} as of {other}"))
        for datastore, same in zip(info.datastores, model.datastores, strict=True):
            what, part = f"datastore '{datastore.name}'", datastore.part
            if part is None:
                if parts > 1:
                    raise PartError(describe(where, what, "the whole", f"one of {parts} parts"))
                continue
            if part.parts != parts:
                numbers = {own.part.number for known in self._infos.values() for own in known.datastores if own.part}
                absent = sorted(set(range(1, min(part.parts, 1024) + 1)) - numbers)
                expected_parts = f"{part.parts} parts"
                if parts < part.parts:
                    expected_parts += f": {', '.join(f'{number}/{part.parts}' for number in absent[:8])} missing"
                raise PartError(describe(where, f"number of groups for {what}", parts, expected_parts))
            if same.part is not None and part.build != same.part.build:
                expected_build = f"{same.part.build} as of {self._name(first)}"
                raise PartError(describe(where, f"build of {what}", part.build, expected_build))
        if (own := info.datastores[0].part) is not None:
            if own.number in taken:
                found = f"also at {self._name(taken[own.number])}"
                expected_place = "each part in one group of endpoints"
                raise PartError(describe(where, f"part {own.number}/{parts}", found, expected_place))
            taken[own.number] = place

    def _name(self, place: int) -> str:
        return ", ".join(self._targets[place])

    @property
    def usable(self) -> list[int]:
        """The parts that can be asked: they have been described, and belong together."""
        with self._lock:
            return self._usable

    @property
    def _usable(self) -> list[int]:
        return [place for place, codec in enumerate(self._codecs) if codec.is_known and place not in self._misplaced]

    def move(self, groups: Sequence[Sequence[str]]) -> None:
        """Take in new endpoints of the parts."""
        with self._lock:
            self._targets = [tuple(group) for group in groups]

    def note(self, answered: Iterable[int], failures: Mapping[int, RestStoreError]) -> None:
        """Note which parts have answered, and why others have not.

        A part that says that it is another part now has to be described again.
        """
        with self._lock:
            for place in answered:
                self._faults.pop(place, None)
            for place, error in failures.items():
                self._faults[place] = error
                if isinstance(error, PartError):
                    self._codecs[place].forget()

    @property
    def _absences(self) -> dict[int, RestStoreError]:
        return {**self._faults, **{place: error for place, (error, _) in self._misplaced.items()}}

    @property
    def absent(self) -> int:
        """How many parts are missing from the latest answer."""
        with self._lock:
            return len(self._absences)

    @property
    def lacks(self) -> str:
        """Why parts are missing from the latest answer, as text; empty: none are."""
        with self._lock:
            return "; ".join(f"without a part: {error}" for _, error in sorted(self._absences.items()))

    def fault(self) -> RestStoreError:
        """Return why no part has answered."""
        with self._lock:
            absences = self._absences
        return absences[min(absences)] if absences else ServiceUnavailableError(f"{self}: no part has answered")

    def info(self) -> ServiceInfo:
        """Return the description of the whole datastore, from those of the `usable` parts, at least one."""
        with self._lock:
            absences = self._absences
            parts = tuple(
                PartInfo(
                    targets,
                    self._infos[place].datastores[0].part if place in self._infos else None,
                    str(absences[place]) if place in absences else None,
                    self._infos.get(place),
                )
                for place, targets in enumerate(self._targets)
            )
            there = [self._infos[place] for place in self._usable if place in self._infos]
        first = there[0]
        limits = {name: min(info.limits[name] for info in there) for name in first.limits}
        merged = tuple(_sum_of([info.datastores[place] for info in there]) for place in range(len(first.datastores)))
        return ServiceInfo(str(self), first.version, first.kernel, merged, limits, parts)


def _build_of(info: ServiceInfo) -> tuple[str, ...]:
    """Return what identifies the build of each datastore."""
    return tuple(
        f"{datastore.name} {datastore.built}" if datastore.part is None else datastore.part.build
        for datastore in info.datastores
    )


def _sum_of(parts: Sequence[ServedDatastore]) -> ServedDatastore:
    """Return the description of all these parts of one datastore together."""
    sums = {
        name: sum(getattr(part, name) for part in parts)
        for name in ("token_count", "document_count", "shard_count", "size")
    }
    return replace(parts[0], **sums, part=None)
