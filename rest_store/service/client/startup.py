"""The first contact of a program with a service: a client, and the name of a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rest_store.errors import DeadlineError, RestStoreError, ServiceUnavailableError
from rest_store.loading.remote_files import scheme_of
from rest_store.service.channel import split_location
from rest_store.service.client.client import DatastoreClient

_CONNECT_SECONDS = 2.0


def open_client(target: str, warn: Callable[[str], object], **options: Any) -> DatastoreClient:
    """Return a client, once its service was asked for a description.

    A service that does not answer yet is no error: it may answer later.

    Args:
        target: of the client.
        warn: called with one line if the service does not answer.
        options: of the client.

    Raises:
        TokenizerMismatchError: the datastores were built with another tokenizer.
        ServiceError: the service refuses.
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
    """Return the name of a remote source for people, such as "code at 127.0.0.1:50051".

    Args:
        location: of the source (`rest_store.datastore.locations`). A location that names a
            datastore is returned unchanged, and so is that of a service which does not answer.
        is_live: True: name the live datastores of the service; False: the frozen ones; None: all.
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
