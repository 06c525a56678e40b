"""Serve a datastore in parts on a Ray cluster: an actor for each replica of each part, which Ray restarts.

    python examples/ray_parts.py /shared/code.ds --parts 2 --replicas 2 --port 50051

Prints the targets for `rest_store.DatastoreClient` and the commands. The datastore has the same path on every machine.
The addresses are public and without TLS: use it in a trusted network, with a token in REST_STORE_TOKEN.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time

import ray


@ray.remote(max_restarts=-1, num_cpus=0, scheduling_strategy="SPREAD")
class Server:
    """One `rest-store serve`, as a process of its own."""

    def __init__(self, directory: str, part: str, port: int, token: str | None) -> None:
        self.host = ray.util.get_node_ip_address()
        self.port = port
        command = [sys.executable, "-m", "rest_store", "serve", directory, "--part", part]
        environment = {**os.environ, **({"REST_STORE_TOKEN": token} if token else {})}
        self.process = subprocess.Popen(
            [*command, "--listen", f"{self.host}:{port}", "--insecure"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        if not any(line == "ready\n" for line in self.process.stdout):
            raise RuntimeError(f"part {part} did not start on {self.host}")

    def target(self) -> str:
        """Return the address of the server; end the actor, which Ray then restarts, if the server has ended."""
        if self.process.poll() is not None:
            os._exit(1)
        return f"{self.host}:{self.port}"


def main() -> None:
    """Start all servers, print the targets, and look after them until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--port", type=int, default=50051, help="of the first server; the others have those behind it")
    options = parser.parse_args()
    ray.init()
    token = os.environ.get("REST_STORE_TOKEN")
    ports = itertools.count(options.port)
    servers = [
        [
            Server.remote(options.directory, f"{part}/{options.parts}", next(ports), token)
            for _ in range(options.replicas)
        ]
        for part in range(1, options.parts + 1)
    ]
    shown = ""
    while True:
        try:
            targets = ";".join(",".join(ray.get([server.target.remote() for server in part])) for part in servers)
        except ray.exceptions.RayActorError:
            targets = shown  # it is being restarted
        if targets != shown:
            print(targets, flush=True)
            shown = targets
        time.sleep(1)


if __name__ == "__main__":
    main()
