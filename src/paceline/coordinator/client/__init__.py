"""Clients of the coordinator: asyncio, blocking, and where they find their nodes."""
