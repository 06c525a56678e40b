"""A proxy before a real S3 server that can break connections, and what tests store there.

The fixture `s3` is both.
"""

from __future__ import annotations

import http.client
import logging
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fsspec
import pytest

from build_index.readers import files
from rest_store.loading import remote_files

BLOCK = 1 << 14  # of the fixture's readers: small files then take several requests


class Proxy(ThreadingHTTPServer):
    """Passes requests on to a server.

    Attributes:
        breaks: number of answers with content that are cut in the middle, from now on.
        requests: method, path and bytes of content of each answer.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = port
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.reset()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def reset(self) -> None:
        self.breaks = 0
        self.requests: list[tuple[str, str, int]] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that have gone."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _answer(self) -> None:
        server = self.server
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in ("host", "connection")
        }
        upstream = http.client.HTTPConnection("127.0.0.1", server.target)
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        upstream.request(self.command, self.path, content or None, headers)
        answer = upstream.getresponse()
        status = answer.status
        body = answer.read()
        headers = {
            name: answer.headers[name]
            for name in ("ETag", "Content-Type")
            if name in answer.headers
        }
        if self.command == "HEAD" and "Content-Length" in answer.headers:
            headers["Content-Length"] = answer.headers["Content-Length"]
        upstream.close()
        headers.setdefault("Content-Length", str(len(body)))
        broken = (
            self.command == "GET"
            and server.breaks > 0
            and status in (200, 206)
            and "list-type" not in self.path
        )
        if broken:
            server.breaks -= 1
            body = body[: len(body) // 2]
        server.requests.append((self.command, self.path, len(body)))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.close_connection = broken

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *arguments: Any) -> None:
        """Keep the output of tests clean."""


def upload(files: Mapping[str, bytes | str]) -> None:
    """Store files by their names in the bucket `corpus`."""
    system = fsspec.filesystem("s3", use_listings_cache=False)
    for name, data in files.items():
        system.pipe(f"corpus/{name}", data if isinstance(data, bytes) else data.encode())


def forget_connections() -> None:
    """Have the next call connect anew, with the environment as it is then."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Proxy]:
    server_module = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = server_module.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    moto.start()
    proxy = Proxy(moto.get_host_and_port()[1])
    forget_connections()
    yield proxy
    forget_connections()
    proxy.shutdown()
    proxy.server_close()
    moto.stop()


@pytest.fixture
def s3(s3_server: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """The server with an empty bucket `corpus`, and the environment of a user who may read it."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(files, "_BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(remote_files, "_PIECE_BYTES", BLOCK)
    # Of its own, which take seconds.
    monkeypatch.setattr(fsspec.get_filesystem_class("s3"), "retries", 1)
    s3_server.reset()
    urllib.request.urlopen(f"{s3_server.url}/moto-api/reset", b"").close()
    fsspec.filesystem("s3", use_listings_cache=False).mkdir("corpus")
    return s3_server
