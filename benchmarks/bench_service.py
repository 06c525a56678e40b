"""Measure what a draft costs through the service, beside a gRPC echo of the same messages in the same run.

The service, the echo (echo.py: it parses each request and sends a prepared answer of the service) and this client run
on one machine, each in a process of its own. They take turns, so that other load on the machine affects both.

Draft sessions, as generation uses the service, are replayed from recordings with all datastores: a step through the
service beside the same step in process, sixteen sessions at once, and M (service_sessions.py says how).

Single drafts are asked of the first datastore. Contexts are 16 tokens from random places of its documents, one of them
changed, so that matches of all lengths occur; 64 nodes, suffix 16, depth 10. One client: median and 99th percentile in
microseconds, unary and stream, TCP and Unix socket, blocking and asyncio; blocking also through `DatastoreClient`.
Sixteen clients, each with its own connection, in one asyncio process: requests a second. Batches of 256 contexts from
one client and from two: contexts a second. Requests arriving at random (Poisson) at a given rate: latency from the
moment of arrival, and refused requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import grpc
import numpy as np
from echo import echoing
from service_calls import (
    FIRST,
    OWN_CONNECTION,
    Asynchronous,
    Blocking,
    Contexts,
    blocking,
    request_of,
    stream_asyncio,
    stream_client,
    stream_sync,
    stub_of,
    unary_asyncio,
    unary_client,
    unary_sync,
)
from service_sessions import measure_sessions
from timing import percentiles

from rest_store.bench.environment import write_result
from rest_store.bench.options import Destination, plots_option, recordings_option, result_options, seed_option
from rest_store.bench.recordings import read_recordings, split
from rest_store.bench.serving import started
from rest_store.datastore.datastore import Datastore
from rest_store.options import PATH, SETTINGS

CLIENTS = 16
BATCH = 256
SHARES = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5)  # of the most requests a second, offered as load
LATENCIES: dict[str, dict[str, Blocking]] = {
    "unary, sync": {"echo": unary_sync, "service": unary_sync, "client": unary_client},
    "unary, asyncio": {"echo": blocking(unary_asyncio), "service": blocking(unary_asyncio)},
    "stream, sync": {"echo": stream_sync, "service": stream_sync, "client": stream_client},
    "stream, asyncio": {"echo": blocking(stream_asyncio), "service": blocking(stream_asyncio)},
}
Targets = dict[str, dict[str, str]]  # addresses of "echo" and "service" by transport


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_service.py --recordings traces.jsonl.gz --datastore python.ds",
)
@recordings_option()
@click.option(
    "--datastore",
    "datastores",
    metavar="DIR",
    multiple=True,
    type=PATH,
    required=True,
    help="Datastore to serve. Repeatable.",
)
@click.option(
    "--requests", metavar="N", default=6_000, help="Requests of one client, for each kind of call and target."
)
@click.option("--rounds", metavar="N", default=12, help="Turns of echo and service.")
@click.option("--seconds", metavar="SECONDS", default=4.0, help="Time of each load.")
@click.option("--sessions", metavar="N", default=16, help="Sessions at once, each in a process of its own.")
@click.option("--quick", is_flag=True, help="A tenth of it: a look, not a result.")
@seed_option
@result_options
@plots_option
def main(
    recordings: tuple[Path, ...],
    datastores: tuple[Path, ...],
    requests: int,
    rounds: int,
    seconds: float,
    sessions: int,
    quick: bool,
    seed: int,
    out: Destination,
    plots: Path | None,
) -> None:
    if quick:
        requests, rounds, seconds = 600, 4, 1.0
    chosen = [recording for path in recordings for recording in read_recordings(path)]
    others, held_out = split(chosen, "bench_service.py")
    results: dict[str, Any] = {
        "sessions": measure_sessions(
            datastores,
            held_out[:: 10 if quick else 1],
            others,
            processes=sessions,
            rounds=(rounds + 1) // 2,
            seconds=seconds,
        )
    }
    contexts = some_contexts(datastores[0], 4_000, seed)
    with targets_for(datastores[0], contexts) as targets:
        print("one client, us: median / 99th of echo, service, client; ratios of their medians to the echo's")
        for transport in ("TCP", "Unix"):
            for kind, callers in LATENCIES.items():
                name = f"{kind}, {transport}"
                results[name] = latencies(name, targets, transport, callers, contexts, requests // rounds, rounds)
        service, echo = targets["service"]["TCP"], targets["echo"]["TCP"]
        results["batches"] = batches(service, contexts, max(8, requests // 50))
        for kind, call in {"unary": unary_asyncio, "stream": stream_asyncio}.items():
            results[f"{CLIENTS} clients, {kind}"] = throughput(kind, echo, service, call, contexts, requests, rounds)
        top = results[f"{CLIENTS} clients, unary"]["service"]
        results["load"] = {
            name: asyncio.run(load(name, target["TCP"], contexts, top, seconds)) for name, target in targets.items()
        }
    write_result(out, "service", click.get_current_context().params, ("grpcio", "protobuf", "numpy"), results)


def some_contexts(directory: Path, number: int, seed: int) -> Contexts:
    """Return `number` contexts of 16 tokens from the datastore's documents, one token of each changed."""
    store = Datastore.open(directory)
    chance = random.Random(seed)
    contexts: Contexts = []
    while len(contexts) < number:
        tokens = chance.choice(store.shards).tokens
        start = chance.randrange(tokens.header.position_count - 16)
        context = [int(token) for token in tokens.symbols(start, start + 16)]
        context[chance.randrange(15)] = chance.randrange(store.vocabulary_size)
        if max(context) < store.vocabulary_size:
            contexts.append(context)
    return contexts


