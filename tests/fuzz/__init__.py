"""Fuzzers try random cases against the guarantees (`python -m tests.fuzz --help`)."""
