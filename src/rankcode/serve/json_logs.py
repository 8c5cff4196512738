"""Logs as lines of JSON on standard error: the time, the event, and what belongs to it."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

LOGGER = logging.getLogger("rankcode.serve")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        content = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
        if record.name != LOGGER.name:
            content["logger"] = record.name
        content |= getattr(record, "details", {})
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content, default=str)


def log(event: str, level: int = logging.INFO, exc_info: bool = False, **details: Any) -> None:
    LOGGER.log(level, event, exc_info=exc_info, extra={"details": details})


def log_json() -> None:
    """Write the logs of the service, and warnings of uvicorn, as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name, least in (("rankcode.serve", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(least)
