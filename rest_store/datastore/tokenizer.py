"""The identity of a tokenizer, and the comparison of two.

Token ids have a meaning only with their tokenizer, so a datastore records the identity of its
tokenizer in the manifest (FORMAT.md, section 5) and refuses any other. The identity is computed
from the serialization of Hugging Face `tokenizers` (`tokenizer.json`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rest_store.errors import (
    DatastoreFormatError,
    TokenizerLoadError,
    TokenizerMismatchError,
    describe,
)
from rest_store.loading.loaded_tokenizer import load_tokenizer

_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")
_ADVICE = "build it again with the directory or the name that the model is loaded from"
_MAX_KNOWN = 8  # identities of tokenizers that are kept
_MAX_NAMED = 3  # added tokens named in a message; further ones are only counted


@dataclass(frozen=True)
class TokenizerIdentity:
    """The properties that must be equal for token ids to mean the same.

    Attributes:
        name: name or path that the user gave; not compared.
        fingerprint: `"sha256:"` and 64 hexadecimal digits: a hash of the properties that give token
            ids their meaning (`_meaning`).
        vocabulary_size: the greatest id + 1, over vocabulary and added tokens.
        special_tokens: ids of the control tokens, by their text.
        added_tokens: ids of all added tokens, control tokens or not, by their text.
        encoding: a hash of the tokens of some texts (`sample_digest`), which differs if a tokenizer
            splits texts otherwise; None: not known, as of datastores that earlier releases built.
        equivalents: fingerprints of the same tokenizer with another step that marks spaces.
        components: hashes of the components of the tokenizer by name; empty if the identity was
            read from a manifest.

    Two identities are equal if fingerprint, size and tokens are equal; `require_same` compares
    `encoding`, too. Thread-safe; the dictionaries must not be modified.
    """

    name: str = field(compare=False)
    fingerprint: str
    vocabulary_size: int
    special_tokens: dict[str, int] = field(hash=False)
    added_tokens: dict[str, int] = field(hash=False)
    encoding: str | None = field(default=None, compare=False, kw_only=True)
    equivalents: frozenset[str] = field(
        default=frozenset(), compare=False, repr=False, kw_only=True
    )
    components: Mapping[str, str] = field(
        default_factory=dict, compare=False, repr=False, kw_only=True
    )

    @classmethod
    def from_tokenizer_json(
        cls, tokenizer_json: str, name: str, encoding: str | None = None
    ) -> TokenizerIdentity:
        """Compute the identity of a tokenizer.

        Args:
            tokenizer_json: its serialization by `tokenizers` (BPE, WordPiece, Unigram or
                WordLevel).
            name: of the tokenizer in manifests and messages.
            encoding: see the attribute.

        Raises:
            TokenizerLoadError: it has no token.
        """
        fields = json.loads(tokenizer_json)
        added = sorted(
            (token["id"], token["content"], token["special"])
            for token in fields.get("added_tokens", ())
        )
        vocabulary, scores = _vocabulary(fields["model"]["vocab"])
        vocabulary |= {(id_, text) for id_, text, _ in added}
        if not vocabulary:
            raise TokenizerLoadError(describe(name, "vocabulary", "empty", "at least one token"))
        meaning = _meaning(
            fields, sorted(vocabulary), scores, [(id_, text) for id_, text, _ in added]
        )
        components = {**meaning, "pre-tokenizer": fields.get("pre_tokenizer")}
        return cls(
            name=name,
            fingerprint=_digest(meaning),
            vocabulary_size=max(id_ for id_, _ in vocabulary) + 1,
            special_tokens={text: id_ for id_, text, special in added if special},
            added_tokens={text: id_ for id_, text, _ in added},
            encoding=encoding,
            equivalents=frozenset(
                _digest({**meaning, "normalizer": steps}) for steps in _equivalent_steps(fields)
            ),
            components={name: _digest(component) for name, component in components.items()},
        )

    @classmethod
    def from_manifest(cls, fields: object, where: object) -> TokenizerIdentity:
        """Read the identity back from the `tokenizer` object of a manifest.

        Args:
            fields: the parsed object; unknown fields are ignored.
            where: the manifest's path, for messages.

        Raises:
            DatastoreFormatError: a field is absent or of the wrong type.
        """
        values: list[Any] = [
            fields.get(what) if isinstance(fields, Mapping) else None for what in cls.__match_args__
        ]
        name, fingerprint, size, special, added = values
        is_named = (
            isinstance(name, str)
            and isinstance(fingerprint, str)
            and _FINGERPRINT.fullmatch(fingerprint)
        )
        is_size = _is_id(size, 1 << 32) and size > 0
        encoding = fields.get("encoding") if isinstance(fields, Mapping) else None
        is_encoding = encoding is None or (
            isinstance(encoding, str) and _FINGERPRINT.fullmatch(encoding)
        )
        if (
            not is_named
            or not is_size
            or not is_encoding
            or not _are_ids(special, size)
            or not _are_ids(added, size)
        ):
            raise DatastoreFormatError(
                "manifest", describe(where, "tokenizer", "malformed", "as in FORMAT.md, section 5")
            )
        return cls(name, fingerprint, size, dict(special), dict(added), encoding=encoding)

    def to_manifest(self) -> dict[str, Any]:
        """Return the `tokenizer` object of a manifest (FORMAT.md, section 5) for `json.dump`."""
        fields: dict[str, Any] = {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "vocabulary_size": self.vocabulary_size,
            "special_tokens": dict(self.special_tokens),
            "added_tokens": dict(self.added_tokens),
        }
        if self.encoding is not None:
            fields["encoding"] = self.encoding
        return fields

    def require_same(self, other: TokenizerIdentity, where: object) -> None:
        """Refuse `other` if it is not this tokenizer, with which the datastore was built.

        Args:
            other: the tokenizer in use.
            where: the datastore, for the message.

        Raises:
            TokenizerMismatchError: they differ. The message names the first difference: vocabulary
                size, added tokens, the rest (vocabulary, merges, normalizer), or how texts are
                split.
        """
        what = f"tokenizer '{other.name}'"
        if self.vocabulary_size != other.vocabulary_size:
            actual = f"one with a vocabulary of {other.vocabulary_size}"
            expected = f"{self.vocabulary_size} as in '{self.name}'"
            raise TokenizerMismatchError(describe(where, what, actual, expected))
        missing = self.added_tokens.items() - other.added_tokens.items()
        extra = other.added_tokens.items() - self.added_tokens.items()
        if missing or extra:
            differences = []
            if missing:
                differences.append(f"without {_listed(missing)}")
            if extra:
                differences.append(f"with {_listed(extra)}")
            actual = " and ".join(differences)
            expected = f"the added tokens of '{self.name}'"
            raise TokenizerMismatchError(describe(where, what, actual, expected))
        is_equal = self.fingerprint == other.fingerprint
        if (
            not is_equal
            and other.fingerprint not in self.equivalents
            and self.fingerprint not in other.equivalents
        ):
            differing = self._differences(other, where) or "vocabulary, merges or normalizer"
            actual = f"{other.fingerprint} ({differing} differ)"
            expected = f"{self.fingerprint} as of '{self.name}'; {_ADVICE}"
            raise TokenizerMismatchError(describe(where, what, actual, expected))
        if None not in (self.encoding, other.encoding) and self.encoding != other.encoding:
            differing = self._differences(other, where) or "normalizer or pre-tokenizer"
            actual = (
                f"one that writes texts with other tokens of the same vocabulary ({differing}"
                " differ)"
            )
            raise TokenizerMismatchError(
                describe(where, what, actual, f"the tokens of '{self.name}'; {_ADVICE}")
            )

    def _differences(self, other: TokenizerIdentity, where: object) -> str:
        """Return the names of the components that differ; "" if those of this one are not known.

        If `where` is a directory, they may be in its `tokenizer.json`.
        """
        components = self.components
        if not components and isinstance(where, Path):
            try:
                text = (where / "tokenizer.json").read_text(encoding="utf-8")
                components = TokenizerIdentity.from_tokenizer_json(text, self.name).components
            except (OSError, ValueError, LookupError, TypeError):
                return ""
        names = []
        for name, digest in components.items():
            if other.components.get(name, digest) != digest:
                names.append(name.replace("_", " "))
        return ", ".join(names)


# By serialization and encoding, so that a tokenizer that is changed has another identity.
_identities: dict[tuple[bytes, str | None], TokenizerIdentity] = {}


def identity_of(tokenizer: object, name: str | None = None) -> TokenizerIdentity:
    """Return the identity of a tokenizer.

    Args:
        tokenizer: a `TokenizerIdentity`, an object with an attribute `identity` that is one, or
            whatever `load_tokenizer` takes: a fast tokenizer of `transformers`, a
            `tokenizers.Tokenizer`, a path, or a name on the Hugging Face hub.
        name: of the tokenizer; by default its own.

    Returns:
        The identity. This takes seconds for a large vocabulary. A tokenizer with a known
        serialization is only serialized again, which takes a seventh of that time.

    Raises:
        TokenizerLoadError: as `load_tokenizer`.
    """
    for identity in (tokenizer, getattr(tokenizer, "identity", None)):
        if isinstance(identity, TokenizerIdentity):
            return identity
    loaded = load_tokenizer(tokenizer)
    key = (hashlib.sha256(loaded.json.encode("utf-8")).digest(), loaded.encoding)
    known = _identities.get(key)
    if known is None:
        known = TokenizerIdentity.from_tokenizer_json(loaded.json, loaded.name, loaded.encoding)
        if len(_identities) >= _MAX_KNOWN:
            _identities.clear()
        _identities[key] = known
    return replace(known, name=name or loaded.name)


def _meaning(
    fields: Mapping[str, Any],
    vocabulary: list[tuple[int, str]],
    scores: list[tuple[int, float]],
    added: list[tuple[int, str]],
) -> dict[str, Any]:
    """Return the properties that give token ids their meaning.

    These are the type of the model, vocabulary, merges, added tokens and normalizer. Their hash
    does not depend on the order of keys, on the form of merges (`"a b"` or pairs), on added tokens
    in the vocabulary, on a normalizer in a sequence of one, or on the flags of added tokens. Nor
    does it depend on padding, truncation, pre-tokenizer, post-processor and decoder.
    """
    model = fields["model"]
    return {
        "model": model["type"],
        "vocabulary": vocabulary,
        "scores": scores,
        "merges": [
            merge.split(" ") if isinstance(merge, str) else merge
            for merge in model.get("merges", ())
        ],
        "added_tokens": added,
        "normalizer": list(_normalizer_steps(fields.get("normalizer"))) or None,
    }


def _digest(value: object) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _equivalent_steps(fields: Mapping[str, Any]) -> Iterator[list[object] | None]:
    """Yield equivalent normalizers of a tokenizer that marks spaces as SentencePiece does.

    The tokenizer's file marks spaces in the normalizer. `transformers` 5 replaces that by a
    pre-tokenizer, `Metaspace`. Tokens differ only at the beginning of a text with a leading space,
    or behind a control token.
    """
    steps = list(_normalizer_steps(fields.get("normalizer")))
    pre_tokenizer = fields.get("pre_tokenizer") or {}
    if (
        not steps
        and pre_tokenizer.get("type") == "Metaspace"
        and not pre_tokenizer.get("split", True)
    ):
        mark = pre_tokenizer["replacement"]
        if pre_tokenizer.get("prepend_scheme", "always") != "never":
            yield _marking_steps(mark)
    elif steps and not pre_tokenizer and steps == _marking_steps(str(steps[0].get("prepend"))):
        yield None


def _marking_steps(mark: str) -> list[Any]:
    """Return the normalizer that writes a mark before a text and for each space."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": mark}
    return [{"type": "Prepend", "prepend": mark}, replace]


