"""A gRPC server that does no work: the baseline of `bench_service.py`.

It parses each request of a datastore service and sends the next of the answers in a file, which the real service gave.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click
import grpc

from rest_store.v1 import datastore_pb2 as pb
from rest_store.v1 import datastore_pb2_grpc

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs


class Echo(datastore_pb2_grpc.DatastoreServiceServicer):
    """Answers every request with the next of `answers`."""

    def __init__(self, answers: list[pb.DraftResponse]) -> None:
        self._answers = itertools.cycle(answers)
        self._steps = itertools.cycle([pb.DraftStreamResponse(trees=answer.trees) for answer in answers])

    async def Draft(self, request: pb.DraftRequest, context: Any) -> pb.DraftResponse:  # noqa: N802
        """Return the next answer."""
        return next(self._answers)

    async def DraftStream(self, requests: AsyncIterator[Any], context: Any) -> None:  # noqa: N802
        """Write the next answer for each request."""
        while await context.read() is not EOF:
            await context.write(next(self._steps))


async def serve(file: Path, socket: str) -> None:
    """Serve until killed."""
    data = file.read_bytes()
    answers, place = [], 0
    while place < len(data):
        size = int.from_bytes(data[place : place + 4], "little")
        answers.append(pb.DraftResponse.FromString(data[place + 4 : place + 4 + size]))
        place += 4 + size
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    add: Any = datastore_pb2_grpc.add_DatastoreServiceServicer_to_server  # generated, without types
    add(Echo(answers), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.add_insecure_port(socket)
    await server.start()
    print(f"listening on 127.0.0.1:{port}\nlistening on {socket}\nready", flush=True)
    await server.wait_for_termination()


@click.command(help=__doc__)
@click.argument("answers", type=click.Path(path_type=Path))
@click.argument("socket")
def main(answers: Path, socket: str) -> None:
    asyncio.run(serve(answers, socket))


if __name__ == "__main__":
    main()
