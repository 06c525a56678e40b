"""The clients of the service: blocking, asyncio, streams, and a source for draft sessions."""
