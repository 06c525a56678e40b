"""Opening a client of a service that may not answer yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rest_store.errors import DeadlineError, ServiceUnavailableError
from rest_store.service.client.client import DatastoreClient

_CONNECT_SECONDS = 2.0


def open_client(target: str, warn: Callable[[str], object], **options: Any) -> DatastoreClient:
    """Return a client that has asked its service once; a service that does not answer may do so later.

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
