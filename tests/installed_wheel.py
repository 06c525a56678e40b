"""What an installed wheel must do with nothing but its own dependencies.

Cibuildwheel runs this for each wheel.

python -I tests/installed_wheel.py

Without `-I`, tests/build_index would stand for the package of that name.
"""

from __future__ import annotations

from pathlib import Path

import build_index
import rest_store
from rest_store import _kernel

# 1 2 3 1 2, 299, 0 1, and 5 5 5.
GOLDEN = Path(__file__).resolve().parent / "datastore" / "golden" / "two-byte"


def main() -> None:
    source = Path(__file__).resolve().parents[1]
    for package in (rest_store, build_index):
        assert source not in Path(package.__file__).resolve().parents, (
            f"{package.__name__} is that of the source tree"
        )
    with rest_store.Datastore.open(GOLDEN) as store:
        match = store.longest_suffix_match([7, 1, 2])
        assert (match.length, match.count) == (2, 2)
        assert store.draft([7, 1, 2], max_nodes=8).tokens.tolist() == [3, 1, 2]
        sources = [store, rest_store.PromptLookup(), rest_store.RecycledLogits()]
        with rest_store.DraftSession(sources, prompt=[9, 8, 7, 9, 8]) as session:
            assert 7 in session.draft(max_nodes=4).tokens
            session.accept([5, 5])
            assert 5 in session.draft(max_nodes=4).tokens
    print(f"rest-store {rest_store.__version__}: {Path(_kernel.__file__).name} queries and drafts")


if __name__ == "__main__":
    main()
