"""A file in an object store, or the files below a directory (a prefix)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from build_index.documents import CorpusCounts, CorpusFile
from build_index.readers.dataset_folder import DatasetFolder
from build_index.readers.files import open_file, read_errors
from build_index.readers.source_tree import Globs
from rest_store.errors import CorpusError, describe
from rest_store.loading.remote_files import file_system, require_hub, scheme_of

_SCHEMES = ("s3", "gs", "hf")  # files of web servers have no listing


@dataclass(frozen=True, slots=True)
class RemoteCorpus:
    """The place of a remote corpus; made by `at`. Can be pickled.

    Attributes:
        top: its address, without a slash at the end.
        is_directory: whether there may be several files.
        size: bytes of the file.
        etag: the file's version on the server; empty: the server names none.
    """

    top: str
    is_directory: bool
    size: int = 0
    etag: str = ""

    @classmethod
    def at(cls, address: str) -> RemoteCorpus:
        """Look at an address.

        Raises:
            CorpusNotFoundError: there is no such bucket or file.
            CorpusError: the address is malformed, its package is not installed, credentials are
                missing or refused, or the server cannot be reached.
        """
        _require_valid(address)
        top = address.rstrip("/")
        system = file_system(address, CorpusError)
        require_hub(address, CorpusError)
        with read_errors(address):
            info = system.info(top)
        if info["type"] == "directory":
            return cls(top, is_directory=True)
        return cls(top, is_directory=False, size=info["size"], etag=_etag(info))

    def files(self, globs: Globs, counts: CorpusCounts) -> Iterator[CorpusFile]:
        """Yield the files in the order of `LocalCorpus.files`.

        Args:
            globs: chooses the files of a directory.
            counts: counts the files that `globs` leaves out.

        Raises:
            CorpusNotFoundError: there is no such directory.
            CorpusError: it cannot be listed.
        """
        if not self.is_directory:
            yield CorpusFile(self.top, self.top.rpartition("/")[2], self.size, self.etag)
            return
        system = file_system(self.top, CorpusError)
        with read_errors(self.top):
            listing = system.find(self.top, detail=True)
        files = {}
        for name, info in listing.items():
            files[system.unstrip_protocol(name).removeprefix(f"{self.top}/")] = info
        folders = self._folders(files)
        for relative in sorted(files, key=lambda name: name.split("/")):
            if not globs.choose(relative, counts):
                continue
            info = files[relative]
            path = f"{self.top}/{relative}"
            directory, _, name = relative.rpartition("/")
            folder = folders.get(directory)
            row_files: tuple[str, ...] = ()
            if folder is not None:
                if not folder.takes(name, info["size"], path, counts):
                    continue
                top = f"{self.top}/{directory}"
                row_files = tuple(f"{top}/{row_file}" for row_file in folder.row_files)
            yield CorpusFile(path, relative, info["size"], _etag(info), row_files)

    def _folders(self, files: Iterable[str]) -> dict[str, DatasetFolder]:
        """Return the folders that `datasets` wrote, by their paths from the top."""
        names: dict[str, set[str]] = {}
        for relative in files:
            directory, _, name = relative.rpartition("/")
            names.setdefault(directory, set()).add(name)
        folders = {}
        for directory, inside in names.items():
            where = f"{self.top}/{directory}".rstrip("/")

            def read(name: str, size: int, where: str = where) -> bytes:
                with read_errors(f"{where}/{name}"), open_file(f"{where}/{name}") as file:
                    return file.read(size)

            if (folder := DatasetFolder.detect(inside, read)) is not None:
                folders[directory] = folder
        return folders


def _require_valid(address: str) -> None:
    """Raise CorpusError for an address that names nothing which can be read."""
    scheme = scheme_of(address)
    bucket, *names = address.split("/")[2:]
    if scheme not in _SCHEMES:
        raise CorpusError(
            describe(address, "scheme", f"'{scheme}'", "s3, gs, hf, or a path: download it first")
        )
    if scheme == "hf":
        is_whole = bucket == "datasets" and len(names) >= 2 and all(names[:2])
        expected = "hf://datasets/OWNER/NAME/..."
    else:
        is_whole = bool(bucket)
        expected = f"{scheme}://NAME/..."
    if not is_whole:
        raise CorpusError(describe(address, "address", "malformed", expected))


def _etag(info: dict[str, object]) -> str:
    return str(info.get("ETag") or info.get("etag") or "").strip('"')
