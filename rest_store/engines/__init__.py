"""Drafting inside serving engines: a package for each engine, and the modules that they share."""
