"""The settings of drafts inside a serving engine, checked when the engine starts."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rest_store.datastore.validation import label
from rest_store.drafting.sources import require_source_timeout
from rest_store.errors import ArgumentError, DocumentError, describe
from rest_store.live.sharing import MAX_SHARED_AFTER
from rest_store.service.connection_options import Access

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing from Python 3.11 on

ADAPTER_MARK = "/lora:"  # between a namespace and an adapter's name
_SOURCE_TIMEOUT = 0.02  # seconds: about a step of an engine
_DRAFTING = ("local", "remote")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_text, value))


def _are_datastores(value: object) -> bool:
    if isinstance(value, Mapping):
        return _are_texts([*value, *value.values()])
    return _are_texts(value)


def _is_namespace(value: object) -> bool:
    if not _is_text(value) or ADAPTER_MARK in str(value):
        return False
    try:
        label("", "", str(value))
    except DocumentError:
        return False
    return True


def _is_timeout(value: object) -> bool:
    try:
        require_source_timeout("", value)
    except ArgumentError:
        return False
    return value is not None


def _is_group_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_SHARED_AFTER


@dataclass(frozen=True)
class EngineSettings:
    """The settings of a drafter inside a serving engine.

    Attributes:
        datastores: the datastores to draft from: directories, frozen or live, and locations of
            datastores elsewhere, such as `host:50051/code` or `s3://bucket/code`. A list, or an
            object with a name for each, by which requests may choose some of them.
        remember: a live datastore that outputs are added to, and that is drafted from, too: a new
            or existing directory, or the location of one in a service; None: nothing is remembered.
        shared_after: of `remember` where it is a directory: drafts tell the group of a request of
            another group's text once so many groups have written it, 1..64; None: as it was opened
            last.
        namespace: of `remember`: outputs are added to it, and only its documents are drafted from.
        namespaces: others that a request may choose. The text of one namespace's requests is
            drafted for no request of another, from remembered outputs or from recycled logits.
        drafting: "local": datastores from elsewhere are copied, and the copies of live ones follow
            them; "remote": each step asks their services for drafts.
        cache: directory for the copies; None: `~/.cache/rest-store`.
        source_timeout: seconds that a step waits for services, for the whole batch together.
        token_file: file with a bearer token for services; None: the environment variable
            `REST_STORE_TOKEN`.
        tls: whether services are reached through TLS; the other TLS settings imply it.
        tls_ca: PEM file of the authority of the services' certificates.
        tls_cert: PEM file of a client certificate.
        tls_key: PEM file of its key.
        tls_server_name: name in the services' certificates, if not the host.
        log_requests: whether the log has a line for each request that ends; if not, only for those
            with a prediction.
        kinds: a check and an expected value, in words, of each setting that is not a text.
    """

    kinds: ClassVar[dict[str, tuple[Callable[[object], bool], str]]] = {
        "datastores": (_are_datastores, "a list of strings, or an object of names and strings"),
        "namespace": (_is_namespace, f"a name without {ADAPTER_MARK!r}"),
        "namespaces": (
            lambda value: isinstance(value, list | tuple) and all(map(_is_namespace, value)),
            f"a list of names without {ADAPTER_MARK!r}",
        ),
        "log_requests": (lambda value: isinstance(value, bool), "true or false"),
        "drafting": (lambda value: value in _DRAFTING, f"one of {', '.join(_DRAFTING)}"),
        "shared_after": (_is_group_count, f"a whole number of 1..{MAX_SHARED_AFTER}"),
        "source_timeout": (_is_timeout, "seconds from 0 on"),
        "tls": (lambda value: isinstance(value, bool), "true or false"),
    }

    datastores: Sequence[str] | Mapping[str, str] = ()
    remember: str | None = None
    shared_after: int | None = None
    namespace: str = ""
    namespaces: Sequence[str] = ()
    drafting: str = "local"
    cache: str | None = None
    source_timeout: float = _SOURCE_TIMEOUT
    token_file: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_server_name: str | None = None
    log_requests: bool = False

    @property
    def has_names(self) -> bool:
        """Whether datastores have names that are not their locations."""
        return isinstance(self.datastores, Mapping)

    @property
    def locations(self) -> dict[str, str]:
        """The location of each datastore by its name, which is the location itself in a list."""
        if isinstance(self.datastores, Mapping):
            return dict(self.datastores)
        return {location: location for location in self.datastores}

    @classmethod
    def read(cls, settings: object, where: str) -> Self:
        """Return the settings that an engine's configuration holds.

        Args:
            settings: an object as JSON has it.
            where: its key in the configuration, for messages.

        Raises:
            ArgumentError: not an object, an unknown key, or a value of the wrong type. The message
                is one line.
        """
        if not isinstance(settings, Mapping):
            actual = "absent" if settings is None else f"a {type(settings).__name__}"
            raise ArgumentError(
                describe(where, "the object of settings", actual, "{'datastores': [...]}")
            )
        known = [field.name for field in fields(cls)]
        for name, value in settings.items():
            if name not in known:
                raise ArgumentError(
                    describe(where, "a key", ascii(name), f"one of {', '.join(known)}")
                )
            holds, expected = cls.kinds.get(name, (_is_text, "a string"))
            if not holds(value):
                raise ArgumentError(describe(where, name, reprlib.repr(value), expected))
        return cls(**settings)

    def access(self) -> dict[str, Any]:
        """Return `token` and `tls` as clients of services take them.

        Raise ServeError for a file without a token.
        """
        paths = [self.token_file, self.tls_ca, self.tls_cert, self.tls_key]
        token_file, ca, cert, key = (None if path is None else Path(path) for path in paths)
        return Access(token_file, self.tls, ca, cert, key, self.tls_server_name).arguments()
