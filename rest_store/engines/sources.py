"""The sources of an engine's sessions, opened once and shared by all of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

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
from rest_store.drafting.sources import PromptLookup, RecycledLogits, require_sources
from rest_store.engines.settings import EngineSettings
from rest_store.errors import (
    DeadlineError,
    QueryError,
    ServiceUnavailableError,
    TokenizerLoadError,
    describe,
)
from rest_store.live.agent_memory import sources_of
from rest_store.live.open_store import open_store

_CLIENT_SECONDS = 0.1  # of a step, which waits for `source_timeout` at most


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
        labels: names of the sources in metrics, by their index in a session.
        names: the same with the grammar of a request, which is the last one of its session.
        here: origins of the sources in this process, as a bitmask.
        target: a live datastore that outputs are added to; None: nothing is remembered.

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
        self._timeout = settings.source_timeout
        self._calibration = Calibration.default()
        self._logits = RecycledLogits()
        locations = dict.fromkeys(map(_normal, settings.datastores))
        remember = None if settings.remember is None else _normal(settings.remember)
        if remember is not None:
            locations[remember] = None
        sources: dict[str, Any] = {}  # by their labels
        target: Any = None
        with ExitStack() as stack:
            for location in locations:
                is_remembered = location == remember
                opened = self._open(location, settings, is_remembered, log)
                stack.callback(opened.close)
                kinds = _kinds_of(opened, settings.namespace if is_remembered else "")
                label = "memory" if is_remembered else location
                for kind, source in kinds.items():
                    sources[f"{label}/{kind}" if kind else label] = source
                if is_remembered:
                    target = kinds[""]
            self._sources = list(sources.values())
            require_sources(where, [*self._sources, PromptLookup()])
            self._require_same_tokenizers(vocabulary_size)
            self._stack = stack.pop_all()
        self.labels = [*sources, "prompt", "logits"]
        elsewhere = [
            bit for bit, source in enumerate(self._sources) if not isinstance(source, Store)
        ]
        self.names = [*self.labels, "grammar"]
        self.here = sum(1 << bit for bit in range(len(self.names)) if bit not in elsewhere)
        self.target: RememberTarget | None = target

    def _open(
        self, location: str, settings: EngineSettings, is_remembered: bool, log: logging.Logger
    ) -> Any:
        """Open the datastore at `location`, or a client of its service.

        A client is opened if the settings say so, or if there is no copy yet.
        """
        access = settings.access() if is_remote(location) else {}
        if settings.drafting == "local" or not is_remote(location):
            with suppress(ServiceUnavailableError, DeadlineError):
                if not is_remembered:
                    return open_store(
                        location, tokenizer=self._identity, cache=settings.cache, **access
                    )
                from rest_store.live.live_datastore import LiveDatastore  # loads what sorts

                return LiveDatastore.open(
                    location, tokenizer=self._tokenizer, cache=settings.cache, **access
                )
        from rest_store.service.client.startup import open_client  # loads gRPC

        return open_client(
            location,
            lambda line: log.warning("rest-store: %s", line),
            tokenizer=self._identity,
            namespace=settings.namespace if is_remembered else "",
            # A client must not give up before the step does.
            timeout=max(_CLIENT_SECONDS, settings.source_timeout),
            **access,
        )

    def _require_same_tokenizers(self, vocabulary_size: int) -> None:
        """Refuse datastores of different tokenizers, or with more tokens than the model."""
        for store in self.stores:
            if self._identity is None:
                self._identity = store.tokenizer
            self._identity.require_same(store.tokenizer, store.path)
            if store.vocabulary_size > vocabulary_size:
                found, expected = store.vocabulary_size, f"at most the model's {vocabulary_size}"
                raise QueryError(describe(store.path, "vocabulary size", found, expected))

    @property
    def stores(self) -> Sequence[Store]:
        """The datastores in this process."""
        return [source for source in self._sources if isinstance(source, Store)]

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
        encode: Any = getattr(self._tokenizer, "encode", None)
        return parse_references(
            [
                encode(reference, add_special_tokens=False)
                if isinstance(reference, str)
                else reference
                for reference in references
            ]
        )

    def session(
        self,
        text: npt.NDArray[np.int32],
        references: Sequence[Any] = (),
        grammar: Grammar | None = None,
        prompt: int | None = None,
    ) -> DraftSession:
        """Return a session for a request.

        Args:
            text: int32[n], the text so far.
            references: as `encoded` returns them.
            grammar: that its output follows; left out where there are as many datastores as a
                session takes.
            prompt: tokens of `text` that are no output; None: all are none.

        Raises:
            RestStoreError: as `DraftSession`.
        """
        has_room = len(self._sources) < int(native_kernel().MAX_STORES)
        own = [] if grammar is None or not has_room else [grammar]
        begin = text.size if prompt is None or not own else prompt
        session = DraftSession(
            [*self._sources, PromptLookup(), self._logits, *own],
            text[:begin],
            references=references,
            calibration=self._calibration,
            tokenizer=self._identity,
            source_timeout=self._timeout,
        )
        if begin < text.size:  # the grammar follows the output from its first token on
            session.accept(text[begin:])
        return session

    def close(self) -> None:
        """Write queued outputs, for two seconds at most, and close all sources."""
        if self.target is not None:
            flush(self.target)
        self._stack.close()


def _kinds_of(opened: Any, namespace: str) -> dict[str, Any]:
    """Return what a datastore, a namespace of it or a client drafts from, by kind of text."""
    if not isinstance(opened, Store):
        return {"": opened}
    if namespace:
        live: Any = opened
        return {"": live.namespace(namespace)}
    return dict(sources_of(opened))


def _normal(path: str) -> str:
    """Return a path in its usual spelling; an address as it is."""
    return path if is_remote(path) else str(Path(path))
