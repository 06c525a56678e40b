"""What allocates memory in the processes of a build: glibc, or mimalloc where that is faster and installed.

`tokenizers` allocates several times for each word. It encodes a third more tokens a second with mimalloc, which neither
settings of glibc (GLIBC_TUNABLES) nor a larger cache of its own come near.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from ctypes.util import find_library

_M_ARENA_MAX = -8  # malloc.h
_ARENAS = 8


def limit_arenas() -> None:
    """Limit the allocator of glibc to eight arenas, unless MALLOC_ARENA_MAX is set.

    By default each thread has its own arena, up to eight a core, and keeps freed memory there: 250 MB more with 16
    tokenizing threads.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, _ARENAS)


def mimalloc_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a new process allocates with the system's mimalloc.

    Args:
        environment: of the process otherwise. None are added if it sets LD_PRELOAD, and if there is no mimalloc.
    """
    library = None if "LD_PRELOAD" in environment else find_library("mimalloc")
    return {} if library is None else {"LD_PRELOAD": library}
