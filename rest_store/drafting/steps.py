"""The steps of draft sessions, of one or of many together: a draft, and the accepted tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.draft_options import Accepted, DraftOptions
from rest_store.drafting.kernel_session import append_all
from rest_store.drafting.session_sources import Omission, SessionSources

if TYPE_CHECKING:
    from rest_store._kernel import ScoredColumns


class Drafted(NamedTuple):
    """The outcome of one session's draft.

    Attributes:
        tree: the draft.
        omissions: the sources that the step went on without.
        waited: seconds that it waited for services.
    """

    tree: TokenTree
    omissions: list[Omission]
    waited: float


def draft_step(
    sessions: Sequence[SessionSources], options: Sequence[DraftOptions], *, services: bool
) -> list[Drafted]:
    """Draft for each session.

    If this raises, as interrupts do, no session has a draft.

    Args:
        sessions: different ones.
        options: of each session. All have one shape, and all have costs or none has.
        services: whether members are asked.
    """
    try:
        for session, own in zip(sessions, options, strict=True):
            session.send(own, services=services)
        numbers = [number for number, session in enumerate(sessions) if session.uses_kernel]
        columns = _draft_by_kernel(sessions, options, numbers) if numbers else {}
        # A session whose members all fail drafts with the kernel, too.
        unanswered = []
        for number, session in enumerate(sessions):
            if session.members and not session.receive() and number not in columns:
                unanswered.append(number)
        if unanswered:
            columns |= _draft_by_kernel(sessions, options, unanswered)
        drafted = []
        for number, session in enumerate(sessions):
            tree = session.merge(columns.get(number))
            drafted.append(Drafted(tree, session.omissions, session.waited))
        return drafted
    except BaseException:
        for session in sessions:
            session.forget()
        raise


def accept_step(
    where: str, sessions: Sequence[SessionSources], accepted: Sequence[Accepted]
) -> None:
    """Append to each session the output of the target model.

    Args:
        where: how messages begin.
        sessions: different ones.
        accepted: for each session.

    Raises:
        ContextTypeError: a top-k has a wrong number of rows; nothing was appended.
    """
    for_kernel = [session.for_kernel(own) for session, own in zip(sessions, accepted, strict=True)]
    append_all(where, [session.native for session in sessions], for_kernel)
    for session, own in zip(sessions, accepted, strict=True):
        session.accept(own)


def _draft_by_kernel(
    sessions: Sequence[SessionSources],
    options: Sequence[DraftOptions],
    numbers: Collection[int],
) -> dict[int, ScoredColumns]:
    """Return the kernel's tree for each of the sessions at `numbers`.

    Datastores that turn out to be unreadable are left out, and their sessions drafted for again.
    """
    for number in numbers:
        sessions[number].follow_changes()
    columns = _kernel_trees(sessions, options, numbers)
    # Many sessions share a datastore, which is looked at once.
    opened = {}
    for number in numbers:
        for datastore in sessions[number].datastores.values():
            opened[datastore.store] = datastore
    if any(datastore.fault() for datastore in opened.values()):
        changed = [number for number in numbers if sessions[number].leave_out_unreadable()]
        if changed:
            columns |= _kernel_trees(sessions, options, changed)
    return columns


def _kernel_trees(
    sessions: Sequence[SessionSources],
    options: Sequence[DraftOptions],
    numbers: Collection[int],
) -> dict[int, ScoredColumns]:
    if len(sessions) == 1 or options[0].costs.size:
        return {number: sessions[number].native.draft(*options[number]) for number in numbers}
    natives = [sessions[number].native for number in numbers]
    trees = native_kernel().draft_all(natives, [options[number] for number in numbers])
    return dict(zip(numbers, trees, strict=True))
