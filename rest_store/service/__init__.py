"""Drafts over gRPC. `server` and `client` are packages; the modules here are shared."""
