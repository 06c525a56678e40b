"""`rest-store try --transcripts`: the worth of an agent's memory, by replays of transcripts.

Conversations are replayed in the order of their files. While one is replayed, the memory holds
those before it. A conversation that repeats an earlier one, as the log of each request of an agent
does, is replayed from its first new answer on.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from build_index.conversation_text import ConversationError
from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.documents import READ, WRITTEN, CorpusCounts, Document
from build_index.duplicates import content_digest
from build_index.target_tokenizer import TargetTokenizer
from build_index.texts import read, written
from rest_store.bench.recorded_history import new_live_datastore
from rest_store.bench.recordings import Recording
from rest_store.bench.replay import Outcome, Tokens, replay
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.render import counted
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup
from rest_store.errors import DataFileError, describe

MAX_ANSWERS = 200  # that are replayed: the last ones
SAME = 0.05  # of M
CORPUS = "corpus"
_MEANINGS = {
    WRITTEN: "the answers of earlier conversations",
    READ: "the other texts of earlier conversations",
    CORPUS: "the text of --corpus",
}


@dataclass
class Conversation:
    """A conversation that has answers of its own.

    Attributes:
        name: of its session, or the place that it was read from.
        answers: the messages up to each new answer.
        remembered: the documents that the memory keeps of it, by kind.
    """

    name: str
    answers: list[Document] = field(default_factory=list)
    remembered: dict[str, list[Document]] = field(default_factory=lambda: {WRITTEN: [], READ: []})


def conversations_in(path: str, counts: CorpusCounts) -> list[Conversation]:
    """Read the conversations of a file or a directory that have new answers, in order.

    Args:
        path: of transcripts.
        counts: counts the texts that are read, and those that are left out.

    Raises:
        CorpusError: as `open_corpus`, or a file that is named cannot be read.
        DataFileError: there is no answer.
    """
    corpus = open_corpus(CorpusSpec(path))
    files = sorted(corpus.files(counts), key=lambda file: (_time(file.path), file.path))
    conversations = []
    known: set[bytes] = set()
    for file in files:
        with closing(corpus.documents(file, counts)) as documents:
            for document in documents:
                one = _new_in(document, known)
                if one is not None:
                    conversations.append(one)
    if not conversations:
        expected = "at least one: docs/reference/transcripts.md lists the formats"
        raise DataFileError(describe(path, "number of answers in transcripts", 0, expected))
    return conversations


def _time(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - of one of many files
    except OSError:
        return 0


def _new_in(document: Document, known: set[bytes]) -> Conversation | None:
    """Return the new turns of a conversation; None: there are none, or it is no conversation."""
    if not document.is_conversation:
        return None
    conversation = Conversation(document.session or document.origin)
    place = 0
    for answer in written(document):
        # The whole messages up to the answer, which `written` shortens.
        place = document.messages.index(answer.messages[-1], place) + 1
        if _is_new(answer, known):
            conversation.remembered[WRITTEN].append(answer)
            conversation.answers.append(
                Document(messages=document.messages[:place], origin=document.origin)
            )
    if not conversation.answers:
        return None
    for text in read(document):
        if _is_new(text, known):
            conversation.remembered[READ].append(text)
    return conversation


def _is_new(document: Document, known: set[bytes]) -> bool:
    digest = content_digest(document)
    is_new = digest not in known
    known.add(digest)
    return is_new


@dataclass(frozen=True)
class TranscriptTrial:
    """The figures of replays of transcripts.

    Attributes:
        conversations: number of conversations.
        answers: number of answers that were replayed.
        alone: the outcome of prompt lookup alone.
        together: that of all sources.
        without: by the name of each source, that of all others.
    """

    conversations: int
    answers: int
    alone: Outcome
    together: Outcome
    without: Mapping[str, Outcome]

    def verdict(self) -> str:
        """Return the verdict, a sentence for each source."""
        together = self.together.mean_accepted
        sentences = [
            f"In replays of {counted(self.answers, 'answer')}, M is {together:.2f} with all sources"
            f" and {self.alone.mean_accepted:.2f} with prompt lookup alone"
        ]
        for name, outcome in self.without.items():
            without = outcome.mean_accepted
            figures = f"M is {together:.2f} with it and {without:.2f} without"
            effect = f"brought nothing: {figures}"
            if together >= without + SAME:
                effect = f"raised M from {without:.2f} to {together:.2f}"
            elif together <= without - SAME:
                effect = f"did harm: {figures}"
            sentences.append(f"{name}, {_MEANINGS[name]}, {effect}")
        if self.conversations == 1:
            sentences.append("There is one conversation: memory helps from the second one on")
        return ". ".join(sentences) + "."

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """The outcomes by the sources that they are of."""
        without = {f"without {name}": outcome for name, outcome in self.without.items()}
        return {"prompt lookup alone": self.alone, "all sources": self.together, **without}

    def as_json(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "verdict": self.verdict(),
            "conversations": self.conversations,
            "answers": self.answers,
            "outcomes": {name: outcome.as_json() for name, outcome in self.outcomes.items()},
        }


def try_transcripts(
    conversations: Sequence[Conversation],
    target: TargetTokenizer,
    corpus: Datastore | None,
    *,
    max_nodes: int,
    progress: Callable[[str], object] = lambda line: None,
) -> TranscriptTrial:
    """Replay the last answers of conversations with an agent's memory of those before.

    Args:
        conversations: as `conversations_in` returns them.
        target: the tokenizer of the target model, with its chat template.
        corpus: a further source; None: there is none.
        max_nodes: budget of a step.
        progress: called with lines for people.

    Raises:
        CorpusError: there is no chat template.
        DataFileError: the template shows none of the answers.
    """
    skipped = _first_replayed(conversations)
    outcomes: list[list[Outcome]] = []
    answers = 0
    calibration = Calibration.default()
    with ExitStack() as stack:
        kinds: dict[str, Any] = {
            kind: stack.enter_context(new_live_datastore(target.identity))
            for kind in (WRITTEN, READ)
        }
        sources: dict[str, object] = {}
        if len(conversations) > 1:
            sources |= kinds
        if corpus is not None:
            sources[CORPUS] = corpus
        for number, conversation in enumerate(conversations):
            recordings = list(_recordings(conversation, target, skipped[number]))
            answers += len(recordings)
            own = [[], [*sources.values()], *map(partial(_all_but, sources), sources)]
            conversation_outcomes = []
            for some in own:
                with_lookup = [PromptLookup(), *some]
                conversation_outcomes.append(
                    replay(recordings, with_lookup, calibration.copy(), max_nodes=max_nodes)
                )
            outcomes.append(conversation_outcomes)
            for kind, live in kinds.items():
                encoded = target.encode_counted(conversation.remembered[kind], CorpusCounts())
                live.add([tokens for tokens in encoded if tokens is not None and len(tokens)])
            progress(f"{number + 1} of {counted(len(conversations), 'conversation')}")
    if not answers:
        expected = "at least one that the chat template shows"
        raise DataFileError(describe("transcripts", "number of answers", 0, expected))
    alone, together, *without = map(Outcome.from_outcomes, zip(*outcomes, strict=True))
    return TranscriptTrial(
        len(conversations), answers, alone, together, dict(zip(sources, without, strict=True))
    )


def _first_replayed(conversations: Sequence[Conversation]) -> dict[int, int]:
    """Return how many answers of each conversation are not replayed, those that have some."""
    left = MAX_ANSWERS
    skipped = {}
    for number in range(len(conversations) - 1, -1, -1):
        size = len(conversations[number].answers)
        taken = 0 if number == 0 and len(conversations) > 1 else min(size, left)
        left -= taken
        skipped[number] = size - taken
    return skipped


def _all_but(sources: Mapping[str, object], name: str) -> list[object]:
    return [source for other, source in sources.items() if other != name]


def _recordings(
    conversation: Conversation, target: TargetTokenizer, skipped: int
) -> Iterator[Recording]:
    """Yield the answers after the first `skipped` ones as the target model would have them."""
    none = np.zeros((0, 0), np.int32)
    for answer in conversation.answers[skipped:]:
        try:
            prompt, output = target.encode_answer(answer, Counter())
        except ConversationError:
            continue
        if output.size:
            yield Recording("all", 9, _ids(prompt), _ids(output), none, conversation.name)


def _ids(tokens: Any) -> Tokens:
    return np.asarray(tokens, np.int32)
