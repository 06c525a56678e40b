"""The files of a remote corpus: one file, those below a directory (a prefix), or those that a glob names.

In web addresses, `?` begins the query and is no wildcard; the files of a directory there are the links of its page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from build_index.documents import CorpusCounts, CorpusFile
from build_index.path import scheme_of
from build_index.readers.files import SCHEMES, file_system, public_address, read_errors
from build_index.readers.source_tree import Globs
from rest_store.errors import CorpusError, CorpusNotFoundError, describe
from rest_store.loading.hub import hub_failure


@dataclass(frozen=True, slots=True)
class RemoteCorpus:
    """Where a remote corpus is; made by `at`. Can be pickled.

    Attributes:
        top: the file, or the directory above the first wildcard, without a slash at the end.
        pattern: what to list: the address of a directory or a glob; None: it is one file.
        size: bytes of the file.
        etag: what the server says of the file's version; empty: nothing.
    """

    top: str
    pattern: str | None = None
    size: int | None = None
    etag: str = ""

    @property
    def is_directory(self) -> bool:
        """Whether there may be several files."""
        return self.pattern is not None

    @classmethod
    def at(cls, address: str) -> RemoteCorpus:
        """Find out what is at an address.

        Raises:
            CorpusNotFoundError: there is no such bucket or file.
            CorpusError: the address is malformed, its package is not installed, credentials are missing or refused, or
                the server cannot be reached.
        """
        where = public_address(address)
        _require_valid(address, where)
        names = address.split("/")
        wildcards = r"[*\[]" if address.startswith("http") else r"[*?\[]"
        fixed = next((number for number, name in enumerate(names) if re.search(wildcards, name)), None)
        if fixed is not None:
            return cls("/".join(names[:fixed]), address)
        if address.endswith("/"):
            return cls(address.rstrip("/"), address)
        system = file_system(address)
        with read_errors(where):
            info = system.info(address)
        if info["type"] == "directory":
            return cls(address, address)
        return cls(address, size=info.get("size"), etag=_etag(info))

    def files(self, include: Sequence[str], exclude: Sequence[str], counts: CorpusCounts) -> Iterator[CorpusFile]:
        """Yield the files in the order of `LocalCorpus.files`.

        Args:
            include: see `Globs`.
            exclude: see `Globs`.
            counts: counts by its ending what `include` leaves out.

        Raises:
            CorpusNotFoundError: there is no such directory, or no file that matches.
            CorpusError: it cannot be listed.
        """
        where = public_address(self.top)
        if self.pattern is None:
            yield CorpusFile(self.top, where.rpartition("/")[2], self.size, self.etag)
            return
        globs = Globs(include, exclude)
        system = file_system(self.top)
        with read_errors(where):
            is_glob = self.pattern.rstrip("/") != self.top
            found = system.glob(self.pattern, detail=True) if is_glob else system.find(self.pattern, detail=True)
        files = {}
        for name, info in found.items():
            address = system.unstrip_protocol(name)
            relative = address.removeprefix(f"{self.top}/")
            if info["type"] == "file" and relative != address and public_address(address) == address:
                files[relative] = info  # not what a web page links elsewhere
        if not files:
            raise CorpusNotFoundError(describe(public_address(self.pattern), "the number of files", 0, "at least 1"))
        for relative in sorted(files, key=lambda name: name.split("/")):
            if globs.choose(relative, counts):
                info = files[relative]
                yield CorpusFile(f"{self.top}/{relative}", relative, info.get("size"), _etag(info))


def _require_valid(address: str, where: str) -> None:
    """Raise CorpusError for an address that names nothing which can be read, or a hub that cannot be reached."""
    scheme, parts = scheme_of(address), address.split("/")
    if scheme not in SCHEMES:
        raise CorpusError(describe(where, "scheme", f"'{scheme}'", ", ".join(SCHEMES) + ", or a path without one"))
    host = parts[2]
    if scheme == "hf" and (host != "datasets" or "" in parts[3:5] or len(parts) < 5):
        raise CorpusError(describe(where, "address", "malformed", "hf://datasets/OWNER/NAME/..."))
    if not host or re.search(r"[*?\[]", host):
        raise CorpusError(describe(where, "address", "malformed", f"{scheme}://NAME/..."))
    if scheme.startswith("http") and "@" in host:
        where = where.replace(host, host.rpartition("@")[2])
        raise CorpusError(describe(where, "address", "one with a password", "one without; ~/.netrc is read"))
    if scheme == "hf" and (failure := hub_failure("/".join(parts[3:5]), kind="dataset")):
        raise CorpusError(f"{where}: the Hugging Face hub cannot be reached ({failure})")


def _etag(info: dict[str, object]) -> str:
    return str(info.get("ETag") or info.get("etag") or "").removeprefix("W/").strip('"')
