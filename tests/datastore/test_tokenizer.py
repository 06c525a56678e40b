"""Identity of tokenizers: what changes it, what does not, and the message of a mismatch."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from rest_store.datastore.tokenizer import TokenizerIdentity, identity_of
from rest_store.errors import DatastoreFormatError, TokenizerLoadError, TokenizerMismatchError
from rest_store.loading import encoding_sample
from rest_store.loading.encoding_sample import tokenizer_digest
from tests.shared.models import byte_level_bpe, serialized, unigram, word_level, word_piece

KINDS = {
    "BPE": byte_level_bpe,
    "WordPiece": word_piece,
    "Unigram": unigram,
    "WordLevel": lambda: word_level(9),
}


def identity_from(fields, name="given"):
    return TokenizerIdentity.from_tokenizer_json(json.dumps(fields), name)


def fingerprint_of(fields):
    return identity_from(fields).fingerprint


@pytest.fixture(scope="module")
def bpe():
    return serialized(byte_level_bpe())


@pytest.fixture
def identity(bpe):
    return identity_from(bpe, "tiny")


@pytest.mark.parametrize("kind", KINDS)
def test_identity_of_each_kind_of_model_does_not_depend_on_the_order_of_keys(kind):
    fields = serialized(KINDS[kind]())
    assert fields["model"]["type"] == kind
    identity = identity_from(fields)
    shuffled = copy.deepcopy(fields)
    if isinstance(shuffled["model"]["vocab"], dict):
        entries = list(shuffled["model"]["vocab"].items())
        random.Random(1).shuffle(entries)
        shuffled["model"]["vocab"] = dict(entries)
    shuffled["added_tokens"].reverse()
    shuffled = dict(reversed(shuffled.items()))
    assert identity_from(shuffled, "shuffled") == identity
    assert hash(identity_from(shuffled, "shuffled")) == hash(identity)


def test_vocabulary_size_is_the_greatest_id_plus_one_over_added_tokens_too(bpe, identity):
    added = {token["content"]: token["id"] for token in bpe["added_tokens"]}
    assert identity.vocabulary_size == max(*bpe["model"]["vocab"].values(), *added.values()) + 1
    assert identity.vocabulary_size == added["<tool_call>"] + 1
    assert identity.added_tokens == added
    assert set(identity.special_tokens) == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}


def test_merges_as_strings_and_as_pairs_have_the_same_fingerprint(bpe):
    pairs = copy.deepcopy(bpe)
    strings = copy.deepcopy(bpe)
    assert len(bpe["model"]["merges"]) > 20
    split = [
        merge.split(" ") if isinstance(merge, str) else merge for merge in bpe["model"]["merges"]
    ]
    pairs["model"]["merges"] = split
    strings["model"]["merges"] = [" ".join(pair) for pair in split]
    assert fingerprint_of(pairs) == fingerprint_of(strings) == fingerprint_of(bpe)


def test_an_added_token_counts_once_whether_or_not_the_vocabulary_lists_it(bpe):
    listed = copy.deepcopy(bpe)
    not_listed = copy.deepcopy(bpe)
    for token in bpe["added_tokens"]:
        listed["model"]["vocab"][token["content"]] = token["id"]
        not_listed["model"]["vocab"].pop(token["content"], None)
    assert fingerprint_of(listed) == fingerprint_of(not_listed)


def test_a_sequence_of_one_normalizer_is_that_normalizer(bpe):
    def with_normalizer(normalizer):
        return fingerprint_of({**bpe, "normalizer": normalizer})

    nfc = {"type": "NFC"}
    wrapped = {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [nfc]}]}
    assert with_normalizer(nfc) == with_normalizer(wrapped)
    assert with_normalizer(None) == with_normalizer({"type": "Sequence", "normalizers": []})
    assert with_normalizer(nfc) != with_normalizer(None)


def swap_the_last(of_tokens):
    """Exchange the ids of the last two tokens of a vocabulary."""
    first, second = list(of_tokens)[-2:]
    of_tokens.update({first: of_tokens[second], second: of_tokens[first]})


CHANGES = {
    "two tokens": (byte_level_bpe, lambda fields: swap_the_last(fields["model"]["vocab"])),
    "the merges": (
        byte_level_bpe,
        lambda fields: fields["model"]["merges"].append(fields["model"]["merges"].pop(0)),
    ),
    "an added token": (
        byte_level_bpe,
        lambda fields: fields["added_tokens"][-1].update(content="<other>"),
    ),
    "a normalizer": (
        byte_level_bpe,
        lambda fields: fields.update(normalizer={"type": "Lowercase"}),
    ),
    "a score": (unigram, lambda fields: fields["model"]["vocab"][5].__setitem__(1, -6.0)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_gives_ids_their_meaning_changes_the_fingerprint(name):
    make, change = CHANGES[name]
    fields = serialized(make())
    before = fingerprint_of(fields)
    change(fields)
    assert fingerprint_of(fields) != before


def test_padding_and_truncation_do_not_change_the_fingerprint():
    tokenizer = byte_level_bpe()
    before = identity_of(tokenizer)
    tokenizer.enable_padding(length=8)
    tokenizer.enable_truncation(4)
    assert identity_of(tokenizer) == before


def test_a_tokenizer_without_tokens_is_refused():
    with pytest.raises(
        TokenizerLoadError, match="some: vocabulary is empty, expected at least one token"
    ):
        TokenizerIdentity.from_tokenizer_json(Tokenizer(models.BPE()).to_str(), "some")


def test_the_manifest_gives_the_identity_back(identity):
    stored = json.loads(json.dumps(identity.to_manifest()))
    again = TokenizerIdentity.from_manifest(stored, "manifest.json")
    assert again == identity
    assert again.name == "tiny"
    assert stored["fingerprint"].startswith("sha256:")
    assert (
        TokenizerIdentity.from_manifest({**stored, "a later field": 1}, "manifest.json") == identity
    )


@pytest.mark.parametrize(
    "change",
    [
        *({"name": 3}, {"fingerprint": "sha256:12"}, {"fingerprint": None}, {"vocabulary_size": 0}),
        *({"vocabulary_size": True}, {"vocabulary_size": "400"}, {"special_tokens": ["<s>"]}),
        *({"added_tokens": {"<s>": id_}} for id_ in (-1, 10**6, "1")),
        *({"encoding": value} for value in ("sha256:12", 3, ["sha256:" + "0" * 64])),
    ],
    ids=str,
)
def test_a_bad_field_of_the_manifest_is_refused(identity, change):
    expected = "^ds/manifest.json: tokenizer is malformed, expected as in FORMAT.md"
    with pytest.raises(DatastoreFormatError, match=expected):
        TokenizerIdentity.from_manifest({**identity.to_manifest(), **change}, "ds/manifest.json")


def test_the_same_tokenizer_by_another_name_is_accepted(bpe, identity):
    identity.require_same(identity_from(bpe, "another name"), "ds/")


def mismatch(identity, fields):
    """The message that refuses a tokenizer."""
    with pytest.raises(TokenizerMismatchError) as error:
        identity.require_same(identity_from(fields, "other"), "ds/")
    return str(error.value)


def test_what_differs_is_named(bpe, identity):
    expected = (
        f"ds/: tokenizer 'other' is one with a vocabulary of 9, expected {identity.vocabulary_size}"
        " as in 'tiny'"
    )
    assert mismatch(identity, serialized(word_level(9))) == expected
    renamed = copy.deepcopy(bpe)
    swapped = copy.deepcopy(bpe)
    CHANGES["an added token"][1](renamed)
    id_ = identity.added_tokens["<tool_call>"]
    actual = (
        f"without added tokens '<tool_call>' (id {id_}) and with added tokens '<other>' (id {id_})"
    )
    assert (
        mismatch(identity, renamed)
        == f"ds/: tokenizer 'other' is {actual}, expected the added tokens of 'tiny'"
    )
    CHANGES["the merges"][1](swapped)
    expected = (
        f"is {fingerprint_of(swapped)} (merges differ), expected {identity.fingerprint} as of"
        " 'tiny'; build it"
    )
    assert expected in mismatch(identity, swapped)
    stored = TokenizerIdentity.from_manifest(identity.to_manifest(), "manifest.json")
    assert f"{fingerprint_of(swapped)} (vocabulary, merges or normalizer differ)" in mismatch(
        stored, swapped
    )


# --- The same vocabulary, other tokens ------------------------------------------------------------


def space_marks(**parts):
    """A tokenizer like SentencePiece's: characters, and marks that stand for spaces."""
    vocab = {character: id_ for id_, character in enumerate(map(chr, [*range(33, 127), 0x2581]))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="?"))
    return {**serialized(tokenizer), **parts}


