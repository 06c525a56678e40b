"""Fuzzers: random cases against what is promised, for as long as
one likes (`python -m tests.fuzz --help`).
"""
