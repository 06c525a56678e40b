"""The identity of a tokenizer, and the comparison of two.

Token ids have a meaning only with their tokenizer, so a datastore records the identity of its tokenizer in the manifest
(FORMAT.md, section 5) and refuses any other. The identity is computed from the serialization of Hugging Face
`tokenizers` (`tokenizer.json`); neither `tokenizers` nor `transformers` is imported here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rest_store.errors import ManifestError, TokenizerLoadError, TokenizerMismatchError, describe
from rest_store.loading.tokenizer import load_tokenizer

_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")
_NAMED_AT_MOST = 3  # added tokens named in a message; further ones are only counted


@dataclass(frozen=True)
class TokenizerIdentity:
    """The properties that must be equal for token ids to mean the same.

    Attributes:
        name: name or path that the user gave; not compared.
        fingerprint: `"sha256:"` and 64 hexadecimal digits, see `fingerprint_of`.
        vocabulary_size: the greatest id + 1, over vocabulary and added tokens.
        special_tokens: ids of the control tokens, by their text.
        added_tokens: ids of all added tokens, control tokens or not, by their text.

    Safe to share between threads; its dictionaries must not be modified.
    """

    name: str = field(compare=False)
    fingerprint: str
    vocabulary_size: int
    special_tokens: dict[str, int] = field(hash=False)
    added_tokens: dict[str, int] = field(hash=False)

    @classmethod
    def from_tokenizer_json(cls, tokenizer: str | Mapping[str, Any], name: str) -> TokenizerIdentity:
        """Compute the identity of a tokenizer from its `tokenizer.json`.

        Args:
            tokenizer: the text of the file, or the parsed object.
            name: of the tokenizer in manifests and messages.

        Returns:
            The identity; it does not depend on the order of the JSON or the notation of the merges.

        Raises:
            TokenizerLoadError: not JSON, or not the serialization of a tokenizer.
        """
        if isinstance(tokenizer, str):
            try:
                tokenizer = json.loads(tokenizer)
            except (ValueError, RecursionError) as error:
                raise TokenizerLoadError(
                    describe(name, "tokenizer", f"not JSON ({error})", "a tokenizer.json")
                ) from None
        if not isinstance(tokenizer, Mapping):
            found = f"a JSON {type(tokenizer).__name__}"
            raise TokenizerLoadError(describe(name, "tokenizer", found, "the object of a tokenizer.json"))
        model = _model(tokenizer, name)
        added = _added_tokens(tokenizer, name)
        entries = {(entry[0], entry[1]) for entry in _vocabulary(model, name)}
        entries.update((id_, text) for id_, text, _ in added)
        if not entries:
            raise TokenizerLoadError(describe(name, "vocabulary", "empty", "at least one token"))
        return cls(
            name=name,
            fingerprint=fingerprint_of(tokenizer, name),
            vocabulary_size=max(id_ for id_, _ in entries) + 1,
            special_tokens={text: id_ for id_, text, special in added if special},
            added_tokens={text: id_ for id_, text, _ in added},
        )

    @classmethod
    def from_manifest(cls, fields: object, where: object) -> TokenizerIdentity:
        """Read the identity back from the `tokenizer` object of a manifest.

        Args:
            fields: the parsed object; unknown fields are ignored.
            where: the manifest's path, for messages.

        Returns:
            The identity.

        Raises:
            ManifestError: a field is absent, of the wrong type, or contradicts another.
        """
        if not isinstance(fields, Mapping):
            raise ManifestError(describe(where, "tokenizer", _shown(fields), "an object"))

        def require(ok: bool, what: str, expected: str) -> None:
            if not ok:
                found = _shown(fields[what]) if what in fields else "absent"
                raise ManifestError(describe(where, f"tokenizer.{what}", found, expected))

        name: Any = fields.get("name")
        fingerprint: Any = fields.get("fingerprint")
        size: Any = fields.get("vocabulary_size")
        require(isinstance(name, str), "name", "a string")
        valid = isinstance(fingerprint, str) and _FINGERPRINT.fullmatch(fingerprint) is not None
        require(valid, "fingerprint", "'sha256:' and 64 hexadecimal digits")
        require(_is_id(size) and size > 0, "vocabulary_size", "a positive integer below 2^32")
        for what in ("special_tokens", "added_tokens"):
            tokens = fields.get(what)
            valid = isinstance(tokens, Mapping) and all(
                isinstance(text, str) and _is_id(id_) and id_ < size for text, id_ in tokens.items()
            )
            require(valid, what, f"an object of token texts and ids 0..{size - 1}")
        special, added = dict(fields["special_tokens"]), dict(fields["added_tokens"])
        require(special.items() <= added.items(), "special_tokens", "a subset of added_tokens")
        return cls(name, fingerprint, size, special, added)

    def to_manifest(self) -> dict[str, Any]:
        """Return the `tokenizer` object of the manifest (FORMAT.md, section 5), ready for `json.dump`."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "vocabulary_size": self.vocabulary_size,
            "special_tokens": dict(self.special_tokens),
            "added_tokens": dict(self.added_tokens),
        }

    def require_same(self, other: TokenizerIdentity, where: object) -> None:
        """Refuse `other` if it is not this tokenizer, with which the datastore was built.

        Args:
            other: the tokenizer in use.
            where: the datastore, for the message.

        Raises:
            TokenizerMismatchError: they differ. The message names the first difference: vocabulary size, added tokens,
                or the rest (vocabulary, merges, normalizer).
        """
        what = f"tokenizer '{other.name}'"
        if self.vocabulary_size != other.vocabulary_size:
            found = f"one with a vocabulary of {other.vocabulary_size}"
            expected = f"{self.vocabulary_size} as in '{self.name}'"
            raise TokenizerMismatchError(describe(where, what, found, expected))
        missing = self.added_tokens.items() - other.added_tokens.items()
        extra = other.added_tokens.items() - self.added_tokens.items()
        if missing or extra:
            parts = [f"{word} {_listed(tokens)}" for word, tokens in (("without", missing), ("with", extra)) if tokens]
            expected = f"the added tokens of '{self.name}'"
            raise TokenizerMismatchError(describe(where, what, " and ".join(parts), expected))
        if self.fingerprint != other.fingerprint:
            found = f"{other.fingerprint} (vocabulary, merges or normalizer differ)"
            raise TokenizerMismatchError(describe(where, what, found, f"{self.fingerprint} as of '{self.name}'"))