def identity_with_sample(fields, name="other"):
    tokenizer = Tokenizer.from_str(json.dumps(fields))
    return TokenizerIdentity.from_tokenizer_json(
        json.dumps(fields), name, tokenizer_digest(tokenizer, json.dumps(fields))
    )


def stored(identity, **changes):
    """The identity as a datastore has it."""
    return TokenizerIdentity.from_manifest(
        {**identity.to_manifest(), **changes}, "ds/manifest.json"
    )


MARK = "\u2581"
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
IN_NORMALIZER = {
    "normalizer": {
        "type": "Sequence",
        "normalizers": [{"type": "Prepend", "prepend": MARK}, REPLACE],
    }
}
METASPACE = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": False}


@pytest.mark.parametrize("of_file_is_stored", [True, False])
@pytest.mark.parametrize("encoding", [True, False], ids=["with samples", "of an earlier release"])
def test_a_file_and_its_directory_as_transformers_loads_it_are_the_same(
    of_file_is_stored, encoding
):
    identities = [
        identity_with_sample(space_marks(**IN_NORMALIZER)),
        identity_with_sample(space_marks(pre_tokenizer=METASPACE)),
    ]
    own, other = identities if of_file_is_stored else identities[::-1]
    assert own.fingerprint != other.fingerprint
    assert own.encoding == other.encoding
    stored(own, **({} if encoding else {"encoding": None})).require_same(other, "ds/")


