"""Questions to a source that may never answer: each source has a thread of its own, which keeps no process alive."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Generic, TypeVar

_Question = TypeVar("_Question")
_Answer = TypeVar("_Answer")
_Queue = SimpleQueue[tuple[_Question, Future[_Answer]] | None]


class Asker(Generic[_Question, _Answer]):
    """Puts questions to `answer` one after the other, on a daemon thread that ends with this object.

    Attributes:
        thread: where they are answered.
    """

    def __init__(self, answer: Callable[[_Question], _Answer]) -> None:
        questions: _Queue[_Question, _Answer] = SimpleQueue()
        self._questions = questions
        self.thread = threading.Thread(target=_work, args=(answer, questions), name="rest-store-source", daemon=True)
        self.thread.start()
        self._end = weakref.finalize(self, questions.put, None)
        self._end.atexit = False

    def ask(self, question: _Question) -> Future[_Answer]:
        """Return what will be the answer, or what was raised instead of one."""
        answer: Future[_Answer] = Future()
        self._questions.put((question, answer))
        return answer

    def close(self) -> None:
        """End the thread after the questions that have been asked; may be called again."""
        self._end()


def _work(answer: Callable[[_Question], _Answer], questions: _Queue[_Question, _Answer]) -> None:
    while (asked := questions.get()) is not None:
        question, promised = asked
        try:
            found = answer(question)
        except BaseException as error:
            promised.set_exception(error)
        else:
            promised.set_result(found)
        del asked, question, promised
