"""Drafts over gRPC: what server and client share; each has a package of its own."""
