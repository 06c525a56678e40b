"""One request of a serving engine: its text, its session and its draft."""

from __future__ import annotations

import reprlib
from array import array
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.draft_options import TopK
from rest_store.drafting.grammar import Grammar
from rest_store.drafting.output_document import PROMPT_TOKENS, OutputDocument
from rest_store.drafting.session import DraftSession
from rest_store.engines.engine_sources import RequestSources
from rest_store.engines.prediction import Prediction
from rest_store.errors import describe

Tokens: TypeAlias = npt.NDArray[np.int32]
NO_TREE = TokenTree([], [], [], scores=[], origins=[])


class NewRequest(NamedTuple):
    """A request that begins, or comes back after the engine had dropped it.

    Attributes:
        id: the engine's name for it.
        tokens: its text so far.
        prompt_length: tokens of the prompt; the others are output.
        max_tokens: the most tokens of output; None: unknown.
        ends: tokens that end its output.
        references: texts that the output will probably resemble, as token ids or as strings, the
            likeliest last.
        group: of the document that is remembered, as `LiveDatastore.add` takes it.
        epoch: the same.
        grammar: that the output follows; None: none that is known here.
        drafts: whether it gets drafts.
        namespace: that it chooses among those of the settings; None: the engine's own.
        datastores: names of those that it chooses among those of the settings; None: all.
        adapter: name of the LoRA adapter that writes it; "": the model alone.
        placeholders: indices of tokens of the prompt that are no text, such as those of an image.
            Nothing is drafted from them.
    """

    id: str
    tokens: IntSequence
    prompt_length: int
    max_tokens: int | None = None
    ends: Set[int] = frozenset()
    references: Sequence[IntSequence | str] = ()
    group: str = ""
    epoch: int = 0
    grammar: Grammar | None = None
    drafts: bool = True
    namespace: object = None
    datastores: object = None
    adapter: str = ""
    placeholders: Sequence[int] | npt.NDArray[np.integer[Any]] = ()


def parse_extra_arguments(arguments: object, report: Callable[[str], None]) -> dict[str, Any]:
    """Return the fields of a `NewRequest` that the extra arguments of a request hold, unchecked.

    Args:
        arguments: an object as JSON has it, or None.
        report: called with the reason if an argument is left out.
    """
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        report(
            f"request: the extra arguments are of the type {type(arguments).__name__}, expected an"
            " object"
        )
        return {}
    fields: dict[str, Any] = {"references": parse_prediction(arguments.get("prediction"), report)}
    for name in ("group", "epoch", "namespace", "datastores"):
        if arguments.get(name) is not None:
            fields[name] = arguments[name]
    if not wants_drafts(arguments, report):
        fields["drafts"] = False
    return fields


def wants_drafts(arguments: object, report: Callable[[str], object]) -> bool:
    """Return whether a request gets drafts, by the extra argument `drafts`; true if it is absent.

    Some engines pass true and false on as 1 and 0.

    Args:
        arguments: as in `parse_extra_arguments`.
        report: called with the reason if the argument is left out.
    """
    value = arguments.get("drafts") if isinstance(arguments, Mapping) else None
    if value is None:
        return True
    if isinstance(value, bool | int | float) and value in (0, 1):
        return bool(value)
    report(describe("request", "drafts", reprlib.repr(value), "true or false"))
    return True


def parse_prediction(prediction: object, report: Callable[[str], None]) -> list[IntSequence | str]:
    """Return the references that the extra argument `prediction` of a request holds.

    Args:
        prediction: a text or token ids, or a list of these; an object with such a `content`, as in
            OpenAI's API; None: there are no references.
        report: called with the reason if the argument is left out.
    """
    content = prediction.get("content") if isinstance(prediction, Mapping) else prediction
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list | tuple):
        report(
            f"request: prediction is of the type {type(content).__name__}, expected a text, token"
            " ids, or a list of these"
        )
        return []
    if all(isinstance(token, int) for token in content):
        return [content]
    references = []
    for piece in content:
        text = piece.get("text") if isinstance(piece, Mapping) else piece
        if text is not None:  # pieces of other types than text have none
            references.append(text)
    return references


class StepRequest(NamedTuple):
    """A request in one step: the tokens of the last step, and the wanted draft.

    Attributes:
        id: of the request.
        tokens: int32[n], the tokens that the model has written since the last step, perhaps none.
        max_nodes: most draft tokens.
        verified: the draft that the engine verified in the step that wrote `tokens`; None: the
            latest draft of the session.
        top_k: the model's most likely tokens, as `DraftSession.accept` takes them.
        node_top_k: likewise.
        under_way: int32[n], the draft that the engine verifies meanwhile, if the wanted draft is to
            be one for each of its outcomes; None: the text is known.
    """

    id: str
    tokens: Tokens
    max_nodes: int
    verified: TokenTree | None = None
    top_k: TopK | None = None
    node_top_k: TopK | None = None
    under_way: Tokens | None = None


