"""The steps of sessions that `bench_service.py` times: what is handed over, and the echo of recorded messages."""

from __future__ import annotations

import queue
from pathlib import Path

import grpc
import numpy as np
from echo import echoing
from service_calls import stub_of
from session_recorder import recording
from session_steps import WAYS, Material, session_steps
from walks import CONTEXT, long_walks

from rest_store.bench.recordings import Recording
from rest_store.datastore.tree import TokenTree
from rest_store.errors import ServeError
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.strategies import Corpus, open_datastore, refused


def recording_of(prompt: list[int], output: list[int], *, width: int = 2) -> Recording:
    """A recording whose top-k after each token are the token's hundredfold and one more, and so on."""
    tokens = np.array([*prompt, *output], np.int32)
    top_k = 100 * tokens[:, None] + np.arange(width, dtype=np.int32)
    return Recording("a", 9, tokens[: len(prompt)], tokens[len(prompt) :], top_k)


def test_a_walk_stands_in_a_long_context_and_knows_what_the_model_had_read() -> None:
    (walk,) = long_walks([recording_of([1, 2], [3, 4, 5, 6])], [recording_of([7, 3], [8] * 3000)])
    assert (walk.start, walk.text.size) == (CONTEXT, CONTEXT + 4)
    assert walk.text[CONTEXT - 2 :].tolist() == [1, 2, 3, 4, 5, 6]
    tree = TokenTree([3, 8, 4, 9], [-1, -1, 0, 2], [1, 1, 2, 3])
    path = tree.longest_path(walk.text[CONTEXT:])
    assert path.tolist() == [0, 2]
    assert walk.end_of(CONTEXT, path) == CONTEXT + 3
    likely = walk.likely(CONTEXT, tree, path)
    assert likely["top_k"].tolist() == [[300, 301], [400, 401], [-1, -1]], "the bonus token was not read"
    assert likely["node_top_k"].tolist() == [[200, 201], [300, 301], [800, 801], [400, 401], [-1, -1]]
    later = walk.likely(CONTEXT + 3, TokenTree([5], [-1], [1]), np.zeros(0, np.int64))
    assert later["node_top_k"].tolist() == [[500, 501], [-1, -1]]


def test_a_walk_without_top_k_hands_over_tokens_alone() -> None:
    (walk,) = long_walks([recording_of([1], [2, 3], width=0)], [recording_of([7], [8])])
    assert walk.likely(walk.start, TokenTree([2], [-1], [1]), np.array([0])) == {}


def test_recorded_messages_are_echoed_step_by_step(tmp_path: Path) -> None:
    """Once recorded before a service, which an echo stands for, the messages of a session are steps of each echo."""
    trees = [pb.DraftSessionResponse(sequence=number, nodes=bytes(11 * number)) for number in (1, 2)]
    requests = [
        pb.DraftSessionRequest(open=pb.SessionOpening(tokens=[5, 6]), draft=pb.TreeRequest(max_nodes=16)),
        pb.DraftSessionRequest(accepted=[pb.Accepted(tokens=[7])]),
        pb.DraftSessionRequest(draft=pb.TreeRequest(max_nodes=16)),
    ]
    with echoing(tmp_path, trees={16: [tree.SerializeToString() for tree in trees]}) as addresses:
        with recording(addresses[0]) as (target, recorder), grpc.insecure_channel(target) as channel:
            sent: queue.SimpleQueue[pb.DraftSessionRequest | None] = queue.SimpleQueue()
            answers = stub_of(channel).DraftSession(iter(sent.get, None), wait_for_ready=True)
            for step, tree in zip((requests[:1], requests[1:]), trees, strict=True):
                for request in step:
                    sent.put(request)
                assert next(answers) == tree
            sent.put(None)
            assert list(answers) == []
        first, second = recorder.sessions[0]
        assert first == ([requests[0].SerializeToString()], trees[0].SerializeToString())
        assert second == ([one.SerializeToString() for one in requests[1:]], trees[1].SerializeToString())
        for address in addresses:
            material = Material([], [], {16: recorder.sessions}, "", address)
            for way in ("echo, sync", "echo, asyncio"):
                with WAYS[way](material, 16) as sessions:
                    (begin, answered), (again, end) = sessions(0)
                assert begin < answered <= again < end


def test_each_step_in_process_is_followed_by_its_echo(tmp_path: Path) -> None:
    """As many messages are echoed as the session has steps."""
    store = open_datastore(tmp_path, Corpus(300, [[[1, 2, 3, 4, 5, 6, 7, 8]]]))
    (walk,) = long_walks([recording_of([1, 2], [3, 4, 5, 9, 9, 1, 2])], [recording_of([7, 3], [8] * 3000)])
    steps = len(session_steps([store], 4, walk))
    assert steps > 2
    request, answer = pb.DraftSessionRequest(draft=pb.TreeRequest(max_nodes=4)), pb.DraftSessionResponse()
    with echoing(tmp_path, trees={4: [answer.SerializeToString()]}) as (address, _):
        for echoes, fits in ((steps, True), (steps - 1, False), (steps + 1, False)):
            exchanges = [[([request.SerializeToString()], answer.SerializeToString())] * echoes]
            material = Material([walk], [store], {4: exchanges}, "", address)
            with WAYS["in process and echo"](material, 4) as sessions:
                if fits:
                    assert len(sessions(0)) == steps
                else:
                    refused(ServeError, lambda sessions=sessions: sessions(0), "echoes")  # type: ignore[misc]
