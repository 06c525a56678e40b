"""Errors keep their class on the way from service to client."""

from __future__ import annotations

import grpc
import pytest

from rest_store import errors
from rest_store.service.errors import failure_of
from rest_store.service.statuses import STATUSES, Status, error_of, status_of
from tests.service.test_proto import DEFINITION


@pytest.mark.parametrize("status", STATUSES, ids=lambda status: status.reason)
def test_a_row_leads_from_error_to_reason_and_back(status: Status) -> None:
    assert status_of(status.error("x")) == status
    assert error_of(status.reason) is status.error
    assert hasattr(grpc.StatusCode, status.code)


def test_errors_outside_the_table_take_the_row_above_or_internal() -> None:
    assert status_of(errors.CircuitOpenError("x")).reason == "DRAINING"
    assert status_of(ZeroDivisionError()).reason == "INTERNAL"
    assert error_of("SOMETHING_NEWER") is None


@pytest.mark.skipif(not DEFINITION.exists(), reason="an installed package without its definition")
def test_the_table_is_the_one_in_the_definition() -> None:
    lines = [line[2:].split() for line in DEFINITION.read_text().splitlines() if line.startswith("//   ")]
    assert [tuple(line[:2]) for line in lines[1:]] == [(status.reason, status.code) for status in STATUSES]


@pytest.mark.parametrize(
    ("code", "details", "error"),
    [
        ("CANCELLED", "CANCELLED", errors.OverloadedError),
        ("CANCELLED", "Stream removed (Channel closed!)", errors.ServiceUnavailableError),
        ("RESOURCE_EXHAUSTED", "Received message larger than max (9 vs. 8)", errors.MessageSizeError),
        ("RESOURCE_EXHAUSTED", "too many pings", errors.OverloadedError),
        ("UNAVAILABLE", "connection refused", errors.ServiceUnavailableError),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", errors.DeadlineError),
        ("UNAUTHENTICATED", "", errors.AuthenticationError),
        ("UNKNOWN", "Stream removed", errors.ServiceInternalError),
        ("UNIMPLEMENTED", "Method not found!", errors.ProtocolError),
    ],
)
def test_statuses_that_are_not_ours(code: str, details: str, error: type[errors.RestStoreError]) -> None:
    found = failure_of("served:1", code, details, None)
    assert type(found) is error
    assert str(found).startswith("served:1: ")