class Acceptance(NamedTuple):
    """The drafts of one request, since it came back if the engine had put it off.

    Attributes:
        tokens: that it has written.
        steps: that have written tokens.
        draft_tokens: draft tokens that were verified.
        accepted_tokens: draft tokens that the model also produced.
        prediction: the text that was expected, with the draft tokens from it; None: there was none.
    """

    tokens: int
    steps: int
    draft_tokens: int
    accepted_tokens: int
    prediction: Prediction | None = None


class EngineRequest:
    """A request that the engine works on.

    Args:
        new: how it began.
        sources: of its session.
        prediction: the text that is expected in its output; None: none was named.

    Attributes:
        new: how it began, without its text.
        prompt_length: tokens of the prompt that are text.
        session: None until it is opened, and after an error.
        is_given_up: whether it gets no drafts any more: its text or references hold a token that
            the model does not have, or drafting failed for it and not for others.
        drafted: the session's latest draft; None: there is none for the text as it is.
        sources: as above.
    """

    def __init__(
        self, new: NewRequest, sources: RequestSources, prediction: Prediction | None = None
    ) -> None:
        self.new = new._replace(tokens=())
        self.sources = sources
        self._prediction = prediction
        self.session: DraftSession | None = None
        self.is_given_up = False
        self.drafted: TokenTree | None = None
        self._written = 0
        self._steps = 0
        self._draft_tokens = 0
        self._accepted_tokens = 0
        # By origins of the session, those of the engine.
        self._origins: dict[int, int] = {}
        placeholders = np.unique(np.asarray(new.placeholders, np.int64))
        self._placeholder_count = placeholders.size
        tokens = np.delete(np.asarray(new.tokens, np.int32), placeholders)
        self.prompt_length = new.prompt_length - self._placeholder_count
        self._text = array("i", tokens.tobytes())
        self._latest_sizes: list[int] = []  # tokens of the last two steps
        self._document_start = self.prompt_length  # of the next document

    def __len__(self) -> int:
        """Return the number of tokens that the engine has, placeholders among them."""
        return self._placeholder_count + len(self._text)

    @property
    def text(self) -> Tokens:
        """The text without placeholders, int32[n], a copy."""
        return np.array(self._text, np.int32)

    @property
    def acceptance(self) -> Acceptance:
        """The drafts so far. Engines may write beyond the most tokens, and drop the rest."""
        most = self.new.max_tokens
        return Acceptance(
            self._written if most is None else min(self._written, most),
            self._steps,
            self._draft_tokens,
            self._accepted_tokens,
            self._prediction,
        )

    def count_step(self, step: StepRequest) -> tuple[list[int], list[int]]:
        """Count the accepted and rejected tokens of the draft that a step has verified.

        Returns:
            The origins of each draft token among the engine's sources, and the indices of the
            accepted ones.
        """
        self._steps += 1
        self._written += step.tokens.size
        tree = self.drafted if step.verified is None else step.verified
        if tree is None or not len(tree):
            return [], []
        path = tree.longest_path(step.tokens.tolist()).tolist()
        origins = [self._to_engine_origins(mask) for mask in np.asarray(tree.origins).tolist()]
        self._draft_tokens += len(tree)
        self._accepted_tokens += len(path)
        if self._prediction is not None:
            self._prediction.count(self._text[-2:].tolist(), tree, origins, path)
        return origins, path

    def _to_engine_origins(self, origins: int) -> int:
        """Return origins of the session as those of the engine, which may have more sources."""
        if origins not in self._origins:
            places = enumerate(self.sources.places)
            self._origins[origins] = sum(1 << to for bit, to in places if origins >> bit & 1)
        return self._origins[origins]

    def extend(self, tokens: Tokens) -> None:
        """Append the tokens of a step."""
        self._text.frombytes(tokens.astype(np.int32).tobytes())
        self._latest_sizes = [*self._latest_sizes[-1:], tokens.size]

    def document(self) -> OutputDocument | None:
        """Return the output since the last document; None if it is too short to be remembered.

        Engines let steps run that began before a request's end was known. The tokens of these steps
        are left out where the end shows: at the most tokens of output, or at an end token.
        """
        start = self._document_start
        last = len(self._text)
        if self.new.max_tokens is not None:
            last = min(last, self.prompt_length + self.new.max_tokens)
        end = last
        # An end token in the last two steps is the end.
        for index in range(max(start, len(self._text) - sum(self._latest_sizes)), last):
            if self._text[index] in self.new.ends:
                end = index + 1
                break
        before = self._text[max(0, start - PROMPT_TOKENS) : start]
        document = OutputDocument.from_output(
            before, self._text[start:end], self.new.group, self.new.epoch
        )
        if document is not None:
            self._document_start = end
        return document
