"""Source archives as a corpus of The Stack's layout: parquet with `content`, `lang`, `path`, `size`, nothing unpacked.

    apt-get source --download-only linux gcc-12
    python benchmarks/pack_sources.py linux_*.orig.tar.xz gcc-12_*.orig.tar.gz --out sources/

Regular files of text up to 1 MB, as in The Stack, in the order of the archive; the language is that of the ending.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import IO

import click
import pyarrow as pa
import pyarrow.parquet as parquet

LARGEST_FILE = 1 << 20
FILE_BYTES = 128 << 20  # of text in a parquet file: what one worker reads at a time
GROUP_ROWS = 1000
SCHEMA = pa.schema([("content", pa.string()), ("lang", pa.string()), ("path", pa.string()), ("size", pa.int64())])
LANGUAGES = {
    "C": ".c .h",
    "C++": ".cc .cpp .cxx .hh .hpp .C .def .inc .tcc",
    "Python": ".py",
    "Assembly": ".s .S",
    "LLVM": ".ll .mir",
    "MLIR": ".mlir",
    "TableGen": ".td",
    "Ada": ".ads .adb",
    "Go": ".go",
    "Rust": ".rs",
    "D": ".d",
    "Fortran": ".f .f90 .F90",
    "Objective-C": ".m .mm",
    "Device tree": ".dts .dtsi",
    "Shell": ".sh",
    "Text": ".txt .rst .md .texi",
}
LANGUAGE_OF = {ending: language for language, endings in LANGUAGES.items() for ending in endings.split()}


def rows(archive: IO[bytes]) -> Iterator[dict[str, str | int]]:
    """Yield a row for each file of text in a tar archive, or in one inside it, read once from beginning to end."""
    with tarfile.open(fileobj=archive, mode="r|*") as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isreg() else None
            if file is not None and PurePosixPath(member.name).stem.endswith(".tar"):
                yield from rows(file)
                continue
            if file is None or not 0 < member.size <= LARGEST_FILE:
                continue
            data = file.read()
            if b"\0" in data:
                continue
            try:
                content = data.decode()
            except UnicodeDecodeError:
                continue
            language = LANGUAGE_OF.get(PurePosixPath(member.name).suffix, "Other")
            yield {"content": content, "lang": language, "path": member.name, "size": len(data)}


def pack(archive: Path, out: Path) -> Counter[str]:
    """Write the parquet files of an archive; return the bytes of text by language."""
    name = archive.name.partition("_")[0]
    total: Counter[str] = Counter()
    number = written = 0
    with archive.open("rb") as file, ExitStack() as stack:
        writer, batch = None, []
        for row in rows(file):
            if writer is None:
                path = out / f"{name}-{number:05}.parquet"
                writer = stack.enter_context(parquet.ParquetWriter(path, SCHEMA, compression="zstd"))
            batch.append(row)
            total[str(row["lang"])] += int(row["size"])
            written += int(row["size"])
            if len(batch) == GROUP_ROWS or written >= FILE_BYTES:
                writer.write_table(pa.Table.from_pylist(batch, SCHEMA))
                batch = []
            if written >= FILE_BYTES:
                stack.close()
                writer, number, written = None, number + 1, 0
        if writer is not None and batch:
            writer.write_table(pa.Table.from_pylist(batch, SCHEMA))
    return total


@click.command(help=__doc__.splitlines()[0])
@click.argument("archives", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Directory to create.")
def main(archives: tuple[Path, ...], out: Path) -> None:
    out.mkdir(parents=True)
    for archive in archives:
        total = pack(archive, out)
        languages = ", ".join(f"{language} {size / 1e6:,.0f} MB" for language, size in total.most_common())
        click.echo(f"{archive.name}: {sum(total.values()) / 1e6:,.0f} MB: {languages}")


if __name__ == "__main__":
    main()
