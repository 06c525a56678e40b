"""The optional packages: which extra installs each, and which parts of rest-store need them."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import NoReturn

from rest_store.errors import MissingExtraError, describe

EXTRAS = {  # the extra that installs each optional package
    **dict.fromkeys(("grpc", "grpc_status", "grpc_health", "grpc_reflection", "google", "prometheus_client"), "server"),
    **dict.fromkeys(("torch", "transformers"), "hf"),
    **dict.fromkeys(("tokenizers", "pydivsufsort", "pyarrow", "jinja2", "gguf", "fsspec"), "build"),
    **dict.fromkeys(("s3fs", "gcsfs"), "remote"),
    "ray": "ray",
}
_NEEDS = {  # package of rest-store: what importing it takes, and the extra
    "rest_store.generation": (("torch", "transformers"), "hf"),
    "rest_store.live": (("pydivsufsort",), "live"),
    "rest_store.service": (("grpc", "grpc_status", "google"), "server"),
}


def missing_package(module: str) -> tuple[str, str] | None:
    """Return the first package that importing `module` of rest-store lacks, and its extra; None: it lacks none."""
    packages, extra = _NEEDS.get(".".join(module.split(".")[:2]), ((), ""))
    return next(((package, extra) for package in packages if not _is_installed(package)), None)


def missing_text(where: str, package: str, extra: str) -> str:
    """Return the message of an error: what lacks which package, and how to install it."""
    expected = f"it to be installed: pip install 'rest-store[{extra}]'"
    return describe(where, f"the package '{package}'", "missing", expected)


class _StandIn(type):
    """The class of stand-ins: to call one, or to use an attribute of one, says what is missing."""

    def __call__(cls, *_: object, **__: object) -> NoReturn:
        raise MissingExtraError(cls.__doc__)

    def __getattr__(cls, name: str) -> NoReturn:
        raise AttributeError(name) if name.startswith("_") else MissingExtraError(cls.__doc__)


@functools.cache
def stand_in(where: str, package: str, extra: str) -> object:
    """Return what stands for a public name whose package is missing; it can be imported, listed and asked for help."""
    return _StandIn(where.rpartition(".")[2], (), {"__doc__": missing_text(where, package, extra)})


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # of a hook that refuses it, or of a module without a specification
        return False
