"""The sources of an engine's sessions, opened once and shared by all of them."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.locations import is_remote
from rest_store.datastore.store import Store
from rest_store.datastore.tokenizer import identity_of
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.draft_options import parse_references
from rest_store.drafting.grammar import Grammar
from rest_store.drafting.remembering import RememberTarget, flush
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, require_sources
from rest_store.engines.engine_settings import EngineSettings
from rest_store.engines.scopes import Scope, Scopes
from rest_store.errors import (
    DeadlineError,
    QueryError,
    ServiceUnavailableError,
    TokenizerLoadError,
    describe,
)
from rest_store.live.agent_memory import as_sources
from rest_store.live.open_store import open_store

# The least time limit of a client. A step gives up earlier, after `source_timeout`.
_CLIENT_SECONDS = 0.1
_MAX_KEPT_TEXTS = 32  # whose token ids are kept: requests often come again with the same one


class RequestSources(NamedTuple):
    """The sources of one request.

    Attributes:
        datastores: datastores and services; the target of its scope, if there is one.
        scope: the outputs, logits and grammars that it shares with other requests.
        places: for each source of its session, its index among `EngineSources.names`.
    """

    datastores: list[Any]
    scope: Scope
    places: list[int]

    @property
    def target(self) -> RememberTarget | None:
        """The store or service to which its output is added; None: it is not remembered."""
        target: RememberTarget | None = self.scope.target
        return target


class EngineSources:
    """The sources of an engine's sessions, and their shared calibration. Thread-safe.

    Args:
        settings: name the datastores.
        tokenizer: the model's; None: unknown, so all sources must have the tokenizer of the first
            that has one.
        name: of the model, for messages and for services.
        vocabulary_size: token ids of the model.
        where: the place of the settings, for messages.
        log: gets a warning for each service that does not answer yet.

    Attributes:
        labels: names of the sources in metrics, by their index in a session that has all of them.
        names: the same with the grammar of a request, which is the last one of its session.
        here: origins of the sources in this process, as a bitmask.
        lookup: origin of prompt lookup, as a bitmask.

    Raises:
        RestStoreError: of the subclass for the cause: something cannot be opened, or has another
            tokenizer, or there are too many sources.
    """

    def __init__(
        self,
        settings: EngineSettings,
        tokenizer: object,
        *,
        name: str,
        vocabulary_size: int,
        where: str,
        log: logging.Logger,
    ) -> None:
        self._tokenizer = tokenizer
        self._identity = None if tokenizer is None else identity_of(tokenizer, name)
        self._settings = settings
        self._calibration = Calibration.default()
        self._encode = lru_cache(_MAX_KEPT_TEXTS)(self._token_ids)
        locations: dict[str, list[str]] = {}  # with the names of each
        for named, location in settings.locations.items():
            names = locations.setdefault(_normal(location), [])
            names += [named] if settings.has_names else [_normal(named), named]
        self._remembered = None if settings.remember is None else _normal(settings.remember)
        if self._remembered is not None:
            locations.setdefault(self._remembered, [])
        self.labels: list[str] = []
        self._sources: list[Any] = []
        self._names_of: list[Collection[str]] = []  # of each source, for requests that choose
        self._target_place = -1  # index of the source that outputs are added to
        with ExitStack() as stack:
            for location, names in locations.items():
                is_remembered = location == self._remembered
                opened = self._open(location, is_remembered, log)
                stack.callback(opened.close)
                kinds = _kinds_of(opened, settings.namespace if is_remembered else "")
                label = "outputs" if is_remembered else names[0]
                for kind, source in kinds.items():
                    if is_remembered and not kind:
                        self._target_place = len(self._sources)
                    self.labels.append(f"{label}/{kind}" if kind else label)
                    self._sources.append(source)
                    self._names_of.append(() if is_remembered else names)
                if is_remembered:
                    self._target_back_end = opened
            require_sources(where, [*self._sources, PromptLookup()])
            self._require_same_tokenizers(vocabulary_size)
            namespaces = dict.fromkeys([settings.namespace, *settings.namespaces])
            self._scopes = Scopes(self._open_target, [*namespaces])
            self._stack = stack.pop_all()
        self.labels += ["prompt", "logits"]
        self.names = [*self.labels, "grammar"]
        self.lookup = 1 << len(self._sources)
        elsewhere = [
            bit for bit, source in enumerate(self._sources) if not isinstance(source, Store)
        ]
        self.here = sum(1 << bit for bit in range(len(self.names)) if bit not in elsewhere)

    @property
    def target(self) -> RememberTarget | None:
        """The target of requests that choose no namespace; None: nothing is remembered."""
        target: RememberTarget | None = self._scopes.get(self._settings.namespace, "").target
        return target

    def _open_target(self, namespace: str) -> Any:
        """Return the target of one namespace; None: nothing is remembered."""
        if self._target_place < 0:
            return None
        if namespace == self._settings.namespace:
            return self._sources[self._target_place]
        if isinstance(self._target_back_end, Store):
            live: Any = self._target_back_end
            return live.namespace(namespace)
        from rest_store.service.client.client import DatastoreClient  # loads gRPC

        return DatastoreClient(
            str(self._remembered),
            tokenizer=self._identity,
            namespace=namespace,
            timeout=self._client_seconds,
            **self._settings.access(),
        )

    @property
    def _client_seconds(self) -> float:
        """The time limit of clients, which must not give up before the step does."""
        return max(_CLIENT_SECONDS, self._settings.source_timeout)

    def _open(self, location: str, is_remembered: bool, log: logging.Logger) -> Any:
        """Open the datastore at `location`, or a client of its service.

        A client is opened if the settings say so, or if there is no copy yet.
        """
        settings = self._settings
        access = settings.access() if is_remote(location) else {}
        if settings.drafting == "local" or not is_remote(location):
            with suppress(ServiceUnavailableError, DeadlineError):
                if not is_remembered:
                    return open_store(
                        location, tokenizer=self._identity, cache=settings.cache, **access
                    )
                from rest_store.live.live_datastore import LiveDatastore  # loads the sorter

                shared_after = None if is_remote(location) else settings.shared_after
                return LiveDatastore.open(
                    location,
                    tokenizer=self._tokenizer,
                    shared_after=shared_after,
                    cache=settings.cache,
                    **access,
                )
        from rest_store.service.client.startup import open_client  # loads gRPC

        return open_client(
            location,
            lambda line: log.warning("rest-store: %s", line),
            tokenizer=self._identity,
            namespace=settings.namespace if is_remembered else "",
            timeout=self._client_seconds,
            **access,
        )

    def _require_same_tokenizers(self, vocabulary_size: int) -> None:
        """Refuse datastores of different tokenizers, or with more tokens than the model."""
        for store in self.stores:
            if self._identity is None:
                self._identity = store.tokenizer
            self._identity.require_same(store.tokenizer, store.path)
            if store.vocabulary_size > vocabulary_size:
                expected = f"at most the model's {vocabulary_size}"
                raise QueryError(
                    describe(store.path, "vocabulary size", store.vocabulary_size, expected)
                )

    @property
    def stores(self) -> Sequence[Store]:
        """The datastores in this process."""
        return [source for source in self._sources if isinstance(source, Store)]

    def refresh(self, report: Callable[[Exception], object]) -> None:
        """Read the latest outputs of targets that have changed, if an engine wants them.

        Args:
            report: called with the error of each target that cannot be read.
        """
        for scope in self._scopes:
            try:
                scope.latest_outputs.refresh()
            except Exception as error:
                report(error)

    def encoded(self, references: Sequence[IntSequence | str]) -> list[npt.NDArray[np.int32]]:
        """Return references as token ids.

        Raises:
            TokenizerLoadError: one is a text, but the engine has no tokenizer.
            ContextTypeError, QueryError: one is neither a text nor 1-D integers of 0 .. 2^31 - 1.
        """
        if self._tokenizer is None and any(isinstance(reference, str) for reference in references):
            raise TokenizerLoadError(
                "engine: there is no tokenizer, expected one for references that are texts"
            )
        return parse_references(
            [
                self._encode(reference) if isinstance(reference, str) else reference
                for reference in references
            ]
        )

    def _token_ids(self, text: str) -> Any:
        encode: Any = getattr(self._tokenizer, "encode", None)
        return encode(text, add_special_tokens=False)

    def chosen(
        self,
        namespace: object = None,
        datastores: object = None,
        adapter: str = "",
        report: Callable[[str | Exception], object] | None = None,
    ) -> RequestSources:
        """Return the sources of a request, without names that the settings do not have.

        Args:
            namespace: that the request names; None: the engine's own. With another than those of
                the settings, nothing is remembered or shared.
            datastores: names that the request names, a list or one of them; None: all.
            adapter: name of the LoRA adapter that writes it; "": the model alone.
            report: called with the reason for each that is left out.
        """
        report = report or (lambda reason: None)
        scope = self._scope(namespace, adapter, report)
        places = self._places(datastores, report)
        is_default = scope is self._scopes.get(self._settings.namespace, "")
        sources: list[Any] = []
        indices: list[int] = []
        for place, source in enumerate(self._sources):
            if place == self._target_place:
                source = scope.target
            elif self._names_of[place]:
                source = source if place in places else None
            elif (
                not is_default
            ):  # the other texts of the target belong to the engine's own requests
                source = None
            if source is not None:
                sources.append(source)
                indices.append(place)
        count = len(self._sources)
        return RequestSources(sources, scope, [*indices, count, count + 1, count + 2])

    def _scope(
        self, namespace: object, adapter: str, report: Callable[[str | Exception], object]
    ) -> Scope:
        name = self._settings.namespace if namespace is None else namespace
        names = self._scopes.namespaces
        if name not in names:
            expected = f"one of {', '.join(map(repr, names))}"
            report(describe("request", "namespace", reprlib.repr(name), expected))
            return Scope(None)
        try:
            return self._scopes.get(str(name), adapter)
        except Exception as error:
            report(error)
            return Scope(None)

    def _places(
        self, datastores: object, report: Callable[[str | Exception], object]
    ) -> Collection[int]:
        """Return the indices of the datastores that a request names."""
        if datastores is None:
            return range(len(self._sources))
        names = datastores if isinstance(datastores, list | tuple) else [datastores]
        places = set()
        for name in names:
            named = [place for place, known in enumerate(self._names_of) if name in known]
            places.update(named)
            if not named:
                expected = f"one of {', '.join(map(repr, self._settings.locations)) or 'none'}"
                report(describe("request", "a datastore", reprlib.repr(name), expected))
        return places

    def session(
        self,
        text: npt.NDArray[np.int32],
        references: Sequence[Any] = (),
        grammar: Grammar | None = None,
        prompt: int | None = None,
        chosen: RequestSources | None = None,
        group: str = "",
    ) -> DraftSession:
        """Return a session for a request.

        Args:
            text: int32[n], the text so far.
            references: as `encoded` returns them.
            grammar: that its output follows; left out where there are as many datastores as a
                session takes.
            prompt: number of tokens at the start of `text` that are no output; None: all of them.
            chosen: as `chosen` returns it; None: without a choice.
            group: of the request, as `DraftSession` takes it.

        Raises:
            RestStoreError: as `DraftSession`.
        """
        chosen = self.chosen() if chosen is None else chosen
        datastores, scope, _ = chosen
        own_grammar = None
        if len(datastores) < int(native_kernel().MAX_STORES):
            own_grammar = scope.own(grammar)
        own = [] if own_grammar is None else [own_grammar]
        begin = text.size if prompt is None or not own else prompt
        session = DraftSession(
            [*datastores, PromptLookup(), scope.logits, *own],
            text[:begin],
            references=references,
            calibration=self._calibration,
            tokenizer=self._identity,
            source_timeout=self._settings.source_timeout,
            group=group,
        )
        if begin < text.size:  # the grammar follows the output from its first token on
            session.accept(text[begin:])
        return session

    def close(self) -> None:
        """Write queued outputs, for two seconds at most, and close all sources."""
        for scope in self._scopes:
            target = scope.target
            if target is None:
                continue
            flush(target)
            if target not in self._sources and not isinstance(target, Store):
                target.close()
        self._stack.close()


def _kinds_of(opened: Any, namespace: str) -> dict[str, Any]:
    """Return the sources of a datastore, a namespace of it or a client, by kind of text."""
    if not isinstance(opened, Store):
        return {"": opened}
    if namespace:
        live: Any = opened
        return {"": live.namespace(namespace)}
    return dict(as_sources(opened))


def _normal(path: str) -> str:
    """Return a path in its usual spelling; an address as it is."""
    return path if is_remote(path) else str(Path(path))
