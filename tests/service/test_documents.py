"""Documents for a live datastore: in requests that service and gRPC take, whatever the limits of the service."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rest_store.service.client.client import DatastoreClient
from rest_store.service.client.descriptions import service_info
from rest_store.service.client.requests import Requests
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.services import PATIENCE, running

TOKENIZER = pb.TokenizerDescription(name="t", fingerprint="sha256:" + "0" * 64, vocabulary_size=9)
MOST_BYTES = 64 << 20  # that gRPC takes of a client, and a service of what waits to be written


def test_a_document_may_be_as_large_as_the_messages_of_a_service(directory: Path, tmp_path: Path) -> None:
    options = [f"--live=chat={tmp_path / 'chat'}"]
    with (
        running(f"a={directory}", options=options) as service,
        DatastoreClient(service.target, datastore="chat", timeout=PATIENCE) as client,
    ):
        assert client.add([np.arange(1_000_000) % 300], ["large"], timeout=PATIENCE) == ["large"]
        assert client.info().token_count == 1_000_000


def test_requests_are_no_larger_than_can_be_written_at_once() -> None:
    live = pb.DatastoreDescription(name="a", tokenizer=TOKENIZER, live=pb.LiveDescription(writable=True))
    limits = pb.ServiceLimits(max_message_bytes=1 << 30, max_contexts=1 << 20)
    info = service_info(pb.DescribeResponse(datastores=[live], limits=limits), (), None, "peer")
    requests = Requests((), info)
    large = [request.message for request in requests.add([np.zeros(5 << 20, np.int32)] * 4, None, None)]
    assert [len(message) < MOST_BYTES for message in large] == [True, True]
    many = [request.message for request in requests.add([[1]] * 100_000, None, None)]
    for message in many:
        assert len(message) + 1024 * len(pb.AddRequest.FromString(message).documents) < MOST_BYTES
