"""Serve a datastore in partitions on a Ray cluster.

    python examples/ray_partitions.py /shared/code.ds --partitions 4 --replicas 2 -- --insecure

An actor for each replica of each partition runs `rest-store serve`. The program prints the target
of clients, the endpoints of each partition, such as `a:50051,b:50052;c:50053,d:50054`. Clients send
requests to the servers directly; Ray only keeps the servers running.

The datastore and the files of options are read on the machine of each server, at the same path. A
server that is started again on its machine keeps its address. If Ray moves a server to another
machine, the program prints the new target, and clients have to be started again with it.
"""

import subprocess
import sys
import threading
import time
from typing import Any

import click
import ray


@ray.remote(num_cpus=0.001, max_restarts=-1, scheduling_strategy="SPREAD")
class PartitionServer:
    """Runs a server, and starts it again when it ends.

    If the machine of the actor is lost, Ray starts the actor again on another one.
    """

    def __init__(self, words: list[str], host: str | None, port: int) -> None:
        self._command = [sys.executable, "-m", "rest_store", "serve", *words]
        self._listen = f"{host or ray.util.get_node_ip_address()}:{port}"
        self._process: subprocess.Popen[str] | None = None
        self._address: str | None = None
        self._starting = True
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(0 if self._starting else 1):
            command = [*self._command, "--listen", self._listen]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as self._process:
                assert self._process.stdout is not None
                for line in self._process.stdout:
                    if line.startswith("listening on "):
                        self._listen = line.split()[-1]
                    elif line == "ready\n":
                        self._address = self._listen
            self._starting = False

    def address(self) -> str | None:
        """Return the address of the server once it listens; None if the server has failed."""
        while self._address is None and self._starting:
            time.sleep(0.05)
        return self._address

    def stop(self) -> None:
        """Stop the server, after its running calls."""
        self._ending.set()
        if self._process is not None:
            self._process.terminate()
        self._thread.join()


def target(servers: list[list[Any]]) -> str:
    """Return the target of clients, once all servers answer."""
    addresses = [
        [ray.get(server.address.remote()) for server in partition] for partition in servers
    ]
    if any(address is None for partition in addresses for address in partition):
        sys.exit("A server could not start; its log says why.")
    return ";".join(",".join(partition) for partition in addresses)


@click.command()
@click.argument("datastore")
@click.argument("options", nargs=-1)
@click.option(
    "--address", help="Address of the Ray cluster; by default RAY_ADDRESS, or this machine."
)
@click.option("--partitions", default=2, show_default=True, help="Partitions of the datastore.")
@click.option("--replicas", default=1, show_default=True, help="Servers of each partition.")
@click.option(
    "--host", help="Address of all servers; by default the address of the machine of each."
)
@click.option(
    "--port",
    default=50051,
    show_default=True,
    help="Port of the first server; the others have the ports after it.",
)
def main(
    datastore: str,
    options: tuple[str, ...],
    address: str,
    partitions: int,
    replicas: int,
    host: str,
    port: int,
) -> None:
    """Serve DATASTORE in partitions, each with OPTIONS of `rest-store serve`, until interrupted."""
    ray.init(address or "auto", log_to_driver=True)
    servers = []
    for partition in range(partitions):
        words = [datastore, "--partition", f"{partition + 1}/{partitions}", *options]
        ports = [port and port + partition * replicas + replica for replica in range(replicas)]
        servers.append([PartitionServer.remote(words, host, number) for number in ports])
    try:
        printed = None
        while True:
            now = target(servers)
            if now != printed:
                printed = now
                click.echo(printed)
            time.sleep(1)
    finally:
        ray.get([server.stop.remote() for partition in servers for server in partition])


if __name__ == "__main__":
    main()
