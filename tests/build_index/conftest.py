"""Fixtures for tests of builds."""

import pytest

from tests.shared.builds import write_jsonl
from tests.shared.object_store import s3, s3_server  # noqa: F401 - fixtures


@pytest.fixture
def corpus(request, tmp_path):
    """A file of the texts of the module."""
    return write_jsonl(tmp_path / "corpus.jsonl", request.module.TEXTS)
