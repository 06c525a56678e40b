"""A gRPC server that does no work: the baseline of `bench_service.py`.

It parses each request of a datastore service and sends the next of the answers in a file, which the real service gave.
It runs on uvloop, as the service does.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import grpc
import uvloop

from rest_store.bench.serving import started
from rest_store.v1 import datastore_pb2 as pb
from rest_store.v1 import datastore_pb2_grpc

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs


class Echo(datastore_pb2_grpc.DatastoreServiceServicer):
    """Answers every request with the next answer of its kind.

    Args:
        drafts: answers of `Draft`, serialized.
        trees: answers of `DraftSession`, serialized, by the nodes asked for.
    """

    def __init__(self, drafts: Sequence[bytes], trees: Mapping[int, Sequence[bytes]]) -> None:
        answers = [pb.DraftResponse.FromString(data) for data in drafts]
        self._answers = itertools.cycle(answers)
        self._steps = itertools.cycle([pb.DraftStreamResponse(trees=answer.trees) for answer in answers])
        self._trees = {
            nodes: itertools.cycle([pb.DraftSessionResponse.FromString(data) for data in of])
            for nodes, of in trees.items()
        }

    async def Draft(self, request: pb.DraftRequest, context: Any) -> pb.DraftResponse:  # noqa: N802
        """Return the next answer."""
        return next(self._answers)

    async def DraftStream(self, requests: AsyncIterator[Any], context: Any) -> None:  # noqa: N802
        """Write the next answer for each request."""
        while await context.read() is not EOF:
            await context.write(next(self._steps))

    async def DraftSession(self, requests: AsyncIterator[Any], context: Any) -> None:  # noqa: N802
        """Write the next answer for each request that asks for a tree."""
        while (request := await context.read()) is not EOF:
            if request.HasField("draft"):
                await context.write(next(self._trees[request.draft.max_nodes]))


@contextlib.contextmanager
def echoing(
    folder: Path, *, drafts: Sequence[bytes] = (), trees: Mapping[int, Sequence[bytes]] | None = None
) -> Iterator[list[str]]:
    """Start an echo of these answers in a process of its own; yield its addresses: TCP, a Unix socket in `folder`."""
    file = folder / "answers"
    file.write_bytes(pickle.dumps({"drafts": drafts, "trees": trees or {}}))
    with started(str(Path(__file__)), str(file), f"unix:{folder}/echo") as addresses:
        yield addresses


async def serve(file: Path, socket: str) -> None:
    """Serve until killed."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    add: Any = datastore_pb2_grpc.add_DatastoreServiceServicer_to_server  # generated, without types
    add(Echo(**pickle.loads(file.read_bytes())), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.add_insecure_port(socket)
    await server.start()
    print(f"listening on 127.0.0.1:{port}\nlistening on {socket}\nready", flush=True)
    await server.wait_for_termination()


@click.command(help=__doc__)
@click.argument("answers", type=click.Path(path_type=Path))
@click.argument("socket")
def main(answers: Path, socket: str) -> None:
    uvloop.run(serve(answers, socket))


if __name__ == "__main__":
    main()
