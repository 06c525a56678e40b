r"""What a draft costs through the service, against a gRPC echo of the same messages in the same run.

    python benchmarks/bench_service.py --datastore python.ds --json results/service.json

The service, the echo (`echo.py`: parses each request, sends a prepared answer of the service, does nothing) and
this client run on one machine, each in a process of its own. Rounds of both alternate, so that what else the machine
does meets both. Contexts are 16 tokens before random places of the datastore's documents, one of them changed, so that
matches of all lengths occur; 64 nodes, suffix 16, depth 10.

- one client: median and 99th percentile in microseconds, unary and stream, TCP and Unix socket, sync and asyncio; where
  it is sync, also what a caller of `DatastoreClient` waits for, and of its `source()`, answers verified and all;
- sixteen clients at once, each with its own connection, in one asyncio process: requests a second, and how the share
  of the echo's differs when service and echo are started anew;
- batches of 256 contexts from one client and from two: contexts a second;
- requests arriving at random (Poisson) at a given rate: latency from the moment of arrival, and what was refused.

Targets: median at most 1.3 times the echo's, 90% of its requests a second, 20,000 contexts a second in batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from rest_store.bench.arguments import parser_of
from service_calls import (
    FIRST,
    OWN_CONNECTION,
    Asynchronous,
    Measure,
    in_loop,
    request_of,
    stream_asyncio,
    stream_client,
    stream_sync,
    stub_of,
    unary_asyncio,
    unary_client,
    unary_source,
    unary_sync,
)

from rest_store.bench.environment import write_result
from rest_store.bench.serving import started
from rest_store.datastore.datastore import Datastore

CLIENTS = 16
BATCH = 256
PARTS = ["unary", "stream", "throughput", "batches", "load"]
RATIOS = {"service": "ratio", "client": "client ratio", "source": "source ratio"}
Timings = dict[str, list[float]]  # seconds, by target


def main(given: Sequence[str] | None = None) -> None:
    """Run the benchmark with the arguments given."""
    parser = parser_of("service", __doc__)
    parser.add_argument("--datastore", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=6_000, help="of one client, for each kind of call and target")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--restarts", type=int, default=3, help="of service and echo, for the clients at once")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each load")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    parser.add_argument("--quick", action="store_true", help="a tenth of it: a look, not a result")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(given)
    if arguments.quick:
        arguments.requests, arguments.rounds, arguments.restarts, arguments.seconds = 600, 4, 2, 1.0
    contexts = some_contexts(arguments.datastore, 4_000, arguments.seed)
    results: dict[str, Any] = {}
    with targets_for(arguments.datastore, contexts) as targets:
        per_round = max(1, arguments.requests // arguments.rounds)
        print("one client, us: median / 99th of echo, service, client, source; ratios of their medians to the echo's")
        for transport in ("TCP", "Unix"):
            for kind, measures in LATENCIES.items():
                if kind.partition(",")[0] in arguments.parts:
                    timings = alternate(targets, transport, measures, contexts, per_round, arguments.rounds)
                    results[f"{kind}, {transport}"] = compared(f"{kind}, {transport}", timings)
        if "batches" in arguments.parts:
            results["batches"] = batches(targets["service"]["TCP"], contexts, arguments)
        if "load" in arguments.parts:
            top = asyncio.run(all_at_once(targets["service"]["TCP"], unary_asyncio, contexts, arguments.requests))
            results["load"] = {
                name: asyncio.run(loads(name, target["TCP"], contexts, top, arguments.seconds))
                for name, target in targets.items()
            }
    if "throughput" in arguments.parts:
        results.update(throughput(contexts, arguments))
    write_result(arguments.json, "service", arguments, ["grpcio", "protobuf", "numpy"], results)


def some_contexts(directory: Path, number: int, seed: int) -> list[list[int]]:
    """Return `number` contexts of 16 tokens from the datastore's documents, one token of each changed."""
    store = Datastore.open(directory)
    chance = random.Random(seed)
    found: list[list[int]] = []
    while len(found) < number:
        tokens = chance.choice(store.shards).tokens
        start = chance.randrange(tokens.header.position_count - 16)
        context = [int(token) for token in tokens.symbols(start, start + 16)]
        context[chance.randrange(15)] = chance.randrange(store.vocabulary_size)
        if max(context) < store.vocabulary_size:
            found.append(context)
    return found


