"""Hand-made homes of Hermes Agent, for rare rows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

START = 1_700_000_000.0

_SESSIONS = """id TEXT PRIMARY KEY, source TEXT NOT NULL, user_id TEXT, model TEXT, model_config TEXT,
    system_prompt TEXT, parent_session_id TEXT, started_at REAL NOT NULL, ended_at REAL, end_reason TEXT,
    message_count INTEGER DEFAULT 0, title TEXT, archived INTEGER NOT NULL DEFAULT 0"""
_SESSIONS_22 = """, session_key TEXT, chat_id TEXT, chat_type TEXT, thread_id TEXT, display_name TEXT, origin_json TEXT,
    expiry_finalized INTEGER DEFAULT 0"""
_MESSAGES = """id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, role TEXT NOT NULL, content TEXT,
    tool_call_id TEXT, tool_calls TEXT, tool_name TEXT, timestamp REAL NOT NULL, token_count INTEGER,
    finish_reason TEXT, reasoning TEXT, reasoning_content TEXT, reasoning_details TEXT,
    active INTEGER NOT NULL DEFAULT 1"""
_MESSAGES_22 = ", platform_message_id TEXT, observed INTEGER DEFAULT 0, compacted INTEGER NOT NULL DEFAULT 0"


class HermesHome:
    """A home at `path`, with a given schema version of the database."""

    def __init__(self, path: Path, schema: int = 22) -> None:
        self.path = path
        self.new = schema > 16
        path.mkdir(parents=True)
        self.database = sqlite3.connect(path / "state.db", isolation_level=None)
        self.database.executescript(
            f"""PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; PRAGMA synchronous = OFF;
            CREATE TABLE schema_version (version INTEGER NOT NULL); INSERT INTO schema_version VALUES ({schema});
            CREATE TABLE sessions ({_SESSIONS}{_SESSIONS_22 if self.new else ""});
            CREATE TABLE messages ({_MESSAGES}{_MESSAGES_22 if self.new else ""});"""
        )
        if self.new:
            self.database.execute(
                "CREATE TABLE gateway_routing (scope TEXT, session_key TEXT, entry_json TEXT, updated_at REAL)"
            )

    def __enter__(self) -> HermesHome:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()

    def session(self, session_id: str, *, at: float = START, source: str = "cli", **more: Any) -> str:
        if isinstance(config := more.get("model_config"), dict):
            more["model_config"] = json.dumps(config)
        self._insert("sessions", {"id": session_id, "source": source, "started_at": at} | more)
        return session_id

    def say(self, session_id: str, role: str, content: Any, *, at: float = START + 1, **more: Any) -> None:
        if role == "assistant" and "tool_calls" not in more:
            more.setdefault("finish_reason", "stop")
        self._insert("messages", {"session_id": session_id, "role": role, "content": content, "timestamp": at} | more)

    def talk(self, session_id: str, words: Iterable[str], *, at: float = START + 1, **more: Any) -> None:
        """Add a turn with an answer for each of the words."""
        for number, word in enumerate(words):
            self.say(session_id, "user", word, at=at + 2 * number, **more)
            self.say(session_id, "assistant", f"You said: {word}", at=at + 2 * number + 1, **more)

    def route(self, key: str, session_id: str, **entry: Any) -> None:
        """Add a route to the table, or to the file that older versions use."""
        entry = {"session_key": key, "session_id": session_id} | entry
        if self.new:
            self._insert(
                "gateway_routing",
                {"scope": "", "session_key": key, "entry_json": json.dumps(entry), "updated_at": START},
            )
            return
        self.put_json("sessions/sessions.json", {key: entry})

    def put_json(self, name: str, more: dict[str, Any]) -> None:
        file = self.path / name
        settings = json.loads(file.read_text()) if file.exists() else {}
        self.put(name, json.dumps(settings | more))

    def put(self, name: str, text: str) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def _insert(self, table: str, row: dict[str, Any]) -> None:
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        self.database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row.values()))