@contextlib.contextmanager
def targets_for(datastore: Path, contexts: Contexts) -> Iterator[Targets]:
    """Start a service, and an echo of its answers to `contexts`; yield their addresses."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        listen = ("--listen", "127.0.0.1:0", "--listen", f"unix:{folder}/service")
        service = stack.enter_context(started("-m", "rest_store", "serve", str(datastore), *listen))
        with grpc.insecure_channel(service[0]) as channel:
            stub = stub_of(channel)
            answers = [stub.Draft(request_of(context)).SerializeToString() for context in contexts]
        echo = stack.enter_context(echoing(Path(folder), drafts=answers))
        yield {
            name: dict(zip(("TCP", "Unix"), addresses, strict=True))
            for name, addresses in (("echo", echo), ("service", service))
        }


def latencies(
    label: str,
    targets: Targets,
    transport: str,
    callers: dict[str, Blocking],
    contexts: Contexts,
    per_round: int,
    rounds: int,
) -> dict[str, float]:
    """Time each caller in turn, each round with other contexts."""
    times: dict[str, list[float]] = {name: [] for name in callers}
    for turn in range(rounds):
        first = turn * per_round % (len(contexts) - per_round)
        for name in sorted(callers, reverse=turn % 2 == 1):
            target = targets["echo" if name == "echo" else "service"][transport]
            times[name] += callers[name](target, contexts[first : first + per_round])
    row: dict[str, float] = {}
    for name, values in times.items():
        figures = percentiles(values)
        row |= {f"{name} median us": round(figures["median"], 1), f"{name} p99 us": round(figures["p99"], 1)}
    ratios = {name: round(row[f"{name} median us"] / row["echo median us"], 3) for name in callers if name != "echo"}
    print(f"  {label:<24}" + " ".join(f"{figure:8.1f}" for figure in row.values()), *ratios.values(), flush=True)
    return {**row, **{"ratio" if name == "service" else f"{name} ratio": ratio for name, ratio in ratios.items()}}


async def all_at_once(target: str, call: Asynchronous, contexts: Contexts, requests: int) -> float:
    """Return the requests a second of 16 clients at once."""
    share = min(requests, len(contexts)) // CLIENTS
    start = time.perf_counter()
    await asyncio.gather(*(call(target, contexts[place * share : (place + 1) * share]) for place in range(CLIENTS)))
    return CLIENTS * share / (time.perf_counter() - start)


def throughput(
    kind: str, echo: str, service: str, call: Asynchronous, contexts: Contexts, requests: int, rounds: int
) -> dict[str, float]:
    """Return the median requests a second of 16 clients at once, of echo and service in turns."""
    rates = [
        [asyncio.run(all_at_once(target, call, contexts, requests)) for target in (echo, service)]
        for _ in range(rounds)
    ]
    of_echo, of_service = (float(rate) for rate in np.median(rates, axis=0))
    row = {"echo": round(of_echo, 1), "service": round(of_service, 1), "share": round(of_service / of_echo, 3)}
    print(f"{CLIENTS} clients at once, {kind}, requests a second: {row}", flush=True)
    return row


def batches(target: str, contexts: Contexts, number: int) -> dict[str, float]:
    """Return contexts a second in `number` batches of 256, from one client and from two."""

    async def client(first: int) -> None:
        async with grpc.aio.insecure_channel(target, OWN_CONNECTION) as channel:
            draft = stub_of(channel).Draft
            for turn in range(number):
                start = (first + turn) * BATCH % (len(contexts) - BATCH)
                response = await draft(request_of(*contexts[start : start + BATCH]), wait_for_ready=True)
                assert len(response.trees) == BATCH

    async def run(clients: int) -> float:
        start = time.perf_counter()
        await asyncio.gather(*(client(5 * place) for place in range(clients)))
        return float(clients * number * BATCH / (time.perf_counter() - start))

    row: dict[str, float] = {
        f"{clients} clients": round(float(np.median([asyncio.run(run(clients)) for _ in range(5)])))
        for clients in (1, 2)
    }
    print(f"batches of {BATCH}, contexts a second: {row}", flush=True)
    return row


async def load(name: str, target: str, contexts: Contexts, top: float, seconds: float) -> list[dict[str, float]]:
    """Return latencies of requests that arrive at random, at rates up to one and a half times `top` a second."""
    chance = random.Random(1)
    rows = []
    print(f"{name}: offered a second, answered a second, median us, 99th us, refused")
    async with contextlib.AsyncExitStack() as stack:
        drafts = []
        for _ in range(CLIENTS):
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(target, OWN_CONNECTION))
            drafts.append(stub_of(channel).Draft)
            await drafts[-1](request_of(contexts[0]), **FIRST)
        for share in SHARES:

            async def request(place: int, due: float) -> float | None:
                try:
                    await drafts[place % CLIENTS](request_of(contexts[place % len(contexts)]))
                except grpc.aio.AioRpcError as error:
                    # The service refuses requests beyond its limits; gRPC itself cancels those that waited too long.
                    if error.code() not in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED):
                        raise
                    return None
                return (time.perf_counter() - due) * 1e6

            tasks: list[asyncio.Task[float | None]] = []
            begin = due = time.perf_counter()
            while due < begin + seconds:
                due += chance.expovariate(share * top)
                if (wait := due - time.perf_counter()) > 0 or len(tasks) % 16 == 0:
                    await asyncio.sleep(max(0.0, wait))
                tasks.append(asyncio.create_task(request(len(tasks), due)))
            times = [value for value in await asyncio.gather(*tasks) if value is not None]
            duration = time.perf_counter() - begin
            figures = percentiles(times)
            row = {
                "offered": round(len(tasks) / seconds, 1),
                "answered": round(len(times) / duration, 1),
                "median us": round(figures["median"], 1),
                "p99 us": round(figures["p99"], 1),
                "refused": len(tasks) - len(times),
            }
            rows.append(row)
            print("  " + " ".join(f"{value:10.0f}" for value in row.values()), flush=True)
    return rows


if __name__ == "__main__":
    main()
