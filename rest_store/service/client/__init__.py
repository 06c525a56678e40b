"""The clients of a service: blocking and asyncio, each with streams."""
