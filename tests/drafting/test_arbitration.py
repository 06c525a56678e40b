"""A step verifies the session's chain or the head's, by the acceptance that was learned."""

from __future__ import annotations

import pytest

from rest_store.drafting.arbitration import Head


def test_what_was_not_verified_teaches_nothing() -> None:
    """Each step verifies three right tokens of eight."""
    scores = [0.9**n for n in range(1, 9)]
    of_session = Head([0.0] * 9)
    of_head = Head([0.0] * 9)
    for _ in range(300):
        for accepted in [3] * 9 + [0]:  # the first one is right in nine steps of ten
            of_session.learn_chain(scores, accepted, is_of_head=False, tried=3)
            of_head.learn_chain(scores, 3, is_of_head=True, tried=3)
    assert of_session._reliability == pytest.approx(2.7 / sum(scores[:3]), rel=0.02)
    assert of_head.survival(5)[-1] > 0.8
    assert not of_head.prefers_session([0.9] * 8)
    cut_short = Head([0.0] * 9)
    assert cut_short.prefers_session([0.9] * 3, 3)
    assert not cut_short.prefers_session([0.75] * 3, 8)


def test_texts_share_experience_and_each_has_its_own() -> None:
    scores = [0.5**n for n in range(1, 9)]
    shared = Head([0.0] * 9)
    one = shared.for_text()
    other = shared.for_text()
    assert not one.prefers_session(scores)
    for _ in range(20):
        one.learn_chain(scores, 0, is_of_head=True)
    assert one.prefers_session(scores)
    fresh = shared.for_text()
    assert fresh.prefers_session(scores) == other.prefers_session(scores), "other texts agree"
    for _ in range(60):
        one.learn_chain(scores, 8, is_of_head=True)
    assert not one.prefers_session(scores)
