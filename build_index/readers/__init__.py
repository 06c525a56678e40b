"""Readers of corpora: one module for each kind of file, and the detection of the kind."""
