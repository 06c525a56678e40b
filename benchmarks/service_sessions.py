"""Draft sessions through a service, beside what they cannot cost less than: the part of `bench_service.py` on sessions.

Steps: the same generations (`walks.py`) are replayed in turns in process, by sessions in the service, by sessions that
merge in the client, and by echoes of the messages that the sessions in the service had exchanged, blocking and
asyncio. Reported for each: median and 99th percentile of a step in microseconds, without the steps that open sessions;
their median is reported, too. The ratio is the median step in the service divided by the sum of the median step in
process and the median of the quicker echo. Each of these two finds its caches warm, because nothing else runs between
its steps. So a step in process followed by a blocking echo is measured as well.

On one core: the same over TCP, while all threads of the client are bound to one core. gRPC's threads are then woken
without crossing from core to core.

At once: each of 16 processes runs one session after another, all in the same way, and the ways take turns. In process
there are only as many processes as cores, since more would lose time to switching. The benchmark counts the steps of
all processes in some seconds, and the share of the cores' time in which the machine was busy (`/proc/stat`: it must be
idle otherwise). One step then takes `share * cores / (steps a second)` seconds of a core. "The cores allow" is the
rate at which a step would cost no more than a step in process and the cheaper echo, client and server, together:
`1 / (share in process / steps a second in process + share of the echo / echoes a second)`.

M: the recordings are replayed as `rest-store bench quality` does it, in their own contexts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from echo import echoing
from peer_process import PeerProcess
from session_recorder import recording
from session_steps import WAYS, Exchange, Material, Sessions, session_steps
from timing import percentiles
from walks import CONTEXT, long_walks

from rest_store.bench.datastores import open_datastores
from rest_store.bench.recordings import Recording
from rest_store.bench.replay import replay
from rest_store.bench.serving import TIMEOUT, started
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import ServeError, describe
from rest_store.service.client.client import DatastoreClient

NODES = (16, 64)
TRANSPORTS = ("TCP", "Unix")
ON_ONE_CORE = "TCP on one core"
ECHOES = ("echo, sync", "echo, asyncio")
LEAD = 0.1  # seconds for the processes to begin


def measure_sessions(
    datastores: Sequence[Path],
    recordings: Sequence[Recording],
    others: Sequence[Recording],
    *,
    processes: int,
    rounds: int,
    seconds: float,
) -> dict[str, Any]:
    """Measure steps, sessions at once, and M.

    Args:
        datastores: at most 6.
        recordings: to replay, which the shipped calibration was not fitted to.
        others: whose text comes before.
        processes: sessions at once.
        rounds: of sessions at once.
        seconds: of each round and way.
    """
    stores = list(open_datastores(datastores).values())
    results: dict[str, Any] = {"context": CONTEXT, "datastores": [store.manifest.token_count for store in stores]}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        listen = ("--listen", "127.0.0.1:0", "--listen", f"unix:{folder}/service")
        named = (f"{place}={directory}" for place, directory in enumerate(datastores))
        service = stack.enter_context(started("-m", "rest_store", "serve", *named, *listen))
        walks = long_walks(recordings, others)
        material = Material(walks, stores, {}, service[0], "")
        for nodes in NODES:
            material.exchanges[nodes] = recorded(material, nodes)
        echo = stack.enter_context(echoing(folder, trees=answers(material.exchanges)))
        at = {
            transport: dataclasses.replace(material, service=service[place], echo=echo[place])
            for place, transport in enumerate(TRANSPORTS)
        }
        for nodes in NODES:
            results |= steps(at, nodes)
            with on_one_core():
                results |= steps({ON_ONE_CORE: at["TCP"]}, nodes)
        with workers(folder, at["TCP"], datastores, processes) as crew:
            for nodes in NODES:
                results[f"{nodes} nodes, at once"] = at_once(crew, nodes, rounds, seconds)
        for nodes in NODES:
            results[f"{nodes} nodes, M"] = mean_tokens(at["Unix"], recordings, nodes)
    return results


def recorded(material: Material, nodes: int) -> list[list[Exchange]]:
    """Run every session once; return what each and the service sent each other.

    Raises:
        ServeError: the service does not run the sessions.
    """
    with recording(material.service) as (target, recorder), DatastoreClient(target, timeout=TIMEOUT) as client:
        client.connect()
        steps = [len(session_steps([client], nodes, walk)) for walk in material.walks]
    if [len(exchanges) for exchanges in recorder.sessions] != steps:
        found = f"{sum(map(len, recorder.sessions))} of {sum(steps)}"
        raise ServeError(describe("bench", "steps that the service drafted", found, "all of them"))
    return recorder.sessions


def answers(exchanges: dict[int, list[list[Exchange]]]) -> dict[int, list[bytes]]:
    return {nodes: [answer for one in sessions for _, answer in one] for nodes, sessions in exchanges.items()}


def steps(at: dict[str, Material], nodes: int) -> dict[str, Any]:
    """Time the steps of all ways in turns; return figures by transport."""
    transports, first = list(at), next(iter(at.values()))
    times: dict[tuple[str, str], list[float]] = {}
    openings: dict[tuple[str, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        ways: dict[tuple[str, str], Sessions] = {
            (way, transport): stack.enter_context(opened(material, nodes))
            for transport, material in at.items()
            for way, opened in WAYS.items()
            if way != "in process" or material is first  # the same for all
        }
        names = list(ways)
        for number in range(-1, len(first.walks)):  # the first session warms up
            for place in range(len(names)):
                name = names[(number + place) % len(names)]
                took = [(end - begin) * 1e6 for begin, end in ways[name](max(0, number))]
                if number >= 0:
                    openings.setdefault(name, []).append(took[0])
                    times.setdefault(name, []).extend(took[1:])
    for figures in (times, openings):
        for transport in transports[1:]:
            figures["in process", transport] = figures["in process", transports[0]]
    rows = {}
    for transport in transports:
        row: dict[str, float] = {}
        for way in WAYS:
            of = percentiles(times[way, transport])
            row |= {f"{way} median us": round(of["median"], 1), f"{way} p99 us": round(of["p99"], 1)}
            row[f"{way} opening us"] = round(float(np.median(openings[way, transport])), 1)
        echo = min(row[f"{way} median us"] for way in ECHOES)
        row["ratio"] = round(row["service median us"] / (row["in process median us"] + echo), 3)
        rows[f"{nodes} nodes, {transport}"] = row
        print(f"{nodes} nodes, {transport}, ratio {row['ratio']}; us: median / 99th / opening")
        for way in WAYS:
            print(f"  {way:<20}" + " ".join(f"{row[f'{way} {what} us']:8.1f}" for what in ("median", "p99", "opening")))
        sys.stdout.flush()
    return rows


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """Bind this thread, and the threads that it starts meanwhile, to one core; the service and the echo stay free."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def workers(
    folder: Path, material: Material, datastores: Sequence[Path], processes: int
) -> Iterator[list[PeerProcess]]:
    """Start processes that run sessions with `material` (`session_worker.py`)."""
    file = folder / "material"
    fields = {field.name: getattr(material, field.name) for field in dataclasses.fields(material)}
    file.write_bytes(pickle.dumps({**fields, "stores": [path.resolve() for path in datastores]}))
    with contextlib.ExitStack() as stack:
        apart = len(material.walks) / processes  # so that they are at different walks
        yield [
            stack.enter_context(PeerProcess(sys.executable, "session_worker.py", str(int(place * apart)), str(file)))
            for place in range(processes)
        ]


