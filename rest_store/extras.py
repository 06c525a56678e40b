"""The optional packages: which extra installs each."""

from __future__ import annotations

from rest_store.errors import MissingExtraError, describe

EXTRAS = {
    **dict.fromkeys(("grpc", "grpc_status", "grpc_health", "grpc_reflection", "google", "prometheus_client"), "server"),
    **dict.fromkeys(("torch", "transformers"), "hf"),
    **dict.fromkeys(("tokenizers", "pydivsufsort", "pyarrow", "jinja2", "gguf", "fsspec"), "build"),
    **dict.fromkeys(("s3fs", "gcsfs"), "remote"),
    "ray": "ray",
}


def missing_extra(where: str, error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return the error that names the extra of the package which is not there; None: it is of no extra.

    Args:
        where: what needs the package.
        error: of its import.
    """
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    expected = f"it to be installed: pip install 'rest-store[{EXTRAS[package]}]'"
    return MissingExtraError(describe(where, f"the package '{package}'", "missing", expected))
