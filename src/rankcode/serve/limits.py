"""What clients may ask of the service."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Limits:
    """Beyond these a client is slowed down or refused. Each bounds the memory or the time that others would lose."""

    max_clients: int = 1000
    """WebSocket connections at once."""
    max_streams: int = 1024
    """Streams at once, of all clients together."""
    streams_per_client: int = 64
    """Streams at once on one connection."""
    message_bytes: int = 1 << 18
    """Largest message. A client's unread messages may have twice as many bytes; then it is not read from."""
    messages_per_second: int = 2000
    """Of one client, on average; a client that sends more is read from more slowly."""
    idle_seconds: float = 60.0
    """A connection without a message for so long is closed."""
    stream_seconds: float = 60.0
    """A stream that has not answered after so long is ended."""
    lag_ms: float = 50.0
    """While messages wait for longer than this until they have been read, new streams are refused."""
    upload_bytes: int = 10 << 20
    """Largest file."""
    upload_seconds: float = 60.0
    """Longest recording in a file."""
    uploads: int = 4
    """Files that are read or wait to be read at once."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name} must be greater than 0, not {getattr(self, field.name)}")
        if self.message_bytes < 1024:
            raise ValueError(f"message_bytes must be at least 1024, not {self.message_bytes}")
