"""What a client knows of the parts of a datastore."""

from __future__ import annotations

from collections.abc import Sequence

from rest_store.errors import PartError
from rest_store.service.client.answers import ServiceInfo
from rest_store.service.client.assembly import Assembly
from rest_store.service.client.codec import Codec
from rest_store.v1 import datastore_pb2 as pb

TOKENIZER = pb.TokenizerDescription(name="t", fingerprint="sha256:" + "0" * 64, vocabulary_size=9)


def described(codec: Codec, number: int, names: Sequence[str]) -> ServiceInfo:
    """What the part `number` of 2 says of its datastores."""
    build = "sha256:" + str(len(names)) * 64
    datastores = [
        pb.DatastoreDescription(
            name=name,
            tokenizer=TOKENIZER,
            token_count=10,
            part=pb.PartDescription(number=number, parts=2, build=build),
        )
        for name in names
    ]
    return codec.learn(pb.DescribeResponse(datastores=datastores), f"part {number}")


def test_a_part_that_ends_before_it_is_described_again_is_left_out_of_the_whole() -> None:
    """Both parts are restarted with a further datastore; one of them ends again, and has told nobody of it."""
    codecs = [Codec([], None), Codec([], None)]
    assembly = Assembly([["one"], ["two"]], codecs)
    assembly.learn({place: described(codec, place + 1, ["a"]) for place, codec in enumerate(codecs)})
    assert assembly.info().token_count == 20
    assembly.note([], {place: PartError("another build") for place in (0, 1)})
    assembly.learn({0: described(codecs[0], 1, ["a", "b"])})
    info = assembly.info()
    assert [datastore.name for datastore in info.datastores] == ["a", "b"]
    assert info.token_count == 20
    assert [part.fault for part in info.parts] == ["another build"] * 2
