"""The optional packages, and the extra that installs each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rest_store.errors import MissingExtraError, describe

EXTRAS = {
    **dict.fromkeys(
        ("grpc", "grpc_status", "grpc_health", "grpc_reflection", "google", "prometheus_client"),
        "server",
    ),
    "torch": "hf",
    "watchfiles": "agents",
    **dict.fromkeys(
        (
            "tokenizers",
            "pydivsufsort",
            "pyarrow",
            "jinja2",
            "gguf",
            "fsspec",
            "pathspec",
            "detect_secrets",
        ),
        "build",
    ),
    **dict.fromkeys(("transformers", "huggingface_hub"), "build"),
    **dict.fromkeys(("s3fs", "gcsfs", "aiohttp"), "remote"),
    "ray": "ray",
    "llguidance": "grammar",
}


@contextmanager
def named_extras(where: str) -> Iterator[None]:
    """Turn the error of an absent package into one that names the extra to install.

    The packages are imported inside the block.

    Args:
        where: the module or command that needs the packages.

    Raises:
        MissingExtraError: a package of an extra is missing; of any other, its own error.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        expected = f"it to be installed: pip install 'rest-store[{EXTRAS[package]}]'"
        raise MissingExtraError(
            describe(where, f"the package '{package}'", "missing", expected)
        ) from error
