"""Opening a client of a service that may not answer yet; names of what services have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rest_store.errors import DeadlineError, RestStoreError, ServiceUnavailableError
from rest_store.loading.remote_files import scheme_of
from rest_store.service.channel import split_location
from rest_store.service.client.client import DatastoreClient

_CONNECT_SECONDS = 2.0


def open_client(target: str, warn: Callable[[str], object], **options: Any) -> DatastoreClient:
    """Return a client that has asked its service once.

    A service that does not answer may do so later.

    Args:
        target: of the client.
        warn: called with one line if the service does not answer.
        options: of the client.

    Raises:
        TokenizerMismatchError: its datastores were built with another tokenizer.
        ServiceError: it answers, and refuses.
    """
    client = DatastoreClient(target, **options)
    try:
        client.info(timeout=_CONNECT_SECONDS)
    except (ServiceUnavailableError, DeadlineError) as error:
        warn(f"{error}; its drafts are left out until it answers")
    except BaseException:
        client.close()
        raise
    return client


def display_name(location: str, *, is_live: bool | None = None, **options: Any) -> str:
    """Return how to call a source that lies elsewhere, by the names
    of its datastores: "code at 127.0.0.1:50051".

    Args:
        location: of the source (`rest_store.datastore.locations`); one that names a datastore is
            returned as it is, and so is one whose service does not say what it has.
        is_live: whether it is a replica of a live datastore, or a copy of a frozen one; None: all
            that the service has.
        options: of a client.
    """
    if scheme_of(location) or split_location(location)[1] is not None:
        return location
    try:
        with DatastoreClient(location, **options) as client:
            datastores = client.info(timeout=_CONNECT_SECONDS).datastores
    except RestStoreError:
        return location
    names = dict.fromkeys(
        datastore.name for datastore in datastores if is_live in (None, datastore.is_live)
    )
    return f"{', '.join(names)} at {location}" if names else location
