"""What tests of remote corpora share."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Iterator

import fsspec
import pytest

from build_index.readers import files
from tests.shared.object_store import BLOCK, Proxy, forget_connections


@pytest.fixture(scope="package")
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
    monkeypatch.setattr(fsspec.get_filesystem_class("s3"), "retries", 1)  # of its own, which take seconds
    s3_server.reset()
    urllib.request.urlopen(f"{s3_server.url}/moto-api/reset", b"").close()
    fsspec.filesystem("s3", use_listings_cache=False).mkdir("corpus")
    return s3_server