@contextlib.contextmanager
def targets_for(datastore: Path, contexts: list[list[int]]) -> Iterator[dict[str, dict[str, str]]]:
    """Start a service and an echo of its answers to `contexts`; yield the addresses of each by transport."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        listen = ("--listen", "127.0.0.1:0", "--listen", f"unix:{folder}/service")
        service = stack.enter_context(started("-m", "rest_store", "serve", str(datastore), *listen))
        answers = Path(folder) / "answers"
        answers.write_bytes(recorded(service[0], contexts))
        echo = stack.enter_context(
            started(str(Path(__file__).with_name("echo.py")), str(answers), f"unix:{folder}/echo")
        )
        listed = {"echo": echo, "service": service}
        yield {name: dict(zip(("TCP", "Unix"), addresses, strict=True)) for name, addresses in listed.items()}


def recorded(target: str, contexts: list[list[int]]) -> bytes:
    """Return the service's answers to `contexts`, one after the other; this also warms its pages."""
    with grpc.insecure_channel(target) as channel:
        stub = stub_of(channel)
        answers = [stub.Draft(request_of(context)).SerializeToString() for context in contexts]
    return b"".join(len(answer).to_bytes(4, "little") + answer for answer in answers)


# What is asked in turn, and of whom: the echo and the service by generated code, the service by our client.
LATENCIES: dict[str, dict[str, tuple[str, Measure]]] = {
    "unary, sync": {
        "echo": ("echo", unary_sync),
        "service": ("service", unary_sync),
        "client": ("service", unary_client),
        "source": ("service", unary_source),
    },
    "unary, asyncio": {"echo": ("echo", in_loop(unary_asyncio)), "service": ("service", in_loop(unary_asyncio))},
    "stream, sync": {
        "echo": ("echo", stream_sync),
        "service": ("service", stream_sync),
        "client": ("service", stream_client),
    },
    "stream, asyncio": {"echo": ("echo", in_loop(stream_asyncio)), "service": ("service", in_loop(stream_asyncio))},
}


def alternate(
    targets: dict[str, dict[str, str]],
    transport: str,
    measures: dict[str, tuple[str, Measure]],
    contexts: list[list[int]],
    per_round: int,
    rounds: int,
) -> Timings:
    """Measure all in turn, each round with other contexts."""
    timings: Timings = {name: [] for name in measures}
    for turn in range(rounds):
        first = turn * per_round % (len(contexts) - per_round)
        for name in sorted(measures, reverse=turn % 2 == 1):
            target, measure = measures[name]
            timings[name] += measure(targets[target][transport], contexts[first : first + per_round])
    return timings


def compared(label: str, timings: Timings) -> dict[str, float]:
    row: dict[str, float] = {}
    for name, times in timings.items():
        row[f"{name} median us"], row[f"{name} p99 us"] = (
            round(float(q) * 1e6, 1) for q in np.percentile(times, [50, 99])
        )
    for name in timings:
        if name != "echo":
            row[RATIOS[name]] = round(row[f"{name} median us"] / row["echo median us"], 3)
    figures = [row[f"{name} {what} us"] for name in timings for what in ("median", "p99")]
    ratios = " ".join(f"{row[RATIOS[name]]:.3f}" for name in timings if name != "echo")
    print(f"  {label:<24}" + " ".join(f"{figure:8.1f}" for figure in figures) + f"  {ratios}", flush=True)
    return row


async def all_at_once(target: str, call: Asynchronous, contexts: list[list[int]], requests: int) -> float:
    """Return the requests a second of 16 clients at once."""
    share = min(requests, len(contexts)) // CLIENTS
    start = time.perf_counter()
    await asyncio.gather(*(call(target, contexts[place * share : (place + 1) * share]) for place in range(CLIENTS)))
    return CLIENTS * share / (time.perf_counter() - start)


