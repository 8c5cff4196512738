"""Networks on live data: one step in, a decision out as soon as there is one."""

from rankcode.streaming.listener import Detection, Listener
from rankcode.streaming.pool import StreamPool
from rankcode.streaming.stream import Stream

__all__ = ["Detection", "Listener", "Stream", "StreamPool"]
