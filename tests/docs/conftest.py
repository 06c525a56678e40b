"""Fixtures of tests/docs."""

from tests.shared.object_store import s3, s3_server  # noqa: F401 - fixtures
