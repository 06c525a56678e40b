"""The files of a remote corpus: one file, those below a directory (a prefix), or those that a glob names.

In web addresses, `?` begins the query and is no wildcard; the files of a directory there are the links of its page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from build_index.documents import CorpusCounts, CorpusFile
from build_index.path import HUB_FILES_PREFIX, scheme_of
from build_index.readers.files import SCHEMES, file_system, public_address, read_errors
from build_index.readers.source_tree import Globs
from rest_store.errors import CorpusError, CorpusNotFoundError, describe
from rest_store.loading.hub import hub_failure


@dataclass(frozen=True, slots=True)
class RemoteCorpus:
    """Where a remote corpus is; made by `look_at`. Can be pickled.

    Attributes:
        url: the file, or the directory above the first wildcard, without a slash at the end.
        pattern: what to list: the address of a directory or a glob; None: it is one file.
        size: bytes of the file.
        etag: what the server says of the file's version; empty: nothing.
    """

    url: str
    pattern: str | None = None
    size: int | None = None
    etag: str = ""

    def files(self, include: Sequence[str], exclude: Sequence[str], counts: CorpusCounts) -> Iterator[CorpusFile]:
        """Yield the files in the order of `source_tree.walk`.

        Args:
            include: see `source_tree.walk`.
            exclude: see `source_tree.walk`.
            counts: counts by its ending what `include` leaves out.

        Raises:
            CorpusNotFoundError: there is no such directory, or no file that matches.
            CorpusError: it cannot be listed.
        """
        where = public_address(self.url)
        if self.pattern is None:
            yield CorpusFile(self.url, where.rpartition("/")[2], self.size, self.etag)
            return
        globs = Globs(include, exclude)
        system = file_system(self.url)
        with read_errors(where):
            is_glob = self.pattern.rstrip("/") != self.url
            found = system.glob(self.pattern, detail=True) if is_glob else system.find(self.pattern, detail=True)
        files = {}
        for name, info in found.items():
            address = system.unstrip_protocol(name)
            relative = address.removeprefix(f"{self.url}/")
            if info["type"] == "file" and relative != address and public_address(address) == address:
                files[relative] = info  # not what a web page links elsewhere
        if not files:
            raise CorpusNotFoundError(describe(public_address(self.pattern), "the number of files", 0, "at least 1"))
        for relative in sorted(files, key=lambda name: name.split("/")):
            if globs.choose(relative, counts):
                info = files[relative]
                yield CorpusFile(f"{self.url}/{relative}", relative, info.get("size"), _etag(info))


def look_at(address: str) -> RemoteCorpus:
    """Find out what is at an address.

    Raises:
        CorpusNotFoundError: there is no such bucket or file.
        CorpusError: the address is malformed, its package is not installed, credentials are missing or refused, or the
            server cannot be reached.
    """
    where = public_address(address)
    scheme = scheme_of(address)
    if scheme not in SCHEMES:
        expected = ", ".join(SCHEMES) + ", or a path without one"
        raise CorpusError(describe(where, "scheme", f"'{scheme}'", expected))
    host = address.split("/")[2]
    if not host or re.search(r"[*?\[]", host):
        raise CorpusError(describe(where, "address", "malformed", f"{scheme}://NAME/..."))
    if scheme.startswith("http") and "@" in host:
        where = where.replace(host, host.rpartition("@")[2])
        raise CorpusError(describe(where, "address", "one with a password", "one without; ~/.netrc is read"))
    if scheme == "hf":
        failure = hub_failure("/".join(address.removeprefix(HUB_FILES_PREFIX).split("/")[:2]), kind="dataset")
        if failure is not None:
            raise CorpusError(f"{where}: the Hugging Face hub cannot be reached ({failure})")
    names = address.split("/")
    wildcards = r"[*\[]" if scheme.startswith("http") else r"[*?\[]"
    fixed = next((number for number, name in enumerate(names) if re.search(wildcards, name)), None)
    if fixed is not None:
        return RemoteCorpus("/".join(names[:fixed]), address)
    if address.endswith("/"):
        return RemoteCorpus(address.rstrip("/"), address)
    system = file_system(address)
    with read_errors(where):
        info = system.info(address)
    if info["type"] == "directory":
        return RemoteCorpus(address, address)
    return RemoteCorpus(address, size=info.get("size"), etag=_etag(info))


def _etag(info: dict[str, object]) -> str:
    return str(info.get("ETag") or info.get("etag") or "").removeprefix("W/").strip('"')
