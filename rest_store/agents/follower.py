"""Following files: changed files are read again, as inotify names them; at rest, nothing is done.

Watching is `watchfiles`, which waits for inotify. Directories are watched as a whole, files through
the directories that they are in, since editors put a new file in the place of the old one.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from build_index.readers.gitignore import FILE_NAME as IGNORE_FILE
from build_index.readers.source_tree import DEFAULT_EXCLUDES
from rest_store.agents.memory import AgentMemory, Place
from rest_store.errors import CorpusError
from rest_store.extras import named_extras

if TYPE_CHECKING:
    from watchfiles import Change

_STEP = 200  # milliseconds without a change after which changes are handed over; each is a wake
_DEBOUNCE = 400  # milliseconds after which they are, in any case
_WAIT = 2_000  # milliseconds after which a watcher looks whether it is to end
_MANY = 1_000  # changes at once, from which on some may have been lost
_REST = 20  # times as long as reading a file took, it is not read again
# Times as long as discarding took, nothing is discarded again. It writes whole segments anew, and
# additions wait meanwhile.
_DISCARDING_REST = 4
_HEADS = ("HEAD", "packed-refs")


class Follower:
    """Keeps a memory up to date with files.

    Args:
        memory: that holds them.
        places: of the files.
        sync_history: called with no argument when a branch of a repository has moved.

    Raises:
        MissingExtraError: `watchfiles` is not installed.
    """

    def __init__(
        self,
        memory: AgentMemory,
        places: Sequence[Place],
        *,
        sync_history: Callable[[], None] | None = None,
    ) -> None:
        with named_extras("following files"):
            import watchfiles  # noqa: F401 - a missing package is named at once
        self._memory = memory
        self._places = places
        self._sync_history = sync_history
        self._changed: queue.SimpleQueue[set[str] | BaseException | None] = queue.SimpleQueue()
        self._ends = threading.Event()
        self._own = f"{os.path.realpath(memory.live.path)}"
        self._after: dict[tuple[int, str], float] = {}  # when a path may be read again

    def stop(self) -> None:
        """Have `run` return soon; may be called by any thread, and by a handler of a signal."""
        self._ends.set()
        self._changed.put(set())

    def run(self) -> None:
        """Follow until `stop`.

        Raises:
            StorageError: the memory cannot be written.
            OSError: there are more directories than the system watches.
        """
        watchers = self._watchers()
        for watcher in watchers:
            watcher.start()
        try:
            self._follow(len(watchers))
        finally:
            self._ends.set()
            for watcher in watchers:
                watcher.join()

    def _follow(self, watchers: int) -> None:
        everything = {(number, "") for number in range(len(self._places))}
        pending: set[tuple[int, str]] = set()
        has_history = True
        has_replaced = True
        discarding = 0.0  # when documents may be discarded again
        while not self._ends.is_set():
            times = [self._after.get(path, 0.0) for path in pending]
            if has_replaced:
                times.append(discarding)
            for paths in self._next(min(times, default=None)):
                if isinstance(paths, BaseException):
                    raise paths
                if paths is None:  # a watcher has begun; files may have changed before
                    watchers -= 1
                    pending |= everything if not watchers else set()
                    continue
                has_history |= any(map(self._is_head, paths))
                pending |= everything if len(paths) > _MANY else self._places_of(paths)
            now = time.monotonic()
            ready = {path for path in pending if self._after.get(path, 0.0) <= now}
            pending -= ready
            self._read(ready)
            if has_history and not watchers and self._sync_history is not None:
                has_history = False
                has_replaced = True
                with suppress(CorpusError):  # git is in the middle of something
                    self._sync_history()
            has_replaced |= bool(ready)
            began = time.monotonic()
            if has_replaced and began >= discarding:
                has_replaced = False
                self._memory.discard()
                ended = time.monotonic()
                discarding = ended + _DISCARDING_REST * (ended - began)

    def _next(self, until: float | None) -> Iterable[set[str] | BaseException | None]:
        """Wait for changes until a time, if there is one; yield all that there are by then."""
        timeout = None if until is None else max(0.0, until - time.monotonic())
        with suppress(queue.Empty):
            yield self._changed.get(timeout=timeout)
            while True:
                yield self._changed.get_nowait()

    def _read(self, ready: set[tuple[int, str]]) -> None:
        whole = {number for number, relative in ready if not relative}
        for number, place in enumerate(self._places):
            paths = sorted(relative for one, relative in ready if one == number)
            for relative in [""] if number in whole else _without_nested(paths):
                began = time.monotonic()
                self._memory.sync(place, [relative])
                took = time.monotonic() - began
                self._after[number, relative] = time.monotonic() + _REST * took
        now = time.monotonic()
        self._after = {path: end for path, end in self._after.items() if end > now}

    def _places_of(self, paths: Iterable[str]) -> set[tuple[int, str]]:
        """Return the paths to look at: a place by its number, and a path relative to it."""
        changed: set[tuple[int, str]] = set()
        for path in paths:
            for number, place in enumerate(self._places):
                top = place.source.top
                if path == top:
                    changed.add((number, ""))
                elif place.source.is_directory and path.startswith(f"{top.rstrip('/')}/"):
                    relative = path[len(top.rstrip("/")) + 1 :]
                    if relative.rpartition("/")[2] == IGNORE_FILE:
                        relative = ""
                    names = relative.split("/")
                    if relative == ".git/info/exclude":
                        changed.add((number, ""))
                    elif not DEFAULT_EXCLUDES.intersection(names):
                        changed.add((number, relative))
        return changed

    def _is_head(self, path: str) -> bool:
        above, _, inner = path.partition("/.git/")
        return bool(above) and (inner in _HEADS or inner.startswith("refs/heads/"))

    def _watchers(self) -> list[threading.Thread]:
        tops = {place.source.top for place in self._places if place.source.is_directory}
        files = {place.source.top for place in self._places} - tops
        parents = {os.path.dirname(file) for file in files}  # noqa: PTH120 - a text
        watched = [(sorted(tops), True), (sorted(parents), False)]
        return [
            threading.Thread(
                target=self._watch, args=(paths, recursive), name="rest-store watch", daemon=True
            )
            for paths, recursive in watched
            if paths
        ]

    def _watch(self, paths: Sequence[str], recursive: bool) -> None:
        from watchfiles import watch

        is_ready = False

        def say_ready() -> None:
            nonlocal is_ready
            if not is_ready:
                is_ready = True
                self._changed.put(None)

        def is_of_interest(change: Change, path: str) -> bool:
            say_ready()  # where others change files all the time, there is no other sign
            return self._is_of_interest(path)

        try:
            for changes in watch(
                *paths,
                watch_filter=is_of_interest,
                debounce=_DEBOUNCE,
                step=_STEP,
                stop_event=self._ends,
                rust_timeout=_WAIT,
                yield_on_timeout=True,
                raise_interrupt=False,
                recursive=recursive,
                ignore_permission_denied=True,
            ):
                if changes:
                    self._changed.put({path for _, path in changes})
                say_ready()
        except BaseException as error:
            self._changed.put(error)

    def _is_of_interest(self, path: str) -> bool:
        """Whether a change may be one of a file that is read, or of a branch."""
        if path == self._own or path.startswith(f"{self._own}/"):
            return False
        if "/.git/" in path:
            return self._is_head(path) or path.endswith("/.git/info/exclude")
        return True


def _without_nested(paths: Sequence[str]) -> list[str]:
    """Return sorted paths without those below others."""
    outermost: list[str] = []
    for path in paths:
        if not any(path.startswith(f"{parent}/") for parent in _parents_in(path, outermost)):
            outermost.append(path)
    return outermost


def _parents_in(path: str, paths: Sequence[str]) -> Iterable[str]:
    parents = {str(parent) for parent in Path(path).parents}
    return parents.intersection(paths)
