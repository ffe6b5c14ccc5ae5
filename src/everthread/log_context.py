"""Structured log fields for a session key, and a cheap way to log them."""

from __future__ import annotations

import logging

from everthread.domain.model import SessionKey


def log_fields(key: SessionKey, session_id: str = "", turn_id: str = "") -> dict[str, str]:
    """Return the `extra` fields of a log record: platform, key and the ids that are known."""
    fields = {"platform": key.platform, "key": str(key)}
    if session_id:
        fields["session"] = session_id
    if turn_id:
        fields["turn_id"] = turn_id
    return fields


def log_info(log: logging.Logger, text: str, fields: dict[str, object]) -> None:
    """Log like `log.info`, but skip the lookup of the calling file and line, which is most of its cost."""
    level = {"levelno": logging.INFO, "levelname": "INFO"}
    log.handle(logging.makeLogRecord({"name": log.name, "msg": text, **level, **fields}))
