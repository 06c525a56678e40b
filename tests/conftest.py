"""Shared by all tests: Hypothesis profiles, and inputs and outputs of builds."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from build_index.tokenization import TargetTokenizer, load_tokenizer
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.remembering import flush
from tests.shared.builds import write_tokenizer
from tests.shared.models import CHATML, byte_level_bpe

# A background job ignores interrupts, and so do its children; some tests interrupt their children.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines, because machines may be slow. Under the sanitizers an example takes ten times as
# long.
settings.register_profile("default", deadline=None)
settings.register_profile(
    "sanitize", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


# Outputs that are queued have two seconds to be written; a machine that is busy with other things
# has a minute.
flush.__defaults__ = (60.0,)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a tiny tokenizer."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The place of a datastore to build."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "ds"


@pytest.fixture(scope="module")
def byte_level_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a tiny byte-level tokenizer with control tokens."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    byte_level_bpe().save(str(path))
    return path


@pytest.fixture(scope="module")
def chat(byte_level_file: Path) -> TargetTokenizer:
    """The same with a chat template."""
    return load_tokenizer(byte_level_file, chat_template=CHATML)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    """The calibration that comes with the package."""
    return Calibration.default()


class _Deprecations(logging.Handler):
    """Keeps what a library logs of names that will go; only warnings are errors by themselves."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "deprecated" in record.getMessage():
            self.messages.append(record.getMessage())


@pytest.fixture(autouse=os.environ.get("REST_STORE_DEPRECATIONS") == "error")
def logged_deprecations() -> Iterator[None]:
    """Fail where transformers logs that something is deprecated: `make test-newest`."""
    logger = logging.getLogger("transformers")
    handler = _Deprecations()
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    assert handler.messages == []