def _vocabulary(
    vocabulary: Mapping[str, int] | list[list[Any]],
) -> tuple[set[tuple[int, str]], list[tuple[int, float]]]:
    """Return (id, text) of each token, and (id, score) of those of Unigram."""
    if isinstance(vocabulary, Mapping):
        return {(id_, text) for text, id_ in vocabulary.items()}, []
    entries = {(id_, text) for id_, (text, _) in enumerate(vocabulary)}
    return entries, [(id_, float(score)) for id_, (_, score) in enumerate(vocabulary)]


def _normalizer_steps(normalizer: Mapping[str, Any] | None) -> Iterator[Any]:
    """Yield the steps of a normalizer, those of nested sequences one by one."""
    if normalizer is not None and normalizer["type"] == "Sequence":
        for step in normalizer["normalizers"]:
            yield from _normalizer_steps(step)
    elif normalizer is not None:
        yield normalizer


def _are_ids(tokens: object, size: int) -> bool:
    """Return whether `tokens` is an object of texts and ids below `size`."""
    return isinstance(tokens, Mapping) and all(
        isinstance(text, str) and _is_id(id_, size) for text, id_ in tokens.items()
    )


def _is_id(value: object, size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size


def _listed(tokens: Iterable[tuple[str, int]]) -> str:
    by_id = sorted((id_, text) for text, id_ in tokens)
    named = ", ".join(f"{text!r} (id {id_})" for id_, text in by_id[:_MAX_NAMED])
    further = len(by_id) - _MAX_NAMED
    return f"added tokens {named}" + (f" and {further} more" if further > 0 else "")
