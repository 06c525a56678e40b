"""Opening a file of a datastore: only a regular one, never a pipe or a device, which might block for ever."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open the regular file at `path` for reading, or the one that a symbolic link there leads to.

    Raises:
        OSError: there is none, it cannot be read, or it is a directory, pipe, socket or device.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, str(error)) from None
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "not a regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
