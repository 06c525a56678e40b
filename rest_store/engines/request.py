"""One request of a serving engine: its text, its session, and what the engine verifies for it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.output_document import PROMPT_TOKENS, OutputDocument
from rest_store.drafting.session import DraftSession
from rest_store.errors import describe

Tokens = npt.NDArray[np.int32]
# The model's most likely tokens after each of some positions, [n, k]; -1 ends a row.
Rows = npt.NDArray[np.int32]


class NewRequest(NamedTuple):
    """A request that begins, or comes back after the engine had dropped it.

    Attributes:
        id: the engine's name for it.
        tokens: its text so far.
        prompt: how many of these are prompt; the others are output.
        most: the most tokens of output; None: unknown.
        ends: tokens that end its output.
        references: texts that the output will probably resemble, as token ids or as strings, the
            likeliest last.
        group, epoch: of the document that is remembered, as `LiveDatastore.add` takes them.
    """

    id: str
    tokens: IntSequence
    prompt: int
    most: int | None = None
    ends: Set[int] = frozenset()
    references: Sequence[IntSequence | str] = ()
    group: str = ""
    epoch: int = 0


def extras_of(arguments: object, failed: Callable[[str], None]) -> dict[str, Any]:
    """Return the fields of a `NewRequest` that the extra arguments of a request hold, unchecked.

    Args:
        arguments: an object as JSON has it, or None.
        failed: called with why something is left out.
    """
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        found = f"of the type {type(arguments).__name__}"
        failed(describe("request", "the object of extra arguments", found, "an object"))
        return {}
    labels = {name: arguments[name] for name in ("group", "epoch") if name in arguments}
    return {"references": references_of(arguments.get("prediction"), failed), **labels}


def references_of(prediction: object, failed: Callable[[str], None]) -> list[IntSequence | str]:
    """Return the references that the extra argument `prediction` of a request holds.

    Args:
        prediction: a text or token ids, or a list of these; an object like that of OpenAI's API,
            whose `content` is such a thing; None: there are none.
        failed: called with why it is left out.
    """
    content = prediction.get("content") if isinstance(prediction, Mapping) else prediction
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list | tuple):
        found = f"of the type {type(content).__name__}"
        failed(describe("request", "prediction", found, "a text, token ids, or a list of these"))
        return []
    if all(isinstance(token, int) for token in content):
        return [content]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
    return [text for text in texts if text is not None]  # parts of other types have none


class Chain(NamedTuple):
    """Draft tokens of one path, and the sources of each as a bitmask."""

    tokens: list[int]
    origins: list[int]


class StepRequest(NamedTuple):
    """A request that is to have a draft for its next step.

    Attributes:
        id: of the request.
        tokens: int32[n], what the model has written since the last step, perhaps nothing.
        max_nodes: most draft tokens.
        verified: the chain that the engine verified in the step that wrote `tokens`; None: the
            draft of the last step.
        top_k, node_top_k: what the model found likely, as `DraftSession.accept` takes it.
    """

    id: str
    tokens: Tokens
    max_nodes: int
    verified: Chain | None = None
    top_k: Rows | None = None
    node_top_k: Rows | None = None


class EngineRequest:
    """A request that the engine works on.

    Attributes:
        new: how it began.
        session: None until it is opened, and after an error.
        is_given_up: whether it gets no drafts any more: a token of its text or references is none
            of the model's, or drafting failed for it and not for others.
        drafted: the session's latest draft; None: there is none for the text as it is.
    """

    def __init__(self, new: NewRequest) -> None:
        self.new = new._replace(tokens=())
        self.session: DraftSession | None = None
        self.is_given_up = False
        self.drafted: TokenTree | None = None
        self._text = array("i", np.asarray(new.tokens, np.int32).tobytes())
        self._latest: list[int] = []  # tokens of the last two steps
        self._start = new.prompt  # of what no document has yet

    def __len__(self) -> int:
        """Return the number of tokens of the text."""
        return len(self._text)

    @property
    def text(self) -> Tokens:
        """The text, int32[n], a copy."""
        return np.array(self._text, np.int32)

    def verified(self, step: StepRequest) -> tuple[list[int], list[int]]:
        """Return the sources of each draft token that was verified,
        and which of them the model also wrote.
        """
        written = step.tokens.tolist()
        if step.verified is None:
            if self.drafted is None:
                return [], []
            return np.asarray(self.drafted.origins).tolist(), self.drafted.longest_path(
                written
            ).tolist()
        tokens = step.verified.tokens
        wrong = (
            index
            for index, (token, right) in enumerate(zip(tokens, written, strict=False))
            if token != right
        )
        return step.verified.origins, list(range(next(wrong, min(len(tokens), len(written)))))

    def extend(self, tokens: Tokens) -> None:
        """Append what a step has written."""
        self._text.frombytes(tokens.astype(np.int32).tobytes())
        self._latest = [*self._latest[-1:], tokens.size]

    def document(self) -> OutputDocument | None:
        """Return what the model wrote since the last document.

        None if it is too short to be remembered.

        Engines let steps run that began before a request's end was known. What these wrote is left
        out where the end shows: at the most tokens of output, or at an end token.
        """
        start, most = self._start, self.new.most
        last = len(self._text) if most is None else min(self.new.prompt + most, len(self._text))
        # From here on, an end token is the end.
        unsure = max(start, len(self._text) - sum(self._latest))
        end = next((i + 1 for i in range(unsure, last) if self._text[i] in self.new.ends), last)
        before = self._text[max(0, start - PROMPT_TOKENS) : start]
        document = OutputDocument.of(before, self._text[start:end], self.new.group, self.new.epoch)
        self._start = start if document is None else end
        return document
