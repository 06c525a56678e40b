"""The files of a remote corpus: one file, or those below a directory (a prefix), in the order of `source_tree.walk`.

`s3://bucket/data/**/*.parquet` names the files below `s3://bucket/data` that match. In web addresses, `?` begins the
query and is no wildcard; the files of a directory there are the links of its page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from build_index.documents import CorpusCounts, CorpusFile
from build_index.path import HUB_FILES_PREFIX, scheme_of
from build_index.readers.remote_file import BLOCK_BYTES, SCHEMES, RemotePath, file_system, public_address, requested
from build_index.readers.source_tree import DEFAULT_EXCLUDES, compile_globs
from rest_store.datastore.manifest import FILE_NAME as MANIFEST_NAME
from rest_store.errors import CorpusError, CorpusNotFoundError, describe
from rest_store.loading.hub import hub_failure


@dataclass(frozen=True, slots=True)
class RemoteCorpus:
    """Where a remote corpus is; made by `look_at`. Can be pickled.

    Attributes:
        url: the file, or the directory, without a slash at the end.
        is_directory: whether it is a directory.
        glob: which files below the directory; empty: all.
        size: bytes of the file.
        etag: what the server says of the file's version; empty: nothing.
    """

    url: str
    is_directory: bool = False
    glob: str = ""
    size: int | None = None
    etag: str = ""

    def files(self, include: Sequence[str], exclude: Sequence[str], counts: CorpusCounts) -> Iterator[CorpusFile]:
        """Yield the files, sorted by name in each directory.

        Args:
            include: see `source_tree.walk`.
            exclude: see `source_tree.walk`.
            counts: counts what is skipped, and by its ending what `include` leaves out.

        Raises:
            CorpusError: a directory cannot be listed.
        """
        if not self.is_directory:
            yield CorpusFile(self.url, public_address(self.url).rpartition("/")[2], self.size)
            return
        named = compile_globs([f"/{self.glob}" if self.glob else "*"])
        included, excluded = compile_globs(include), compile_globs((*DEFAULT_EXCLUDES, *exclude))
        levels = [self._listing("", counts)]
        while levels:
            entry = next(levels[-1], None)
            if entry is None:
                levels.pop()
                continue
            if excluded.fullmatch(entry.relative):
                continue
            if entry.is_directory:
                if _may_hold(self.glob, entry.relative):
                    levels.append(self._listing(f"{entry.relative}/", counts))
            elif not named.fullmatch(entry.relative):
                continue
            elif include and not included.fullmatch(entry.relative):
                counts.leave_out(PurePosixPath(entry.relative).suffix or "no ending")
            else:
                yield CorpusFile(f"{self.url}/{entry.relative}", entry.relative, entry.size)

    def _listing(self, prefix: str, counts: CorpusCounts, *, once: bool = False) -> Iterator[_Entry]:
        """Return the entries of a directory below this one, sorted by name."""
        url = f"{self.url}/{prefix}"
        system = file_system(url)
        try:
            listed = requested(url, lambda: system.ls(url, detail=True), once=once)
        except CorpusNotFoundError:
            if not prefix:
                raise
            counts.skip("vanished")
            return iter(())
        entries = sorted(_entries(system, listed, url, prefix), key=lambda entry: entry.relative)
        names = [entry.relative.removeprefix(prefix) for entry in entries]
        if MANIFEST_NAME in names and any(name.endswith(".tokens") for name in names):
            counts.skip("datastore")
            return iter(())
        return iter(entries)


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of a listing; its path is relative to the top of the corpus."""

    relative: str
    is_directory: bool
    size: int | None


def _entries(system: Any, listed: list[dict[str, Any]], url: str, prefix: str) -> Iterator[_Entry]:
    """Yield what is in the directory itself: not its own marker, nor what a web page links elsewhere."""
    for item in listed:
        place: str = system.unstrip_protocol(item["name"])
        name = place.removeprefix(url).rstrip("/")
        if not place.startswith(url) or not name or "/" in name or public_address(place) != place:
            continue
        yield _Entry(prefix + name, item["type"] == "directory", item.get("size"))


def look_at(address: str) -> RemoteCorpus:
    """Find out what is at an address, with one try of each request.

    Raises:
        CorpusNotFoundError: there is no such bucket, file or directory, or no file that the glob matches.
        CorpusError: the address is malformed, its package is not installed, credentials are missing or refused, or the
            server cannot be reached.
    """
    where = public_address(address)
    scheme = scheme_of(address)
    if scheme not in SCHEMES:
        expected = ", ".join(SCHEMES[:-1]) + f" or {SCHEMES[-1]}, or a path without one"
        raise CorpusError(describe(where, "scheme", f"'{scheme}'", expected))
    host = address.split("/")[2]
    if not host or re.search(r"[*?\[]", host):
        raise CorpusError(describe(where, "address", "malformed", f"{scheme}://NAME/..."))
    if scheme.startswith("http") and "@" in host:
        where = where.replace(host, host.rpartition("@")[2])
        raise CorpusError(describe(where, "address", "one with a password", "one without; ~/.netrc is read"))
    system = file_system(address)
    if scheme == "hf":
        failure = hub_failure("/".join(address.removeprefix(HUB_FILES_PREFIX).split("/")[:2]), kind="dataset")
        if failure is not None:
            raise CorpusError(f"{where}: the Hugging Face hub cannot be reached ({failure})")
    url, glob = _split_glob(address, r"[*\[]" if scheme.startswith("http") else r"[*?\[]")
    if not glob and not address.endswith("/"):
        info = requested(where, lambda: system.info(url), once=True)
        if info["type"] != "directory":
            return _file(url, info)
    corpus = RemoteCorpus(url, is_directory=True, glob=glob)
    corpus._listing("", CorpusCounts(), once=True)
    if glob and next(corpus.files((), (), CorpusCounts()), None) is None:
        raise CorpusNotFoundError(describe(where, "the number of files that match", 0, "at least 1"))
    return corpus


def _file(url: str, info: dict[str, Any]) -> RemoteCorpus:
    path = RemotePath(url)
    path.open()
    if path.size > BLOCK_BYTES:
        path.read_at(path.size - 1, 1)  # some servers send whole files only, and say so now
    etag = str(info.get("ETag") or info.get("etag") or "")
    return RemoteCorpus(url, size=path.size, etag=etag.removeprefix("W/").strip('"'))


def _split_glob(address: str, wildcards: str) -> tuple[str, str]:
    """Return the directory above the first name with a wildcard, and the glob of what is below it; or no glob."""
    names = address.split("/")
    first = next((number for number, name in enumerate(names) if re.search(wildcards, name)), len(names))
    glob = "/".join(names[first:])
    return "/".join(names[:first]).rstrip("/"), f"{glob}**" if glob.endswith("/") else glob


def _may_hold(glob: str, directory: str) -> bool:
    """Whether files below a directory can match a glob from the top."""
    names = directory.split("/")
    parts = glob.split("/") if glob else ["**"]
    fixed = next((number for number, part in enumerate(parts) if "**" in part), None)
    if fixed is None and len(names) >= len(parts):
        return False
    fixed = len(names) if fixed is None else min(fixed, len(names))
    return fixed == 0 or bool(compile_globs(["/" + "/".join(parts[:fixed])]).fullmatch("/".join(names[:fixed])))
