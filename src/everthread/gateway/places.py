"""Where something happened, as a line of the log says it."""

from __future__ import annotations

from everthread.domain.model import SessionKey


def at(key: SessionKey, session_id: str = "", turn_id: str = "") -> dict[str, str]:
    """For `extra`: the platform, the key, and the ids that are known."""
    where = {"platform": key.platform, "key": str(key)}
    if session_id:
        where["session"] = session_id
    if turn_id:
        where["turn_id"] = turn_id
    return where
