"""Streams: `model.generate` runs in a thread of its own, in turns with the reader of its pieces.

The loop runs inside of `model.generate`, so wrappers of that call hold for each pass: hooks,
adapters and prompts of PEFT, a context of its own. A pass runs only while the reader waits for it,
as if it ran in the reader's thread.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from rest_store.errors import NotSupportedError, describe
from rest_store.generation.loop import Generation
from rest_store.generation.output import Piece, Statistics

# Runs a generation inside of `model.generate`, and returns its result.
Drive = Callable[[Generation], Any]
_MAX_SECONDS = 5.0  # that dropping a stream waits until its thread has left `model.generate`


class Stream:
    """A generation to iterate over, once: each item is the `Piece` that one forward pass wrote.

    Iterating again continues where the last iteration stopped. Read by one thread at a time. A
    context manager; `close` ends the generation. The end of the text and an error close it too.
    The settings of torch in the thread that made it (autocast, inference mode, default device, CUDA
    stream) hold for all passes.

    The caller's cache is empty meanwhile, and filled on closing. If a stream is dropped without
    being closed, the cache stays empty: by the time Python notices, it may be in use again.

    Args:
        generate: calls `model.generate` with a custom loop that gives a `Generation` to the
            function passed to `generate`, and returns its result.
        name: of the model, for messages.

    Raises:
        NotSupportedError: `generate` did not run its loop. Any other error of `generate` from
            before the first forward pass.
    """

    def __init__(self, generate: Callable[[Drive], Any], name: str) -> None:
        self._worker = _Worker(generate)
        self._worker.resume(begins=True)
        if self._worker.generation is None:
            raise loop_not_run(name)

    @property
    def _generation(self) -> Generation:
        assert self._worker.generation is not None  # else there would be no stream
        return self._worker.generation

    @property
    def statistics(self) -> Statistics:
        """Of the generation; up to date after each piece."""
        return self._generation.statistics

    @property
    def tokens(self) -> list[list[int]]:
        """The tokens generated so far, for each row, without prompt and padding."""
        return self._generation.tokens

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        """Run the next forward pass."""
        piece = self._worker.resume()
        if piece is None:
            raise StopIteration
        return piece

    def result(self) -> Any:
        """Run to the end, and return the result of `model.generate`.

        After `close` or an error: the tokens that were written before.
        """
        for _ in self:
            pass
        return self._generation.result() if self._worker.failed else self._worker.result

    def close(self) -> None:
        """End the generation here; the caller's cache then holds the text so far."""
        self._worker.stop()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if (worker := vars(self).get("_worker")) is not None:
            worker.drop()


def loop_not_run(name: str) -> NotSupportedError:
    """Return the error for a model whose `generate` ran no custom loop."""
    actual = "one that did not call its argument custom_generate"
    expected = "that of transformers, or one that calls it"
    return NotSupportedError(describe(name, "generate", actual, expected))


class _Worker(threading.Thread):
    """The thread in which `model.generate` runs.

    Attributes:
        generation: the latest one that its loop began; None: there is none yet.
        result: of `model.generate`, at the end.
        failed: whether that raised an error.
    """

    def __init__(self, generate: Callable[[Drive], Any]) -> None:
        super().__init__(name="rest-store stream", daemon=True)
        self.generation: Generation | None = None
        self.result: Any = None
        self.failed = False
        self._generate: Callable[[Drive], Any] | None = generate
        self._context = contextvars.copy_context()
        self._settings = ThreadSettings()
        self._readers_turn = threading.Semaphore(0)
        self._own_turn = threading.Semaphore(0)
        self._piece: Piece | None = None
        self._error: BaseException | None = None
        self._closing = self._ended = False

    # --- the reader's side ------------------------------------------------------------------------

    def resume(self, *, begins: bool = False) -> Piece | None:
        """Let the thread run until it has a piece; return that, or None at the end.

        Args:
            begins: start the thread, and let it run until its generation begins.

        Raises:
            whatever `model.generate` raises, once.
        """
        if self._ended:
            return None
        if not begins and not self.is_alive():
            raise NotSupportedError(
                "Generator: the stream began before the process was forked, and its thread is not"
                " copied; begin another one"
            )
        try:
            if begins:
                self.start()
            else:
                self._own_turn.release()
            self._readers_turn.acquire()
        except BaseException:  # the reader was interrupted; the pass is not
            self.stop()
            raise
        if self._ended:
            self.join()
        self._raise_error()
        piece = self._piece
        self._piece = None
        return piece

    def stop(self) -> None:
        """Close the generation and leave `model.generate`, after the pass that is under way.

        Errors are raised.
        """
        if self._ended or not self.is_alive():
            return
        self._closing = True
        self._own_turn.release()
        self.join()
        self._raise_error()

    def _raise_error(self) -> None:
        """Raise the thread's error, if there is one, once."""
        error = self._error
        self._error = None
        if error is not None:
            try:
                raise error
            finally:
                del error  # else it would hold itself, and the generation, by its traceback

    def drop(self) -> None:
        """Release the generation without filling a cache; leave `model.generate`.

        Raises nothing.
        """
        if self._ended or not self.is_alive() or sys.is_finalizing():
            return
        if self.generation is not None:
            # Here, and not in the thread: this one may hold a lock that is needed for it.
            self.generation.release()
        self._closing = True
        self._own_turn.release()
        if threading.current_thread() is not self:
            self.join(_MAX_SECONDS)

    # --- the thread's side ------------------------------------------------------------------------

    def run(self) -> None:
        generate = self._generate
        self._generate = None
        assert generate is not None
        try:
            self.result = self._context.run(self._run_with_settings, generate)
        except BaseException as error:  # the reader's to handle, interrupts included
            self.failed = True
            self._error = error
        finally:
            self._ended = True
            self._readers_turn.release()

    def _run_with_settings(self, generate: Callable[[Drive], Any]) -> Any:
        with self._settings.hold():
            return generate(self._drive)

    def _drive(self, generation: Generation) -> Any:
        """Run the loop, a pass for each turn."""
        is_first = self.generation is None
        self.generation = generation
        with generation:
            if is_first:
                self._hand_over(None)
            elif self._closing:
                generation.close()
            for piece in generation:
                self._hand_over(piece)
            return generation.result()

    def _hand_over(self, piece: Piece | None) -> None:
        """Give the reader a piece, and wait for the next turn."""
        self._piece = piece
        self._readers_turn.release()
        self._own_turn.acquire()
        if self._closing and self.generation is not None:
            self.generation.close()


class ThreadSettings:
    """The settings that torch keeps for each thread, of the thread in which this is made."""

    def __init__(self) -> None:
        self._inference = torch.is_inference_mode_enabled()
        kinds = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        self._autocast = {
            kind: torch.get_autocast_dtype(kind)
            for kind in kinds
            if torch.is_autocast_enabled(kind)
        }
        self._caches = torch.is_autocast_cache_enabled()
        self._device = torch.get_default_device()
        is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._stream = torch.cuda.current_stream() if is_used else None

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Have the same in this thread."""
        with ExitStack() as stack:
            if self._inference:
                stack.enter_context(torch.inference_mode())
            for kind, dtype in self._autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=self._caches))
            if self._device != torch.device("cpu"):
                stack.enter_context(self._device)
            if self._stream is not None:
                stack.enter_context(torch.cuda.stream(self._stream))
            yield
