"""When a call is made again, where, and for how long."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rest_store import errors
from rest_store.errors import (
    CircuitOpenError,
    DeadlineError,
    OverloadedError,
    RestStoreError,
    ServiceUnavailableError,
)
from rest_store.service.client.circuit import Circuit
from rest_store.service.client.counters import ClientCounters, ClientStatistics
from rest_store.service.client.endpoints import Endpoint, Endpoints
from rest_store.service.client.retry import RetryPolicy
from tests.shared.services import PATIENCE, failed


def endpoints(*names: str, retries: int = 3, threshold: int = 5) -> Endpoints[str]:
    members = [Endpoint(name, Circuit(threshold, pause=100.0), str.upper) for name in names]
    return Endpoints(members, ClientCounters(), retries)


def give_up(policy: RetryPolicy[str], error: RestStoreError) -> None:
    with pytest.raises(type(error)) as caught:
        policy.failed(error)
    assert caught.value is error


def test_connections_are_made_once_and_when_first_asked() -> None:
    (member,) = endpoints("a").members
    assert member.connection is member.connection
    assert (member.connection, member.close(), member.close()) == ("A", "A", None)


def test_an_unreachable_endpoint_leads_to_the_next_at_once() -> None:
    several = endpoints("a", "b", "c")
    policy = RetryPolicy(several, 10.0)
    assert [policy.endpoint.target] == ["a"]
    assert policy.failed(ServiceUnavailableError("x")) == 0
    assert policy.endpoint.target == "b"
    assert policy.failed(ServiceUnavailableError("x")) == 0
    assert policy.endpoint.target == "c"
    assert policy.failed(ServiceUnavailableError("x")) > 0  # all have been asked
    policy.succeeded()
    assert RetryPolicy(several, 10.0).endpoint is policy.endpoint
    assert several.counters.snapshot() == ClientStatistics(calls=1, answers=1, retries=3, failovers=3)


def test_endpoints_that_were_replaced_are_not_asked_again() -> None:
    several = endpoints("a", "b")
    old, kept = several.members
    new = endpoints("c").members[0]
    several.replace([new, kept])
    assert several.choose(0.0) is new
    assert several.choose(0.0, instead_of=old) is new  # whose call fails only now
    several.prefer(old)  # whose call is answered only now
    assert several.choose(0.0) is new
    assert several.choose(0.0, instead_of=new) is kept
    assert several.choose(0.0, instead_of=old) is kept


def test_the_wait_stops_growing_however_many_retries_there_are() -> None:
    policy = RetryPolicy(endpoints("a", retries=2_000), 1e5)
    waits = [policy.failed(OverloadedError("x")) for _ in range(1_500)]
    assert waits[0] <= 0.005
    assert all(0.5 <= wait <= 1.0 for wait in waits[8:])


def test_retries_end() -> None:
    policy = RetryPolicy(endpoints("a", retries=2, threshold=10), 10.0)
    first, second = (policy.failed(OverloadedError("x")) for _ in range(2))
    assert 0 < first < 2 * second
    give_up(policy, OverloadedError("x"))


def test_no_retry_beyond_the_deadline() -> None:
    give_up(RetryPolicy(endpoints("a"), 0.002), ServiceUnavailableError("x"))
    late = RetryPolicy(endpoints("a", "b"), 1e-9)
    give_up(late, ServiceUnavailableError("x"))
    failed(DeadlineError, late.allowance, "deadline passed")


def test_a_late_endpoint_leaves_time_for_another_only_if_there_is_one() -> None:
    alone, several = RetryPolicy(endpoints("a"), 10.0), RetryPolicy(endpoints("a", "b"), 10.0)
    assert 9 < alone.allowance() <= 10
    assert 4 < several.allowance() <= 5
    give_up(alone, DeadlineError("x"))
    assert several.failed(DeadlineError("x")) == 0
    assert several.endpoint.target == "b"


def test_an_overloaded_service_is_asked_again_only_after_a_wait() -> None:
    policy = RetryPolicy(endpoints("a", "b"), 10.0)
    assert policy.failed(OverloadedError("x")) > 0


@pytest.mark.parametrize(
    "kind",
    [
        errors.LimitError,
        errors.ProtocolError,
        errors.AuthenticationError,
        errors.ServiceInternalError,
        errors.TokenizerMismatchError,
    ],
)
def test_what_would_fail_again_is_not_tried_again(kind: type[RestStoreError]) -> None:
    several = endpoints("a", "b", threshold=1)
    give_up(RetryPolicy(several, 10.0), kind("x"))
    assert not several.members[0].circuit.is_open  # it does answer


def test_open_circuits_are_passed_over_and_when_all_are_nothing_is_asked() -> None:
    several = endpoints("a", "b", threshold=1, retries=0)
    give_up(RetryPolicy(several, 10.0), ServiceUnavailableError("x"))
    policy = RetryPolicy(several, 10.0)
    assert policy.endpoint.target == "b"
    assert policy.allowance() > 9  # no other to save time for
    give_up(policy, ServiceUnavailableError("x"))
    failed(CircuitOpenError, lambda: RetryPolicy(several, 10.0), "a, b: service")
    assert several.counters.snapshot().circuits_opened == 2


@pytest.mark.parametrize("name", [name for name in dir(errors) if name.endswith("Error")])
def test_every_error_is_counted_as_a_call(name: str) -> None:
    counters = ClientCounters()
    counters.failed(getattr(errors, name)("x"))
    counts = counters.snapshot()
    assert counts.calls == 1
    assert counts.answers == 0


def test_threads_at_their_first_call_make_one_connection() -> None:
    made: list[str] = []
    entered, together = threading.Barrier(8), threading.Event()

    def connect(target: str) -> str:
        made.append(target)
        together.wait(0.2)  # time for the others to come here, which none should
        return target

    member = Endpoint("a", Circuit(), connect)

    def ask(_: int) -> str:
        entered.wait(PATIENCE)
        return member.connection

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == ["a"] * 8
    assert made == ["a"]


def test_a_closed_endpoint_connects_no_more() -> None:
    several = endpoints("a", "b")
    assert several.members[0].connection == "A"
    assert (several.close(), several.close()) == (["A"], [])
    for member in several.members:
        failed(ServiceUnavailableError, lambda: member.connection, "client is closed")  # noqa: B023
    failed(ServiceUnavailableError, several.require_one, "client is closed")


def test_a_call_that_fails_because_it_was_closed_does_not_count_against_the_endpoint() -> None:
    several = endpoints("a", "b", threshold=1)
    policy = RetryPolicy(several, 10.0)
    several.close()
    give_up(policy, ServiceUnavailableError("x"))
    assert not several.members[0].circuit.is_open
    assert several.counters.snapshot() == ClientStatistics()
