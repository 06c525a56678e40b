"""The tokenizer of the target model: documents in, token ids out.

Two rules hold. The text of a special token inside a document is text, not a control token. The
control tokens that a chat template writes around the messages of a conversation are control tokens.

Both rules rest on a copy of the tokenizer whose control tokens have the same ids and other texts,
which no document contains (`build_index/control_marks.py`). In that copy the original texts are
ordinary text, and a rendered conversation uses the new texts for its control tokens.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from build_index.chat_template import ChatTemplate
from build_index.control_marks import CONTROL_MARK, ControlMarks, without_marks
from build_index.conversation_text import ConversationError, ConversationWriter
from build_index.documents import WRITTEN, CorpusCounts, Document, Message
from build_index.fast_encoder import EncoderError, FastEncoder
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import CorpusError, TokenizerLoadError, describe, first_line
from rest_store.loading.encoding_sample import sample_digest

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Tokens: TypeAlias = NDArray[np.unsignedinteger[Any]]
"""Token ids of one document, 1-D.

An id has 2 bytes if the vocabulary has at most 65,535 tokens, otherwise 4.
"""

PIECE_CHARACTERS = 1 << 17  # longer texts are encoded in pieces, split at line ends
# Encoded at once: up to 400 bytes a character, by tokenizers and in the allocator.
BATCH_CHARACTERS = 1 << 19
PROMPT_TOKENS = 16
"""Tokens that an answer has before it; as many as `drafting.output_document` keeps of a prompt."""
_PROMPT_CHARACTERS = 512  # at the end of a prompt, which hold these tokens
_SHOWN = 60  # characters of a text in a message


class TargetTokenizer:
    """The tokenizer of the target model.

    Args:
        tokenizer_json: the text of a `tokenizer.json`, as `tokenizers` writes it.
        name: the user's name or path of the tokenizer.
        chat_template: renders conversations; None: they are refused.

    Attributes:
        identity: the identity of the tokenizer, for manifests.

    Raises:
        TokenizerLoadError: `tokenizer_json` is not a tokenizer.

    Thread-safe, except `accelerate` and `decelerate`. Encoding releases the GIL and uses all cores
    (`TOKENIZERS_PARALLELISM` and `RAYON_NUM_THREADS` limit it). The tokens of a text do not depend
    on its batch. Can be pickled; then it encodes by `tokenizers`.
    """

    def __init__(
        self, tokenizer_json: str, name: str, chat_template: ChatTemplate | None = None
    ) -> None:
        fields = json.loads(tokenizer_json)
        fields["truncation"] = fields["padding"] = None
        if fields["model"].get("dropout") is not None:
            fields["model"]["dropout"] = None
        self._json = (
            json.dumps(fields, ensure_ascii=False, sort_keys=True, separators=(",", ":")) + "\n"
        )
        self.identity = TokenizerIdentity.from_tokenizer_json(self._json, name)
        self._template = chat_template
        self._marks = ControlMarks(self.identity.special_tokens)
        self._marks.mark_tokenizer(fields)
        self._marked_json = json.dumps(fields)
        self._marked = _open(self._marked_json, name)
        self.identity = replace(self.identity, encoding=sample_digest(self._ids))
        self._dtype = np.dtype(np.uint16 if self.identity.vocabulary_size <= 65535 else np.uint32)
        self._writer: ConversationWriter | None = None
        self._fast: FastEncoder | None = None
        self._slow_reason = ""

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to pickle: all but those that encode and show tokens."""
        state = dict(vars(self))
        for name in ("_original", "_marked"):
            state.pop(name, None)
        state["_writer"] = None
        state["_fast"] = None
        return state

    @cached_property
    def _original(self) -> Tokenizer:
        """The tokenizer itself, which only shows tokens."""
        return _open(self._json, self.identity.name)

    @cached_property
    def _marked(self) -> Tokenizer:
        """The copy with marked control tokens, which encodes.

        Made again where this one was pickled.
        """
        return _open(self._marked_json, self.identity.name)

    def _ids(self, text: str) -> list[int]:
        """Return the token ids of a text without texts of control tokens, by `tokenizers`."""
        return list(self._marked.encode(text, add_special_tokens=False).ids)

    def accelerate(self) -> None:
        """Encode by `fastokens` from now on, many times as fast.

        Nothing changes if `fastokens` is absent or refuses the tokenizer. `tokenizers` encodes the
        first texts, too, and samples of the others, so encoding may raise EncoderError.
        """
        try:
            self._fast = FastEncoder(self._marked_json, self.identity.vocabulary_size, self._dtype)
        except EncoderError as error:
            self._slow_reason = str(error)

    def decelerate(self) -> None:
        """Encode by `tokenizers` from now on."""
        self._fast = None
        self._slow_reason = "fastokens gives other tokens"

    @property
    def is_accelerated(self) -> bool:
        """Whether `fastokens` encodes."""
        return self._fast is not None

    @property
    def slow_reason(self) -> str:
        """The reason that `fastokens` does not encode; empty if it does, or nothing has begun."""
        return "" if self.is_accelerated else self._slow_reason

    @property
    def encoder(self) -> str:
        """Name and version of the package that encodes."""
        package = "fastokens" if self.is_accelerated else "tokenizers"
        return f"{package} {version(package)}"

    @property
    def chat_template(self) -> str | None:
        """The Jinja text that renders conversations, or None."""
        return None if self._template is None else self._template.source

    def to_json(self) -> str:
        """Return the `tokenizer.json` for a datastore: the same text for the same tokenizer.

        It has no truncation, padding and BPE dropout, which must not affect a datastore.
        """
        return self._json

    def encode(self, text: str) -> Tokens:
        """Return the tokens of one text; see `encode_documents`."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the tokens of texts; see `encode_documents`."""
        return self.encode_documents([Document(text=text) for text in texts])

    def encode_documents(self, documents: Sequence[Document]) -> list[Tokens]:
        """Tokenize texts and conversations, in any mixture.

        No control token is added to a text. A conversation has those that the chat template writes,
        and each answer as the model wrote it (build_index/conversation_text.py). The text of a
        control token in a text or a message yields none; the two noncharacters that stand for them
        become U+FFFD. A text of more than 2^17 characters is encoded in pieces split at line ends,
        to bound the memory: at these positions tokens may differ from those of the whole.

        Raises:
            CorpusError: there is no chat template, or it refuses a conversation.
            EncoderError: `fastokens` is in use, and failed or is wrong.
        """
        return self._encode_parts([self._parts(document, Counter()) for document in documents])

    def encode_counted(
        self, documents: Sequence[Document], counts: CorpusCounts
    ) -> list[Tokens | None]:
        """Tokenize texts and conversations as `encode_documents` does.

        A conversation that the chat template refuses becomes None.

        Args:
            documents: texts and conversations.
            counts: counts the refusals and the omissions of the template.

        Raises:
            CorpusError: there is no chat template.
            EncoderError: `fastokens` is in use, and failed or is wrong.
        """
        parts: list[tuple[str, ...]] = []
        is_refused = []
        for document in documents:
            try:
                parts.append(self._parts(document, counts.left_out))
                is_refused.append(False)
            except ConversationError as error:
                counts.refuse(str(error))
                is_refused.append(True)
        tokens = iter(self._encode_parts(parts))
        return [None if refused else next(tokens) for refused in is_refused]

    def encode_history(self, messages: Sequence[Message]) -> Tokens:
        """Tokenize a conversation as the chat template shows it: earlier answers as history.

        Raises:
            CorpusError: there is no chat template, or it refuses the conversation.
            EncoderError: `fastokens` is in use, and failed or is wrong.
        """
        history = self._writer_for("").history(messages, "")
        return self._encode_texts([self._marks.unseal(history)])[0]

    def encode_answer(self, document: Document, left_out: Counter[str]) -> tuple[Tokens, Tokens]:
        """Tokenize the whole prompt before the last answer of a conversation, and that answer.

        Args:
            document: a conversation that ends with an answer.
            left_out: counts the omissions of the template.

        Raises:
            CorpusError: there is no chat template.
            ConversationError: it refuses the conversation.
            EncoderError: `fastokens` is in use, and failed or is wrong.
        """
        writer = self._writer_for(document.origin)
        texts = writer.answer(document.messages, document.origin, left_out)
        prompt, answer = self._encode_texts([self._marks.unseal(text) for text in texts])
        return prompt, answer

    def token_text(self, token: int) -> str:
        """Return the text of one token inside a text, a leading space included.

        Incomplete UTF-8 shows as U+FFFD.
        """
        raw = self._original.id_to_token(token)
        if raw is None:
            return f"<{token}>"  # an id between others that has no token
        if raw in self.identity.added_tokens:
            return str(raw)
        # Decoders treat the first token of a text differently, so another one stands before it.
        anchor = self.encode("a").tolist()
        before = str(self._original.decode(anchor, skip_special_tokens=False))
        text = str(self._original.decode([*anchor, token], skip_special_tokens=False))
        return text.removeprefix(before)

    def _parts(self, document: Document, left_out: Counter[str]) -> tuple[str, ...]:
        """Return the text to encode; marked texts stand for the control tokens of the template.

        An answer of a conversation comes after the end of its prompt.
        """
        if not document.is_conversation:
            return (without_marks(document.text),)
        writer = self._writer_for(document.origin)
        if document.kind == WRITTEN:
            prompt, answer = writer.answer(document.messages, document.origin, left_out)
            prompt_end = self._marks.unseal_end(prompt, _PROMPT_CHARACTERS)
            return prompt_end, self._marks.unseal(answer)
        text = writer.written(document.messages, document.origin, left_out)
        return (self._marks.unseal(text),)

    def _encode_parts(self, documents: Sequence[tuple[str, ...]]) -> list[Tokens]:
        """Return the tokens of documents: a text, or the end of a prompt and an answer."""
        tokens = iter(self._encode_texts(list(chain.from_iterable(documents))))
        encoded = []
        for parts in documents:
            if len(parts) == 1:
                encoded.append(next(tokens))
            else:
                prompt = next(tokens)
                answer = next(tokens)
                encoded.append(np.concatenate([prompt[-PROMPT_TOKENS:], answer]))
        return encoded

    def _writer_for(self, origin: str) -> ConversationWriter:
        if self._template is None:
            raise CorpusError(
                f"{origin}: tokenizer '{self.identity.name}' has no chat template; pass"
                " --chat-template FILE"
            )
        if self._writer is None:
            self._writer = ConversationWriter(self._template, self._marks.pattern, self._marks.seal)
        return self._writer

    def _encode_texts(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the tokens of texts in which control tokens are marked."""
        pieces: list[str] = []
        piece_counts = []
        for text in texts:
            split = list(split_text(text))
            pieces += split
            piece_counts.append(len(split))
        piece_tokens: list[Tokens] = []
        for batch in _batches(pieces):
            piece_tokens += self._encode(batch)
        in_order = iter(piece_tokens)
        encoded = []
        for count in piece_counts:
            tokens = list(islice(in_order, count))
            encoded.append(tokens[0] if count == 1 else np.concatenate(tokens))
        return encoded

    def _encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the token ids of each text, in which control tokens are marked."""
        if self._fast is None:
            return self._encode_slowly(texts)
        tokens = self._fast.encode(texts)
        if tokens is None:
            return self._encode_slowly(texts)
        self._check(self._fast, texts, tokens)
        return tokens

    def _check(self, fast: FastEncoder, texts: Sequence[str], tokens: Sequence[Tokens]) -> None:
        """Raise EncoderError if `tokenizers` encodes one of the checked texts otherwise."""
        indices = [index for index, text in enumerate(texts) if fast.is_checked(text)]
        expected = self._encode_slowly([texts[index] for index in indices])
        for index, expected_tokens in zip(indices, expected, strict=True):
            if not np.array_equal(tokens[index], expected_tokens):
                text = texts[index]
                shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
                raise EncoderError(f"other tokens than tokenizers for {shown!r}")

    def _encode_slowly(self, texts: Sequence[str]) -> list[Tokens]:
        encodings = self._marked.encode_batch_fast(texts, add_special_tokens=False) if texts else []
        return [np.array(encoding.ids, dtype=self._dtype) for encoding in encodings]


def _open(tokenizer_json: str, name: str) -> Tokenizer:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # tokenizers raises Exception itself
        problem = f"refused by tokenizers ({first_line(error)})"
        raise TokenizerLoadError(
            describe(name, "tokenizer", problem, "a tokenizer.json")
        ) from error


def split_text(text: str) -> Iterator[str]:
    """Yield the text in pieces of at most PIECE_CHARACTERS, cut after line ends where possible.

    No piece ends within the marked text of a control token, which holds no line end.
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
            batch = []
            size = 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch
