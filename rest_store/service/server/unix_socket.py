"""Who may connect to the Unix sockets of a service."""

from __future__ import annotations

import contextlib
import grp
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rest_store.errors import ServeError, describe

_GROUP_MODE = 0o660
_OWNER_ALONE = 0o177  # as a umask


@dataclass(frozen=True)
class SocketPermissions:
    """Permissions and group of Unix sockets. Who may write to a socket may connect.

    Attributes:
        mode: permission bits; None: 0660 with a group, else as the umask of the process says.
        group: name or number; None: that of the process.

    Raises:
        ServeError: there is no such group.
    """

    mode: int | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        self._group_number()

    @contextlib.contextmanager
    def given_to(self, path: Path) -> Iterator[None]:
        """Give them to the socket that the block creates at `path`, which never has wider permissions.

        Raises:
            ServeError: the process may not give the socket this group.
        """
        group = self._group_number()
        mode = _GROUP_MODE if self.mode is None and group is not None else self.mode
        if mode is None:
            yield
            return
        umask = os.umask(_OWNER_ALONE)
        try:
            yield
        finally:
            os.umask(umask)
        try:
            if group is not None:
                os.chown(path, -1, group)
            path.chmod(mode)
        except (OSError, OverflowError) as error:  # the latter for a number that no group can have
            found, expected = getattr(error, "strerror", None) or str(error), "one that the process may give"
            raise ServeError(describe(path, f"group {self.group!r}", found, expected)) from None

    def _group_number(self) -> int | None:
        if self.group is None:
            return None
        try:
            return int(self.group) if self.group.isdecimal() else grp.getgrnam(self.group).gr_gid
        except KeyError:
            raise ServeError(
                describe("service", "--socket-group", repr(self.group), "a group of this system")
            ) from None
