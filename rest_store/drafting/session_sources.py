"""The sources of a draft session as its steps ask them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.external_sources import Drop, ExternalSources
from rest_store.drafting.kernel_session import Drafted, DraftLimits, TopK, follow_changes, kernel_session, take_prompt
from rest_store.drafting.remote import RemoteDrafting, SessionSettings, remote_drafting
from rest_store.drafting.sources import Source
from rest_store.errors import (
    DatastoreClosedError,
    DatastoreUnavailableError,
    SessionClosedError,
    TokenizerMismatchError,
    describe,
)


class SessionSources:
    """Asks the sources of one session, step by step, for `DraftSession` and for batches of sessions.

    Args:
        sources, calibration, learn, max_suffix, timeout: as in `DraftSession`.
        tokenizer: of the session; None: that of the first source that has one.
        prompt: int32[n], the text so far.
        prompt_top_k: rows of the last tokens of the prompt.

    Attributes:
        native: the kernel's side of the session.
        datastores: those in this process, by place.
        external: the other sources with counts.
        remote: hands the steps over to a session that the only source with counts runs; None: they are drafted here.
        left_out: the sources that are never asked again.

    Raises:
        ContextTypeError: `prompt_top_k` has more rows than there are tokens.
        DatastoreClosedError, DatastoreUnavailableError, NativeKernelError: as `kernel_session`.

    Not thread-safe.
    """

    def __init__(
        self,
        sources: Sequence[object],
        calibration: Calibration,
        prompt: npt.NDArray[np.int32],
        prompt_top_k: TopK | None,
        *,
        learn: bool,
        max_suffix: int,
        tokenizer: TokenizerIdentity | None,
        timeout: float | None,
    ) -> None:
        self.native, self.datastores, stores = kernel_session(calibration, sources, learn=learn, max_suffix=max_suffix)
        self.left_out: list[Drop] = []
        self._closed = False
        tokenizers = {place: opened.store.tokenizer for place, opened in self.datastores.items()}
        external: list[tuple[int, int, Source]] = []
        for place, store in stores.items():
            source = sources[place]
            assert isinstance(source, Source)  # as `require_sources` has checked
            external.append((store, place, source))
        self.external = ExternalSources(self.native, external, timeout=timeout, max_suffix=max_suffix)
        tokenizers |= self.external.tokenizers()
        self.remote: RemoteDrafting | None = None
        self._given_up: RemoteDrafting | None = None  # the former `remote`, closed with the session
        self._leave_out_other_tokenizers(tokenizers, tokenizer)
        take_prompt(self.native, prompt, prompt_top_k)
        if len(external) == len(self.external) == 1 and not self.datastores:
            settings = SessionSettings(calibration, learn, max_suffix, self.external.tokenizer, prompt_top_k)
            self.remote = remote_drafting(self.native, sources, settings, len(prompt), timeout)
        if self.remote is not None:
            self.external.skip()
            self.remote.open()

    def _leave_out_other_tokenizers(
        self, tokenizers: dict[int, TokenizerIdentity], expected: TokenizerIdentity | None
    ) -> None:
        """Leave out sources with another tokenizer than `expected`; None: that of the first source with one."""
        if expected is None and tokenizers:
            expected = tokenizers[min(tokenizers)]
        self.external.tokenizer = expected
        if expected is not None:
            self.native.limit_tokens(expected.vocabulary_size)
        for place, reported in tokenizers.items():
            try:
                assert expected is not None
                expected.require_same(reported, "draft session")
            except TokenizerMismatchError as error:
                self._leave_out(place, "tokenizer", str(error))

    @property
    def asks_elsewhere(self) -> bool:
        """Whether a step waits for sources outside this process."""
        return self.remote is not None or len(self.external) > 0

    def send(self, limits: DraftLimits) -> bool:
        """Ask the sources outside this process for the next step.

        Returns:
            Whether `receive` waits for nothing but their answers.
        """
        if self.remote is not None:
            return self.remote.send(limits)
        if self.external:
            self.external.send(limits.max_nodes)
        return True

    def receive(self, limits: DraftLimits) -> tuple[Drafted | None, list[Drop]]:
        """Wait for the answers to `send`; return the draft if a service made it, and the sources that were left out."""
        drops: list[Drop] = []
        if self.remote is not None:
            answer = self.remote.draft(limits)
            if isinstance(answer, Drafted):
                return answer, []
            if answer is None:
                self._given_up, self.remote = self.remote, None
                self.external.send(limits.max_nodes, self._given_up.seconds_left)
            else:
                drops.append(answer)
        if self.remote is None and self.external:
            drops = self.external.receive()
        for drop in drops:
            if drop.why == "tokenizer":
                self._leave_out(*drop)
        return None, [drop for drop in drops if drop.why != "tokenizer"]

    def leave_out_unreadable(self) -> bool:
        """Leave out datastores that have lost a page or were closed; return whether any were."""
        readable = len(self.datastores)
        for place, opened in list(self.datastores.items()):
            try:
                opened.store.require_readable()
            except (DatastoreUnavailableError, DatastoreClosedError) as error:
                self._leave_out(place, "error", str(error))
        return len(self.datastores) < readable

    def _leave_out(self, place: int, why: str, text: str) -> None:
        """Draft without the source at `place` from now on; every step counts that."""
        self.left_out.append(Drop(place, why, text))
        if place in self.datastores:
            self.native.set_trees(self.datastores.pop(place).index, None)
        else:
            self.external.remove(place)
            self._end_remote()

    def _end_remote(self) -> None:
        ended, self.remote, self._given_up = (self.remote, self._given_up), None, None
        for remote in ended:
            if remote is not None:
                remote.close()

    def draft_here(self, limits: DraftLimits) -> Drafted:
        """Return a draft that the kernel makes in this process."""
        follow_changes(self.native, self.datastores.values())
        drafted = Drafted(*self.native.draft(*limits))
        if self.leave_out_unreadable():
            drafted = Drafted(*self.native.draft(*limits))
        return drafted

    def require_open(self, where: str) -> None:
        """Raise SessionClosedError after `close`."""
        if self._closed:
            raise SessionClosedError(describe(where, "the session", "closed", "open"))

    def close(self) -> None:
        """End the session elsewhere and the threads of sources; may be called again."""
        self._closed = True
        self._end_remote()
        self.external.close()