def test_a_mark_before_texts_that_one_of_them_does_not_write_is_refused():
    without = identity_with_sample(space_marks(normalizer=REPLACE))
    always = identity_with_sample(space_marks(pre_tokenizer=METASPACE))
    never = identity_with_sample(
        space_marks(pre_tokenizer={**METASPACE, "prepend_scheme": "never"})
    )
    for own, other in ((without, always), (always, without), (always, never)):
        with pytest.raises(
            TokenizerMismatchError,
            match=r"differ.*build it again with the directory or the name that",
        ):
            stored(own).require_same(other, "ds/")


def test_another_pre_tokenizer_is_refused_and_named_where_the_datastore_keeps_its_tokenizer(
    bpe, tmp_path
):
    own = identity_with_sample(bpe, "tiny")
    digits = {"type": "Digits", "individual_digits": True}
    split = {
        **bpe,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, bpe["pre_tokenizer"]]},
    }
    other = identity_with_sample(split)
    assert own.fingerprint == other.fingerprint
    actual = (
        "one that writes texts with other tokens of the same vocabulary (normalizer or"
        " pre-tokenizer differ)"
    )
    with pytest.raises(TokenizerMismatchError) as error:
        stored(own).require_same(other, tmp_path)
    assert str(error.value).startswith(
        f"{tmp_path}: tokenizer 'other' is {actual}, expected the tokens of 'tiny'; build it"
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(bpe))
    with pytest.raises(
        TokenizerMismatchError, match=r"of the same vocabulary \(pre-tokenizer differ\)"
    ):
        stored(own).require_same(other, tmp_path)
    # Of an earlier release, which nobody can tell.
    stored(own, encoding=None).require_same(other, tmp_path)


def test_parts_that_are_written_otherwise_and_mean_the_same_are_the_same(bpe):
    wrapped = {
        **bpe,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [bpe["pre_tokenizer"]]},
    }
    stored(identity_with_sample(bpe)).require_same(identity_with_sample(wrapped), "ds/")


def test_padding_truncation_and_dropout_do_not_change_the_sample():
    tokenizer = byte_level_bpe()
    before = identity_of(tokenizer).encoding
    assert before is not None
    tokenizer.enable_padding(length=64)
    tokenizer.enable_truncation(2)
    tokenizer.model.dropout = 1.0
    assert identity_of(tokenizer).encoding == before
    assert tokenizer.encode("one two three").ids != byte_level_bpe().encode("one two three").ids, (
        "it is as it was"
    )


def test_the_texts_of_the_sample_are_those_of_the_format():
    text = (Path(encoding_sample.__file__).parents[1] / "datastore" / "FORMAT.md").read_text(
        encoding="utf-8"
    )
    lines = text.split("as JSON strings:\n\n```\n")[1].split("\n```")[0].splitlines()
    assert tuple(map(json.loads, lines)) == encoding_sample.SAMPLE
    ids = [byte_level_bpe().encode(sample).ids for sample in encoding_sample.SAMPLE]
    digest = hashlib.sha256(json.dumps(ids).replace(" ", "").encode()).hexdigest()
    assert identity_of(byte_level_bpe()).encoding == f"sha256:{digest}"


def test_identity_of_takes_every_form_of_a_fast_tokenizer(identity):
    tokenizer = byte_level_bpe()

    class Fast:
        backend_tokenizer = tokenizer
        name_or_path = "owner/model"

    class Holder:
        pass

    Holder.identity = identity
    assert identity_of(identity) is identity
    assert identity_of(Holder()) is identity
    assert identity_of(tokenizer) == identity
    assert identity_of(tokenizer).name == "Tokenizer"
    assert identity_of(tokenizer, "mine").name == "mine"
    assert identity_of(Fast()) == identity
    assert identity_of(Fast()).name == "owner/model"


def test_an_identity_is_computed_once_until_the_tokenizer_changes(monkeypatch):
    computed = []
    compute = TokenizerIdentity.from_tokenizer_json

    def counted(text, name, encoding):
        computed.append(name)
        return compute(text, name, encoding)

    monkeypatch.setattr(TokenizerIdentity, "from_tokenizer_json", counted)
    monkeypatch.setattr("rest_store.datastore.tokenizer._identities", {})
    tokenizer = byte_level_bpe()
    before = identity_of(tokenizer)
    named = identity_of(byte_level_bpe(), "mine")
    assert len(computed) == 1
    assert named == before
    assert named.name == "mine"
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert identity_of(tokenizer).encoding != before.encoding
    tokenizer.add_tokens(["<added>"])
    assert "<added>" in identity_of(tokenizer).added_tokens
    assert len(computed) == 3
