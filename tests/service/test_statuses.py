"""Errors keep their class on the way from service to client."""

from __future__ import annotations

from types import SimpleNamespace

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2

from rest_store import errors
from rest_store.errors import ProtocolError
from rest_store.service.statuses import (
    DETAILS_KEY,
    DOMAIN,
    STATUSES,
    Status,
    call_error,
    status_for,
)
from tests.service.test_proto import ROOT

PROTOCOL = ROOT / "docs/reference/protocol.md"


def error_of(
    target: str, code: str, details: str, metadata: object = None
) -> errors.RestStoreError:
    """Our error for a call that failed so."""
    status = SimpleNamespace(code=lambda: SimpleNamespace(name=code), details=lambda: details)
    status.trailing_metadata = lambda: metadata
    return call_error(target, status)


def metadata_of(reason: str, domain: str = DOMAIN) -> list[tuple[str, bytes]]:
    """Trailing metadata with a reason, as a service sends it."""
    detail = AnyMessage()
    detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain=domain))
    return [("other", b"x"), (DETAILS_KEY, status_pb2.Status(details=[detail]).SerializeToString())]


@pytest.mark.parametrize("status", STATUSES, ids=lambda status: status.reason)
def test_a_row_leads_from_error_to_reason_and_back(status: Status) -> None:
    assert status_for(status.error_with("x")) == status
    raised = error_of("served:1", status.code, "as the service said", metadata_of(status.reason))
    assert type(raised) is status.error
    assert str(raised) == "as the service said"
    assert hasattr(grpc.StatusCode, status.code)


def test_a_message_out_of_order_is_a_value_error() -> None:
    raised = error_of(
        "served:1", "FAILED_PRECONDITION", "a second opening", metadata_of("PROTOCOL")
    )
    assert type(raised) is ProtocolError
    assert isinstance(raised, ValueError)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        [],
        metadata_of("SOMETHING_NEWER"),
        metadata_of("ARGUMENT", domain="another"),
        [(DETAILS_KEY, b"\xff")],
    ],
)
def test_without_a_reason_of_ours_the_status_decides(
    metadata: list[tuple[str, bytes]] | None,
) -> None:
    raised = error_of("served:1", "UNAVAILABLE", "gone", metadata)
    assert type(raised) is errors.ServiceUnavailableError
    assert str(raised) == "served:1: service is unreachable (gone)"


@pytest.mark.skipif(not PROTOCOL.exists(), reason="an installed package without its documentation")
def test_the_protocol_says_what_each_reason_means() -> None:
    rows = [
        line.split("|")
        for line in PROTOCOL.read_text("utf-8").splitlines()
        if line.startswith("| `")
    ]
    said = {
        reason.strip("` "): cells[2]
        for cells in rows
        for reason in cells[1].replace(", or none", "").split(",")
    }
    for status in STATUSES:
        assert f"`{status.code}`" in said[status.reason]


@pytest.mark.parametrize(
    ("code", "details", "error"),
    [
        ("CANCELLED", "CANCELLED", errors.OverloadedError),
        ("CANCELLED", "Stream removed (Channel closed!)", errors.ServiceUnavailableError),
        (
            "RESOURCE_EXHAUSTED",
            "Received message larger than max (9 vs. 8)",
            errors.MessageSizeError,
        ),
        ("RESOURCE_EXHAUSTED", "too many pings", errors.OverloadedError),
        ("UNAVAILABLE", "connection refused", errors.ServiceUnavailableError),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", errors.DeadlineError),
        ("UNAUTHENTICATED", "", errors.AuthenticationError),
        ("UNKNOWN", "Stream removed", errors.ServiceError),
        ("UNIMPLEMENTED", "Method not found!", errors.ProtocolError),
    ],
)
def test_statuses_that_are_not_ours(
    code: str, details: str, error: type[errors.RestStoreError]
) -> None:
    raised = error_of("served:1", code, details)
    assert type(raised) is error
    assert str(raised).startswith("served:1: ")
