"""The tokenizer of the target model, as the builder uses it: documents in, token ids out.

Two rules hold for what is stored. Text of a special token inside a document is text, not a control token. Control
tokens that a chat template writes around the messages of a conversation are control tokens.

Both rest on a copy of the tokenizer whose control tokens have other texts, ones that no document contains (they begin
with a Unicode noncharacter) and the same ids. In that copy the original texts are text like any other, and a rendered
conversation says with the new texts where it means control tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from build_index.chat_template import ChatTemplate
from build_index.documents import Document, Message, well_formed
from build_index.packages import import_package
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import CorpusError, TokenizerLoadError, TokenRangeError, describe

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTROL_MARK = "\U0010ffff"  # noncharacters (Unicode 23.7): never interchanged as text
TEXT_MARK = "\U0010fffe"
PIECE_CHARACTERS = 1 << 17  # longer texts are encoded in pieces, split at line ends
BATCH_CHARACTERS = 1 << 19  # encoded at once: up to 400 bytes a character, by tokenizers and in the allocator

Tokens: TypeAlias = NDArray[np.unsignedinteger[Any]]
"""Token ids of one document: 1-D, 2 bytes each if the vocabulary has at most 65,535 tokens, otherwise 4."""


class TargetTokenizer:
    """The tokenizer of the target model.

    Args:
        tokenizer_json: the text of a `tokenizer.json`.
        name: name or path as the user gave it.
        chat_template: how conversations are rendered; None: they cannot be.

    Attributes:
        identity: what the datastore records of it.

    Raises:
        TokenizerLoadError: `tokenizer_json` is not a tokenizer.

    Thread-safe. Encoding releases the GIL and uses all cores (`TOKENIZERS_PARALLELISM` and `RAYON_NUM_THREADS` limit
    it); the same text gives the same tokens whatever it is batched with.
    """

    def __init__(self, tokenizer_json: str, name: str, chat_template: ChatTemplate | None = None) -> None:
        self._original = _open(tokenizer_json, name)
        self._json = _canonical_json(json.loads(self._original.to_str()))
        self.identity = TokenizerIdentity.from_tokenizer_json(self._json, name)
        self._template = chat_template
        self._dtype = np.dtype(np.uint16 if self.identity.vocabulary_size <= 65535 else np.uint32)
        controls = sorted(text for text in self.identity.special_tokens if text)
        self._control_text = _any_of(controls)
        self._control_places = {text: place for place, text in enumerate(controls)}
        self._documents = self._marked_copy()
        self._documents.encode_special_tokens = True

    @property
    def chat_template(self) -> str | None:
        """The Jinja text that renders conversations, or None."""
        return None if self._template is None else self._template.source

    def to_json(self) -> str:
        """Return the `tokenizer.json` that a datastore keeps: the same text for the same tokenizer.

        Truncation, padding and BPE dropout are taken out of it; they have no place in a datastore.
        """
        return self._json

    def encode(self, text: str) -> Tokens:
        """Return the tokens of one text; see `encode_batch`."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokenize documents. No control token is added, and none results from their text.

        Args:
            texts: any number of texts. One of more than 2^17 characters is encoded in pieces split at line ends, for
                the sake of memory: at such a place the tokens may differ from those of the whole.

        Returns:
            For each text its token ids, 1-D, `uint16` or `uint32`.
        """
        counts = []
        pieces: list[str] = []
        for text in texts:
            before = len(pieces)
            pieces.extend(_pieces(well_formed(text)))
            counts.append(len(pieces) - before)
        arrays = iter(self._encode(self._documents, pieces))
        joined = [[next(arrays) for _ in range(count)] for count in counts]
        return [parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in joined]

    def encode_conversations(self, conversations: Sequence[Document]) -> list[Tokens]:
        """Tokenize conversations, rendered by the chat template.

        The template's control tokens become control tokens; their text inside a message stays text.

        Args:
            conversations: documents with messages.

        Returns:
            For each its token ids, 1-D, `uint16` or `uint32`.

        Raises:
            CorpusError: there is no chat template, or it refuses a conversation.
        """
        rendered = [self._render_marked(document.messages, document.origin) for document in conversations]
        return self._encode(self._conversations, rendered)

    def encode_documents(self, documents: Sequence[Document]) -> list[Tokens]:
        """Tokenize texts and conversations, in any mixture.

        Args:
            documents: any number of documents.

        Returns:
            For each its token ids, 1-D, `uint16` or `uint32`, in the order given.

        Raises:
            CorpusError: see `encode_conversations`.
        """
        texts = iter(self.encode_batch([document.text for document in documents if not document.is_conversation]))
        chats = iter(self.encode_conversations([document for document in documents if document.is_conversation]))
        return [next(chats) if document.is_conversation else next(texts) for document in documents]

    def render(self, messages: Sequence[Message], origin: str = "conversation") -> str:
        """Return a conversation as text, as the model will see it.

        Args:
            messages: pairs of role and content, oldest first.
            origin: where it comes from, for messages.

        Returns:
            The rendered text.

        Raises:
            CorpusError: there is no chat template, or it refuses the conversation.
        """
        if self._template is None:
            found = f"without a chat template in tokenizer '{self.identity.name}'"
            raise CorpusError(describe(origin, "a conversation", found, "one: pass --chat-template FILE"))
        return self._template.render(messages, origin)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens, control tokens included.

        Args:
            tokens: 1-D token ids.

        Returns:
            Their text; bytes that are not complete UTF-8 show as U+FFFD.

        Raises:
            TokenRangeError: an id outside the vocabulary.
        """
        ids = [int(token) for token in tokens]
        for id_ in ids:
            self._require_token(id_)
        return str(self._original.decode(ids, skip_special_tokens=False))

    def token_text(self, token: int) -> str:
        r"""Return the text of one token inside a text, for drawing.

        Args:
            token: a token id.

        Returns:
            Its text, a leading space included; bytes that are not complete UTF-8 as `\xe2`.

        Raises:
            TokenRangeError: the id is outside the vocabulary.
        """
        self._require_token(token)
        raw = self._original.id_to_token(token)
        if raw is None:
            return f"<{token}>"  # an id between others that has no token
        if raw in self.identity.added_tokens:
            return str(raw)
        before = str(self._original.decode(self._anchor, skip_special_tokens=False))
        text = str(self._original.decode([*self._anchor, token], skip_special_tokens=False))
        if text.startswith(before) and "\ufffd" not in text:
            return text[len(before) :]
        if all(character in _BYTE_OF for character in raw):
            return bytes(_BYTE_OF[character] for character in raw).decode("utf-8", "backslashreplace")
        return str(raw)

    @cached_property
    def _anchor(self) -> list[int]:
        """A token to stand before the one that is drawn: decoders treat the first token differently."""
        return [int(token) for token in self.encode("a")]

    @cached_property
    def _conversations(self) -> Tokenizer:
        """The marked copy that finds control tokens; made when the first conversation comes."""
        return self._marked_copy()

    def _marked_copy(self) -> Tokenizer:
        marked = _with_marked_controls(json.loads(self._json), self._control_places)
        return _open(json.dumps(marked), self.identity.name)

    def _render_marked(self, messages: Sequence[Message], origin: str) -> str:
        """Render with the marked texts of control tokens for those that the template writes, and only those."""
        kept: list[str] = []

        def keep(match: re.Match[str]) -> str:
            kept.append(match[0])
            return f"{TEXT_MARK}{len(kept) - 1}{TEXT_MARK}"

        def sealed(content: str) -> str:
            content = well_formed(content)
            if CONTROL_MARK in content or TEXT_MARK in content:
                content = content.replace(CONTROL_MARK, "\ufffd").replace(TEXT_MARK, "\ufffd")
            return self._control_text.sub(keep, content)

        rendered = self.render([(sealed(role), sealed(content)) for role, content in messages], origin)
        rendered = self._control_text.sub(lambda match: _marked(self._control_places[match[0]]), rendered)
        if kept:
            rendered = re.sub(f"{TEXT_MARK}(\\d+){TEXT_MARK}", lambda match: kept[int(match[1])], rendered)
        return rendered

    def _encode(self, tokenizer: Tokenizer, texts: Sequence[str]) -> list[Tokens]:
        arrays: list[Tokens] = []
        for batch in _batches(texts):
            encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            arrays.extend(np.array(encoding.ids, dtype=self._dtype) for encoding in encodings)
        return arrays

    def _require_token(self, token: int) -> None:
        size = self.identity.vocabulary_size
        if not 0 <= token < size:
            raise TokenRangeError(describe(f"tokenizer '{self.identity.name}'", "token id", token, f"0..{size - 1}"))