def throughput(contexts: list[list[int]], arguments: Any) -> dict[str, dict[str, float]]:
    """Return requests a second of 16 clients at once, medians of several rounds with each of several pairs of servers.

    `share` is the median of the pairs' shares; `share min` and `share max` are the least and the greatest of them.
    """
    calls = {"unary": unary_asyncio, "stream": stream_asyncio}
    medians: dict[str, list[dict[str, float]]] = {kind: [] for kind in calls}
    print(f"{CLIENTS} clients at once, requests a second, for each pair of servers: echo, service, share")
    for _ in range(arguments.restarts):
        with targets_for(arguments.datastore, contexts) as targets:
            for kind, call in calls.items():
                rates: Timings = {name: [] for name in targets}
                for turn in range(arguments.rounds):
                    for name in sorted(targets, reverse=turn % 2 == 1):
                        rate = asyncio.run(all_at_once(targets[name]["TCP"], call, contexts, arguments.requests))
                        rates[name].append(rate)
                row = {name: float(np.median(each)) for name, each in rates.items()}
                medians[kind].append({**row, "share": row["service"] / row["echo"]})
                print(
                    f"  {kind:<24}{row['echo']:8.0f} {row['service']:8.0f}  {medians[kind][-1]['share']:.3f}",
                    flush=True,
                )
    return {f"{CLIENTS} clients, {kind}": spread(rows) for kind, rows in medians.items()}


def spread(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return the medians of what several pairs of servers did, and the range of their shares."""
    row = {name: round(float(np.median([each[name] for each in rows])), 1) for name in ("echo", "service")}
    shares = [each["share"] for each in rows]
    found = {"share": float(np.median(shares)), "share min": min(shares), "share max": max(shares)}
    return {**row, **{name: round(value, 3) for name, value in found.items()}, "restarts": len(rows)}


def batches(target: str, contexts: list[list[int]], arguments: Any) -> dict[str, float]:
    """Return contexts a second in batches of 256, requests made anew for each call."""
    number = max(8, arguments.requests // 50)

    async def run(clients: int) -> float:
        async def one(first: int) -> None:
            async with grpc.aio.insecure_channel(target, OWN_CONNECTION) as channel:
                draft = stub_of(channel).Draft
                for turn in range(number):
                    start = (first + turn) * BATCH % (len(contexts) - BATCH)
                    response = await draft(request_of(*contexts[start : start + BATCH]), wait_for_ready=True)
                    assert len(response.trees) == BATCH

        start = time.perf_counter()
        await asyncio.gather(*(one(5 * place) for place in range(clients)))
        return float(clients * number * BATCH / (time.perf_counter() - start))

    row: dict[str, float] = {
        f"{clients} clients": round(float(np.median([asyncio.run(run(clients)) for _ in range(5)])))
        for clients in (1, 2)
    }
    print(
        f"batches of {BATCH}, contexts a second: one client {row['1 clients']:,}, two {row['2 clients']:,}", flush=True
    )
    return row


async def loads(
    name: str, target: str, contexts: list[list[int]], top: float, seconds: float
) -> list[dict[str, float]]:
    """Return latencies at rates up to one and a half times `top` requests a second, arriving at random."""
    chance = random.Random(1)
    rows = []
    print(f"{name}: offered a second, answered a second, median us, 99th us, refused")
    async with contextlib.AsyncExitStack() as stack:
        drafts = []
        for _ in range(CLIENTS):
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(target, OWN_CONNECTION))
            drafts.append(stub_of(channel).Draft)
            await drafts[-1](request_of(contexts[0]), **FIRST)
        for share in (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5):
            times: list[float] = []
            refused = 0

            async def one(place: int, due: float, times: list[float] = times) -> None:
                nonlocal refused
                try:
                    await drafts[place % CLIENTS](request_of(contexts[place % len(contexts)]))
                    times.append(time.perf_counter() - due)
                except grpc.aio.AioRpcError as error:
                    # The service refuses what is too much; of a bare server, gRPC itself drops what has waited long.
                    if error.code() not in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED):
                        raise
                    refused += 1

            tasks: list[asyncio.Task[None]] = []
            begin = due = time.perf_counter()
            while due < begin + seconds:
                due += chance.expovariate(share * top)
                if (wait := due - time.perf_counter()) > 0 or len(tasks) % 16 == 0:
                    await asyncio.sleep(max(0.0, wait))
                tasks.append(asyncio.create_task(one(len(tasks), due)))
            await asyncio.gather(*tasks)
            took = time.perf_counter() - begin
            median, high = (float(q) * 1e6 for q in np.percentile(times, [50, 99]))
            row = {
                "offered": round(len(tasks) / seconds, 1),
                "answered": round(len(times) / took, 1),
                "median us": round(median, 1),
                "p99 us": round(high, 1),
                "refused": refused,
            }
            rows.append(row)
            print("  " + " ".join(f"{value:10.0f}" for value in row.values()), flush=True)
    return rows


if __name__ == "__main__":
    main()
