"""Import of the packages that only the `[build]` extra brings."""

from __future__ import annotations

import importlib
from types import ModuleType

from rest_store.errors import RestStoreError, describe


def import_package(name: str, where: object, error: type[RestStoreError]) -> ModuleType:
    """Import a package that reading `where` takes, when it is first needed.

    Args:
        name: the module, for instance `"pyarrow.parquet"`.
        where: the input that needs it, for the message.
        error: the class to raise.

    Returns:
        The module.

    Raises:
        RestStoreError: of class `error`, when the package is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as cause:
        package = name.partition(".")[0]
        expected = "it to be installed: pip install 'rest-store[build]'"
        raise error(describe(where, f"the package '{package}'", f"not usable ({cause})", expected)) from cause
