"""The tokenizer of the target model: documents in, token ids out.

Two rules hold for what is stored. The text of a special token inside a document is text, not a control token. Control
tokens that a chat template writes around the messages of a conversation are control tokens.

Both rules rest on a copy of the tokenizer whose control tokens have the same ids and other texts, which no document
contains: they begin with a Unicode noncharacter. In that copy the original texts are ordinary text, and a rendered
conversation uses the new texts for its control tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from build_index.chat_template import ChatTemplate
from build_index.documents import Document, Message, well_formed
from build_index.encoder import CHECKED_CHARACTERS, Encoder, Tokens, open_tokenizer
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import CorpusError, TokenRangeError, describe

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTROL_MARK = "\U0010ffff"  # noncharacters (Unicode 23.7), which text for interchange does not contain
TEXT_MARK = "\U0010fffe"
PIECE_CHARACTERS = 1 << 17  # longer texts are encoded in pieces, split at line ends
BATCH_CHARACTERS = 1 << 19  # encoded at once: up to 400 bytes a character, by tokenizers and in the allocator


class TargetTokenizer:
    """The tokenizer of the target model.

    Args:
        tokenizer_json: the text of a `tokenizer.json`.
        name: the user's name or path of the tokenizer.
        chat_template: renders conversations; None: they are refused.

    Attributes:
        identity: what a datastore records of the tokenizer.

    Raises:
        TokenizerLoadError: `tokenizer_json` is not a tokenizer.

    Thread-safe, except `accelerate` and `decelerate`. Encoding releases the GIL and uses all cores
    (`TOKENIZERS_PARALLELISM` and `RAYON_NUM_THREADS` limit it). The tokens of a text do not depend on its batch. Can be
    pickled; then it encodes by `tokenizers`.
    """

    def __init__(self, tokenizer_json: str, name: str, chat_template: ChatTemplate | None = None) -> None:
        self._original = open_tokenizer(tokenizer_json, name)
        self._json = _canonical_json(json.loads(self._original.to_str()))
        self.identity = TokenizerIdentity.from_tokenizer_json(self._json, name)
        self._template = chat_template
        controls = sorted(text for text in self.identity.special_tokens if text)
        longest_first = sorted(controls, key=len, reverse=True)  # as `tokenizers` matches them
        self._control_text = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._control_places = {text: place for place, text in enumerate(controls)}
        self._is_accelerated = False
        self._checked_characters = CHECKED_CHARACTERS
        self._documents = self._marked_copy(splits_special_tokens=True)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: what takes long to derive, without what encodes and decodes."""
        derived = {name: value for name, value in vars(self).items() if name not in ("_original", "_conversations")}
        return {**derived, "_is_accelerated": False}

    def accelerate(self, checked_characters: int = CHECKED_CHARACTERS) -> bool:
        """Encode by `fastokens` from now on, if it is installed and knows this tokenizer; return whether.

        Encoding may then raise EncoderError.

        Args:
            checked_characters: how many `tokenizers` encodes, too, before it takes samples.
        """
        self._checked_characters = checked_characters
        self._is_accelerated = self._documents.accelerate(checked_characters)
        self.__dict__.pop("_conversations", None)
        return self._is_accelerated

    def decelerate(self) -> None:
        """Encode by `tokenizers` from now on."""
        self._is_accelerated = False
        self._documents.decelerate()
        self.__dict__.pop("_conversations", None)

    @property
    def is_accelerated(self) -> bool:
        """Whether `fastokens` encodes."""
        return self._is_accelerated

    @property
    def encoder(self) -> str:
        """Name and version of the package that encodes."""
        return self._documents.program

    @property
    def chat_template(self) -> str | None:
        """The Jinja text that renders conversations, or None."""
        return None if self._template is None else self._template.source

    def to_json(self) -> str:
        """Return the `tokenizer.json` that a datastore keeps: the same text for the same tokenizer.

        It has no truncation, padding and BPE dropout, which must not affect a datastore.
        """
        return self._json

    def encode(self, text: str) -> Tokens:
        """Return the tokens of one text; see `encode_batch`."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokenize texts. No control token is added, and their text yields none.

        A text of more than 2^17 characters is encoded in pieces split at line ends, to bound the memory: at these
        places the tokens may differ from those of the whole.
        """
        return self._encode(self._documents, [well_formed(text) for text in texts])

    def encode_conversations(self, conversations: Sequence[Document]) -> list[Tokens]:
        """Tokenize conversations, rendered by the chat template.

        The template's control tokens become control tokens; their text inside a message stays text. A long conversation
        is encoded in pieces, as a long text is.

        Raises:
            CorpusError: there is no chat template, or it refuses a conversation.
        """
        rendered = [self._render_marked(document.messages, document.origin) for document in conversations]
        return self._encode(self._conversations, rendered)

    def encode_documents(self, documents: Sequence[Document]) -> list[Tokens]:
        """Tokenize texts and conversations, in any mixture.

        Raises:
            CorpusError: see `encode_conversations`.
        """
        texts = iter(self.encode_batch([document.text for document in documents if not document.is_conversation]))
        chats = iter(self.encode_conversations([document for document in documents if document.is_conversation]))
        return [next(chats) if document.is_conversation else next(texts) for document in documents]

    def render(self, messages: Sequence[Message], origin: str = "conversation") -> str:
        """Return the text of a conversation as the model will see it.

        Args:
            messages: pairs of role and content, oldest first.
            origin: source of the conversation, for error messages.

        Raises:
            CorpusError: there is no chat template, or it refuses the conversation.
        """
        if self._template is None:
            what = f"the chat template of tokenizer '{self.identity.name}'"
            raise CorpusError(describe(origin, what, "absent", "one for conversations: pass --chat-template FILE"))
        return self._template.render(messages, origin)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens, control tokens included; incomplete UTF-8 shows as U+FFFD.

        Raises:
            TokenRangeError: an id outside the vocabulary.
        """
        return str(self._original.decode([self._valid(token) for token in tokens], skip_special_tokens=False))

    def token_text(self, token: int) -> str:
        r"""Return the text of one token inside a text, a leading space included; incomplete UTF-8 as `\xe2`.

        Raises:
            TokenRangeError: the id is outside the vocabulary.
        """
        raw = self._original.id_to_token(self._valid(token))
        if raw is None:
            return f"<{token}>"  # an id between others that has no token
        if raw in self.identity.added_tokens:
            return str(raw)
        # Decoders treat the first token of a text differently, so another one stands before it.
        anchor = self.encode("a").tolist()
        before = str(self._original.decode(anchor, skip_special_tokens=False))
        text = str(self._original.decode([*anchor, token], skip_special_tokens=False))
        if text.startswith(before) and "\ufffd" not in text:
            return text[len(before) :]
        if all(character in _BYTE_OF for character in raw):
            return bytes(_BYTE_OF[character] for character in raw).decode("utf-8", "backslashreplace")
        return str(raw)

    @cached_property
    def _original(self) -> Tokenizer:
        """The tokenizer itself, which decodes; made again where this one was pickled."""
        return open_tokenizer(self._json, self.identity.name)

    @cached_property
    def _conversations(self) -> Encoder:
        """The marked copy that recognizes control tokens; made for the first conversation."""
        encoder = self._marked_copy(splits_special_tokens=False)
        if self._is_accelerated:
            encoder.accelerate(self._checked_characters)
        return encoder

    def _marked_copy(self, *, splits_special_tokens: bool) -> Encoder:
        marked = json.dumps(_with_marked_controls(json.loads(self._json), self._control_places))
        size = self.identity.vocabulary_size
        return Encoder(marked, self.identity.name, splits_special_tokens=splits_special_tokens, vocabulary_size=size)

    def _render_marked(self, messages: Sequence[Message], origin: str) -> str:
        """Render with marked texts for the control tokens that the template writes, and only for those."""
        plain_texts: list[str] = []  # texts of control tokens inside messages

        def replaced(match: re.Match[str]) -> str:
            plain_texts.append(match[0])
            return f"{TEXT_MARK}{len(plain_texts) - 1}{TEXT_MARK}"

        def sealed(content: str) -> str:
            content = well_formed(content).replace(CONTROL_MARK, "\ufffd").replace(TEXT_MARK, "\ufffd")
            return self._control_text.sub(replaced, content)

        rendered = self.render([(sealed(role), sealed(content)) for role, content in messages], origin)
        rendered = self._control_text.sub(lambda match: marked_text(self._control_places[match[0]]), rendered)
        return re.sub(f"{TEXT_MARK}(\\d+){TEXT_MARK}", lambda match: plain_texts[int(match[1])], rendered)

    def _encode(self, encoder: Encoder, texts: Sequence[str]) -> list[Tokens]:
        pieces = [list(split_text(text)) for text in texts]
        arrays: list[Tokens] = []
        for batch in _batches([piece for parts in pieces for piece in parts]):
            arrays += encoder.encode(batch)
        in_order = iter(arrays)
        encoded = [list(islice(in_order, len(parts))) for parts in pieces]
        return [parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in encoded]

    def _valid(self, token: int) -> int:
        size = self.identity.vocabulary_size
        if not 0 <= token < size:
            raise TokenRangeError(describe(f"tokenizer '{self.identity.name}'", "token id", token, f"0..{size - 1}"))
        return int(token)


def _canonical_json(tokenizer: dict[str, Any]) -> str:
    tokenizer["truncation"] = tokenizer["padding"] = None
    if tokenizer["model"].get("dropout") is not None:
        tokenizer["model"]["dropout"] = None
    return json.dumps(tokenizer, ensure_ascii=False, sort_keys=True, separators=(",", ":")) + "\n"


def marked_text(place: int) -> str:
    """Return the text that stands for a control token, by its place among the sorted ones."""
    return f"{CONTROL_MARK}{place}{CONTROL_MARK}"


def _with_marked_controls(tokenizer: dict[str, Any], places: dict[str, int]) -> dict[str, Any]:
    """Give each control token its marked text, everywhere in the object of a `tokenizer.json`."""

    def renamed(text: str) -> str:
        return marked_text(places[text]) if text in places else text

    model = tokenizer["model"]
    if isinstance(model["vocab"], list):
        model["vocab"] = [[renamed(text), score] for text, score in model["vocab"]]
    else:
        model["vocab"] = {renamed(text): id_ for text, id_ in model["vocab"].items()}
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = renamed(model["unk_token"])
    if model.get("merges"):
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        # A merge that yields a control token would make one out of text.
        model["merges"] = [pair for pair in pairs if not ("".join(pair) in places or places.keys() & set(pair))]
    for token in tokenizer["added_tokens"]:
        if token["special"]:
            # Matched before normalization, which could change or drop the marks.
            token["content"], token["normalized"] = renamed(token["content"]), False
    tokenizer["post_processor"] = None
    return tokenizer


def split_text(text: str) -> Iterator[str]:
    """Yield the text in pieces of at most PIECE_CHARACTERS, cut after a line end where there is one.

    No piece ends within a marked text (`marked_text`), which holds no line end.
    """
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        cut = text.rfind("\n", start, start + PIECE_CHARACTERS) + 1
        if cut <= start:
            cut = start + PIECE_CHARACTERS
            if text.count(CONTROL_MARK, start, cut) % 2:
                cut = max(text.rfind(CONTROL_MARK, start, cut), start + 1)
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
    """Return the byte for each character of byte-level BPE (GPT-2's `bytes_to_unicode`, inverted)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
