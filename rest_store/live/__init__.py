"""Datastores that grow: documents in SQLite, segments sorted from them, merging."""
