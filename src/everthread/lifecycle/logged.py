"""The lines that boundaries and turns leave in the log file: ids only, and no words of anybody's."""

from __future__ import annotations

import logging

from everthread.domain.model import SessionKey
from everthread.lifecycle.crossing import Crossing

log = logging.getLogger("everthread.lifecycle")


def log_line(text: str, fields: dict[str, object]) -> None:
    """As `log.info`, without looking up on which line of which file it was called: that is most of its cost."""
    if log.isEnabledFor(logging.INFO):
        level = {"levelno": logging.INFO, "levelname": "INFO"}
        log.handle(logging.makeLogRecord({"name": log.name, "msg": text, **level, **fields}))


def log_crossing(crossed: Crossing) -> None:
    session = crossed.ref.session_id if crossed.ref is not None else crossed.left
    how = "refused" if crossed.refusal is not None else "crossed"
    where = place(crossed.ref.key) if crossed.ref is not None else {}
    log_line(f"{crossed.kind}: {how}", {"session": session, "boundary": crossed.kind, **where})


def place(key: SessionKey) -> dict[str, str]:
    return {"platform": key.platform, "key": str(key)}
