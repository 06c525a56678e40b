"""The texts of a conversation that a model wrote, or that it read, as documents of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from build_index.documents import READ, WRITTEN, Document, Message

TEXTS = ("all", WRITTEN, READ)
"""The texts of a corpus to read: whole documents, or parts of conversations alone."""
_MAX_SHOWN = 4096  # characters of a message before an answer; the last ones are kept
_MAX_BEFORE = 8  # messages between the question and the answer that are shown


def select_texts(document: Document, texts: str) -> Iterator[Document]:
    """Yield the documents that a document is read as.

    Args:
        document: a text, or a conversation.
        texts: one of `TEXTS`. A text that is no conversation counts as read by a model.
    """
    if texts == "all":
        yield document
    elif texts == WRITTEN:
        yield from written(document)
    else:
        yield from read(document)


def written(document: Document) -> Iterator[Document]:
    """Yield the answers of a conversation.

    An answer comes with messages before it, so that the chat template shows it as the model wrote
    it: the system's, the last one of a user, and those right before the answer, all shortened.
    """
    order = document.order
    messages = document.messages
    question = -1
    for index, message in enumerate(messages):
        if message[0] == "user":
            question = index
        if message[0] != "assistant":
            continue
        if _has_content(message):
            before = _before(messages, index, question)
            yield replace(document, messages=(*before, message), order=order, kind=WRITTEN)
        order += 1


def read(document: Document) -> Iterator[Document]:
    """Yield the texts of a conversation that no answer is, or the document if it is none.

    The order of a text is that of the answer after it.
    """
    if not document.is_conversation:
        yield replace(document, kind=READ)
        return
    order = document.order
    for role, content, *_ in document.messages:
        if role == "assistant":
            order += 1
        elif content and not content.isspace():
            yield replace(document, text=content, messages=(), order=order, kind=READ)


def _before(messages: tuple[Message, ...], index: int, question: int) -> Iterator[Message]:
    """Yield the messages that stand before the answer `index`."""
    begin = max(question + 1, index - _MAX_BEFORE)
    while begin < index and messages[begin][0] == "tool":
        begin += 1  # a result without its call, which templates refuse
    if begin == index and question < index - 1:
        begin = _call_before(messages, index)
    if messages[0][0] == "system" and question != 0 and begin > 0:
        yield _shortened(messages[0])
    if 0 <= question < begin:
        yield _shortened(messages[question])
    for message in messages[max(begin, 0) : index]:
        yield _shortened(message)


def _call_before(messages: tuple[Message, ...], index: int) -> int:
    """Return where the answer stands whose calls the results before `index` are of."""
    for before in range(index - 1, -1, -1):
        if messages[before][0] == "assistant":
            return before
    return index


def _shortened(message: Message) -> Message:
    """Return a message with the end of its content; calls and reasoning stay as they are."""
    role, content, *more = message
    return (role, content[-_MAX_SHOWN:], *more)


def _has_content(message: Message) -> bool:
    _, content, *more = message
    if content and not content.isspace():
        return True
    fields = json.loads(more[0]) if more else {}
    return bool(fields.get("tool_calls") or fields.get("reasoning_content"))
