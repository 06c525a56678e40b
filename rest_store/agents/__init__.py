"""The memory of an agent: transcripts, a working tree and its history, kept up to date."""