def at_once(crew: Sequence[PeerProcess], nodes: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Count the steps a second of all processes together, in each way in turns; return medians over the rounds."""
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    shares: dict[str, list[float]] = {way: [] for way in WAYS}
    with ThreadPoolExecutor(len(crew)) as pool:
        for turn in range(1 + rounds):  # the first one warms up: each process maps the datastores for itself
            for way in sorted(WAYS, reverse=turn % 2 == 1):
                running = crew[: os.cpu_count()] if way == "in process" else crew
                list(pool.map(partial(PeerProcess.ask, what="open", way=way, nodes=nodes), running))
                begin = time.perf_counter() + LEAD
                counting = pool.map(partial(PeerProcess.ask, what="count", begin=begin, end=begin + seconds), running)
                share, steps = busy(begin, begin + seconds), max(1, sum(counting))  # none on a very busy machine
                if turn:
                    shares[way].append(share)
                    rates[way].append(steps / seconds)
    rate = {way: float(np.median(of)) for way, of in rates.items()}
    used = {way: float(np.median(of)) for way, of in shares.items()}
    cost = {way: used[way] / rate[way] for way in WAYS}
    allowed = 1 / (cost["in process"] + min(cost[way] for way in ECHOES))
    row = {
        **{way: {"steps a second": round(rate[way], 1), "busy": round(used[way], 3)} for way in WAYS},
        "the cores allow": round(allowed, 1),
        "share": round(rate["service"] / allowed, 3),
    }
    print(f"{nodes} nodes, {len(crew)} sessions at once: {row}", flush=True)
    return row


def busy(begin: float, end: float) -> float:
    """Wait until `end`; return the share, 0..1, of all cores' time since `begin` in which they did something."""

    def read(moment: float) -> tuple[int, int]:
        time.sleep(max(0.0, moment - time.perf_counter()))
        ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n")[0].split()[1:9]]
        return sum(ticks), ticks[3] + ticks[4]  # idle, and waiting for a disk

    (before, idle), (after, still_idle) = read(begin), read(end)
    return 1 - (still_idle - idle) / max(1, after - before)


def mean_tokens(material: Material, recordings: Sequence[Recording], nodes: int) -> dict[str, float]:
    """Return M in process, through the service, and with merging in the client."""
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(DatastoreClient(material.service, timeout=TIMEOUT, send_text=send_text))
            for send_text in (True, False)
        ]
        sources = {"in process": material.stores, "service": clients[:1], "merging": clients[1:]}
        row: dict[str, float] = {}
        for way, of in sources.items():
            drafting = [*of, PromptLookup(), RecycledLogits()]
            row[way] = round(replay(recordings, drafting, Calibration.default(), max_nodes=nodes).mean_accepted, 4)
    row |= {f"{way}, share": round(row[way] / row["in process"], 4) for way in ("service", "merging")}
    print(f"{nodes} nodes, M: {row}", flush=True)
    return row
