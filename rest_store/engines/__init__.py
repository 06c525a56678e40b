"""Drafting inside serving engines: one package for each engine, and
beside them what knows nothing of any.
"""
