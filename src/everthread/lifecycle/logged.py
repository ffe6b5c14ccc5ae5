"""The lines that boundaries and turns leave in the log file: ids only, and no words of anybody's."""

from __future__ import annotations

import logging

from everthread.domain.model import SessionKey
from everthread.lifecycle.crossing import Crossing
from everthread.lifecycle.turn import Committed

log = logging.getLogger("everthread.lifecycle")


def log_turn(committed: Committed, turn_id: str) -> None:
    if not log.isEnabledFor(logging.INFO):
        return
    ids = {"session": committed.ref.session_id, "turn": committed.number, "turn_id": turn_id}
    _line("turn committed", {**ids, "status": committed.status.value, **_place(committed.ref.key)})


def log_crossing(crossed: Crossing) -> None:
    if not log.isEnabledFor(logging.INFO):
        return
    session = crossed.ref.session_id if crossed.ref is not None else crossed.left
    how = "refused" if crossed.refusal is not None else "crossed"
    where = _place(crossed.ref.key) if crossed.ref is not None else {}
    _line(f"{crossed.kind}: {how}", {"session": session, "boundary": crossed.kind, **where})


def _line(text: str, fields: dict[str, object]) -> None:
    """As `log.info`, without looking up on which line of which file it was called: that is most of its cost."""
    level = {"levelno": logging.INFO, "levelname": "INFO"}
    log.handle(logging.makeLogRecord({"name": log.name, "msg": text, **level, **fields}))


def _place(key: SessionKey) -> dict[str, str]:
    return {"platform": key.platform, "key": str(key)}
