"""Verification and generation with transformers models; the only modules that load torch."""