def _open(tokenizer_json: str, name: str) -> Tokenizer:
    tokenizers = import_package("tokenizers", name, TokenizerLoadError)
    try:
        tokenizer: Tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # tokenizers raises Exception itself
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        found = f"refused by tokenizers ({reason})"
        raise TokenizerLoadError(describe(name, "tokenizer", found, "a tokenizer.json")) from error
    return tokenizer


def _canonical_json(tokenizer: dict[str, Any]) -> str:
    tokenizer["truncation"] = tokenizer["padding"] = None
    if tokenizer["model"].get("dropout") is not None:
        tokenizer["model"]["dropout"] = None
    return json.dumps(tokenizer, ensure_ascii=False, sort_keys=True, separators=(",", ":")) + "\n"


def _any_of(texts: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern that finds any of the texts, the longest where several match, as `tokenizers` does.

    Common beginnings are shared: of a thousand alternatives one by one, `re` would try each at every "<".
    """
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}

    def written(node: dict[str, Any]) -> str:
        branches = [re.escape(character) + written(below) for character, below in node.items() if character]
        if not branches:
            return ""
        return f"(?:{'|'.join(branches)})" + ("?" if "" in node else "")

    return re.compile(written(tree) or r"(?!)")


def _marked(place: int) -> str:
    """Return the text that stands for the control token at a place of the list of them."""
    return f"{CONTROL_MARK}{place}{CONTROL_MARK}"


def _with_marked_controls(tokenizer: dict[str, Any], places: dict[str, int]) -> dict[str, Any]:
    """Give each control token its marked text, everywhere in the object of a `tokenizer.json`."""

    def renamed(text: str) -> str:
        return _marked(places[text]) if text in places else text

    model = tokenizer["model"]
    if isinstance(model["vocab"], list):
        model["vocab"] = [[renamed(text), score] for text, score in model["vocab"]]
    else:
        model["vocab"] = {renamed(text): id_ for text, id_ in model["vocab"].items()}
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = renamed(model["unk_token"])
    if model.get("merges"):
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        # A merge that yields a control token would make one from text.
        model["merges"] = [pair for pair in pairs if not ("".join(pair) in places or places.keys() & set(pair))]
    for token in tokenizer["added_tokens"]:
        if token["special"]:
            # Found before normalization, which could change or drop the marks.
            token["content"], token["normalized"] = renamed(token["content"]), False
    tokenizer["post_processor"] = None
    return tokenizer


def _pieces(text: str) -> Iterator[str]:
    """Yield the text in pieces of at most PIECE_CHARACTERS, cut after a line end where there is one."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        cut = text.rfind("\n", start, start + PIECE_CHARACTERS) + 1
        if cut <= start:
            cut = start + PIECE_CHARACTERS
        yield text[start:cut]
        start = cut
    yield text[start:] if start else text


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def _byte_alphabet() -> dict[str, int]:
    """Return the bytes behind the characters that byte-level BPE writes them as (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update((chr(256 + place), byte) for place, byte in enumerate(others))
    return alphabet


_BYTE_OF = _byte_alphabet()