def identity_of(tokenizer: object, name: str | None = None) -> TokenizerIdentity:
    """Return the identity of a tokenizer.

    Args:
        tokenizer: a `TokenizerIdentity`, an object with an attribute `identity` that is one, or whatever
            `load_tokenizer` takes: a fast tokenizer of `transformers`, a `tokenizers.Tokenizer`, a path, or a name on
            the Hugging Face hub.
        name: of the tokenizer; by default its own.

    Returns:
        The identity. Computing it takes a fraction of a second.

    Raises:
        TokenizerLoadError: as `load_tokenizer`.
    """
    for identity in (tokenizer, getattr(tokenizer, "identity", None)):
        if isinstance(identity, TokenizerIdentity):
            return identity
    loaded = load_tokenizer(tokenizer)
    return TokenizerIdentity.from_tokenizer_json(loaded.json, name or loaded.name)


def fingerprint_of(tokenizer: Mapping[str, Any], name: str = "tokenizer") -> str:
    """Hash what gives token ids their meaning: model type, vocabulary, merges, added tokens and normalizer.

    The hash does not depend on the order of keys, on merges being written as `"a b"` or as pairs, on added tokens being
    listed in the vocabulary as well, on a normalizer being wrapped in a sequence of one, on the flags of added tokens,
    or on padding, truncation, pre-tokenizer, post-processor and decoder.

    Args:
        tokenizer: the object that a `tokenizer.json` holds (BPE, WordPiece, Unigram or WordLevel).
        name: for messages.

    Returns:
        `"sha256:"` and 64 hexadecimal digits.

    Raises:
        TokenizerLoadError: `tokenizer` is not such an object.
    """
    model = _model(tokenizer, name)
    vocabulary = _vocabulary(model, name)
    added = _added_tokens(tokenizer, name)
    meaning = {
        "model": _model_type(model),
        "vocabulary": sorted({entry[:2] for entry in vocabulary} | {(id_, text) for id_, text, _ in added}),
        "scores": sorted((entry[0], entry[2]) for entry in vocabulary if len(entry) > 2),
        "merges": _merges(model, name),
        "added_tokens": [(id_, text) for id_, text, _ in added],
        "normalizer": list(_normalizer_steps(tokenizer.get("normalizer"), name)) or None,
    }
    canonical = json.dumps(meaning, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _model(tokenizer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    model = tokenizer.get("model")
    if not isinstance(model, Mapping) or "vocab" not in model:
        keys = ", ".join(sorted(map(str, tokenizer))) or "none"
        raise TokenizerLoadError(describe(name, "tokenizer", f"without model.vocab (keys: {keys})", "a tokenizer.json"))
    return model


def _model_type(model: Mapping[str, Any]) -> str:
    """Return the type, which old files do not state."""
    if "type" in model:
        return str(model["type"])
    if "merges" in model:
        return "BPE"
    if isinstance(model["vocab"], list):
        return "Unigram"
    return "WordPiece" if "max_input_chars_per_word" in model else "WordLevel"


def _vocabulary(model: Mapping[str, Any], name: str) -> list[tuple[Any, ...]]:
    """Return (id, text), or (id, text, score) for Unigram, whose ids are indices of its list."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, Mapping) and all(_is_id(id_) for id_ in vocabulary.values()):
        return [(id_, str(text)) for text, id_ in vocabulary.items()]
    if isinstance(vocabulary, list) and all(_is_scored(entry) for entry in vocabulary):
        return [(id_, str(text), float(score)) for id_, (text, score) in enumerate(vocabulary)]
    expected = "an object of texts and ids, or a list of [text, score]"
    raise TokenizerLoadError(describe(name, "model.vocab", _shown(vocabulary), expected))


def _merges(model: Mapping[str, Any], name: str) -> list[list[str]]:
    pairs = []
    for number, merge in enumerate(_list(model, "merges", name)):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(token, str) for token in pair)):
            raise TokenizerLoadError(describe(name, f"model.merges[{number}]", _shown(merge), "two tokens"))
        pairs.append(list(pair))
    return pairs


def _added_tokens(tokenizer: Mapping[str, Any], name: str) -> list[tuple[int, str, bool]]:
    """Return (id, text, whether it is a control token), by id."""
    added = []
    for token in _list(tokenizer, "added_tokens", name):
        if not (isinstance(token, Mapping) and _is_id(token.get("id")) and isinstance(token.get("content"), str)):
            raise TokenizerLoadError(describe(name, "an added token", _shown(token), "an object with id and content"))
        added.append((int(token["id"]), str(token["content"]), bool(token.get("special"))))
    return sorted(added)


def _normalizer_steps(normalizer: object, name: str) -> Iterable[object]:
    """Yield the steps of a normalizer, those of nested sequences one by one."""
    if normalizer is None:
        return
    if isinstance(normalizer, Mapping) and normalizer.get("type") == "Sequence":
        for step in _list(normalizer, "normalizers", name):
            yield from _normalizer_steps(step, name)
    else:
        yield normalizer


def _list(fields: Mapping[str, Any], what: str, name: str) -> list[Any]:
    """Return an optional field that is a list."""
    values = fields.get(what)
    if values is not None and not isinstance(values, list | tuple):
        raise TokenizerLoadError(describe(name, what, _shown(values), "a list"))
    return list(values or ())


def _is_scored(entry: object) -> bool:
    """Return whether `entry` is [text, score]."""
    return isinstance(entry, list | tuple) and len(entry) == 2 and isinstance(entry[1], int | float)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32


def _listed(tokens: Iterable[tuple[str, int]]) -> str:
    by_id = sorted((id_, text) for text, id_ in tokens)
    named = ", ".join(f"{text!r} (id {id_})" for id_, text in by_id[:_NAMED_AT_MOST])
    further = len(by_id) - _NAMED_AT_MOST
    return f"added tokens {named}" + (f" and {further} more" if further > 0 else "")


def _shown(value: object) -> str:
    """Return the text of a value for a message, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
