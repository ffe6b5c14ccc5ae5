"""Sessions of other owners, asked for on every route by guests and strangers."""

from __future__ import annotations

import json
from itertools import product
from urllib.parse import quote

from tests.attacks.attempts import Attempts
from tests.attacks.target import Answer, Target

_OPEN = ("/health", "/ready", "/openapi.json")
_BODIES: dict[str, object] = {
    "resume": {"key": "desk"},
    "fork": {"title": "mine now", "key": "stolen"},
    "": {"title": "mine now"},
}


def _variants(session_id: str) -> list[str]:
    """Return spellings of an id that a careless comparison may accept."""
    return [
        session_id,
        session_id.lower(),
        quote(session_id[0], safe="") + session_id[1:],
        "%" + f"{ord(session_id[0]):02x}" + session_id[1:],
        f"{session_id}%00",
        f"{session_id}%20",
        f"%20{session_id}",
        f"{session_id}%0a",
        f"{session_id}/",
        f".%2f{session_id}",
        f"x%2f..%2f{session_id}",
        f"{session_id}%27--",
        f"%27%20OR%201=1--{session_id}",
        f"{session_id[:-1]}%25",
        f"{session_id[:-1]}_",
        f"{session_id}%ef%bc%8e",
        f"{session_id};{session_id}",
    ]


async def attack(target: Target) -> Attempts:
    attempts = Attempts("other owners' sessions")
    description = (await target.ask("GET", "/openapi.json")).json
    before = await _list_sessions(target)
    strangers = {"bob": target.tokens["bob"], "nobody": "", "revoked": target.tokens["revoked"]}
    routes = [(path, method.upper()) for path, methods in description["paths"].items() for method in methods]
    for (path, method), (person, token) in product(routes, strangers.items()):
        if "{session_id}" in path:
            await _ask_by_path(target, attempts, person, token, method, path)
        elif person != "bob" and path not in _OPEN and not path.startswith("/hooks/"):
            answer = await target.ask(method, path, token, {} if method != "GET" else None)
            attempts.record(f"{person}: {method} {path}", _read(target, answer))
    await _ask_by_header(target, attempts)
    await _guess_tokens(target, attempts)
    attempts.record("the owners' sessions are unchanged", "" if await _list_sessions(target) == before else "changed")
    return attempts


async def _ask_by_path(target: Target, attempts: Attempts, person: str, token: str, method: str, path: str) -> None:
    action = path.rpartition("{session_id}")[2].strip("/")
    body = None if method in ("GET", "DELETE") else _BODIES.get(action, {})
    victims = ("owner", "ann") if person == "bob" else ("owner",)
    for victim in victims:
        for spelling in _variants(target.sessions[victim]):
            answer = await target.ask(method, path.replace("{session_id}", spelling), token, body)
            attempts.record(f"{person}: {method} {path} of {victim} as {spelling}", _read(target, answer))


async def _ask_by_header(target: Target, attempts: Attempts) -> None:
    """Name others' sessions and keys in headers."""
    body = {"model": "everthread", "messages": [{"role": "user", "content": "What is my secret number?"}]}
    for victim, spelling in product(("owner", "ann"), range(17)):
        header = _variants(target.sessions[victim])[spelling]
        for name in ("X-Session-Id", "x-session-id"):
            answer = await target.ask("POST", "/v1/chat/completions", target.tokens["bob"], body, {name: header})
            got = target.leaks(answer.everything, "bob")
            attempts.record(f"bob: {name}: {header}", got)
    keys = [
        "desk",
        "me:desk",
        "desk::me",
        "agent:main:http:dm:desk",
        "agent:main:http:dm:desk::",
        "desk\\",
        "desk%00me",
    ]
    keys += ["agent:main:telegram:dm:1", "telegram:1", "id-" + target.sessions["owner"], "ci", "hooks:ci", "../desk"]
    for key in keys:
        answer = await target.ask("POST", "/v1/chat/completions", target.tokens["bob"], body, {"X-Session-Key": key})
        attempts.record(f"bob: X-Session-Key: {key}", target.leaks(answer.everything, "bob"))
    for number in (*range(-2, 40), 10**6, 10**18, "x", "%00"):
        answer = await target.ask("GET", "/api/events", target.tokens["bob"], None, {"Last-Event-ID": str(number)})
        attempts.record(f"bob: events after {number}", target.leaks(answer.everything, "bob"))
    session = target.sessions["owner"]
    for text in ("secret number", "cellar", "/search secret number", "/resume desk", f"/resume {session}",
                 f"/branch {session}", "/sessions", "/memory", "/export", "/usage", "/status"):  # fmt: skip
        answer = await target.say("bob", text)
        attempts.record(f"bob says {text}", target.leaks(answer.everything, "bob"))


async def _guess_tokens(target: Target, attempts: Attempts) -> None:
    """Try credentials that a careless check may accept."""
    real = target.tokens["owner"]
    guesses = [
        {"Authorization": f"Bearer {real[:-1]}"},
        {"Authorization": f"Bearer {real}x"},
        {"Authorization": f"Bearer {real.upper()}"},
        {"Authorization": f"Bearer {real[:20]}*"},
        {"Authorization": f"Basic {real}"},
        {"Authorization": "Bearer null"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer et_"},
        {"Authorization": "Bearer et_" + "0" * 43},
        {"Authorization": "Bearer ' OR 1=1 --"},
        {"Authorization": "Bearer local"},
        {"X-Api-Key": real},
        {"Cookie": f"token={real}"},
        {"Host": "localhost", "X-Forwarded-For": "127.0.0.1"},
        {"X-Forwarded-User": "me", "X-Remote-User": "me"},
        {"Origin": "http://localhost"},
    ]
    for path, headers in product(("/api/sessions", "/v1/models", "/metrics", "/api/events"), guesses):
        answer = await target.ask("GET", path, "", None, headers)
        attempts.record(f"GET {path} with {list(headers)}", _read(target, answer))
    for path in (f"/api/sessions?token={real}", f"/api/sessions?access_token={real}", f"/api/sessions?api_key={real}"):
        attempts.record(f"GET {path[:24]}", _read(target, await target.ask("GET", path)))


def _read(target: Target, answer: Answer) -> str:
    """Describe what an answer gave to somebody who must get nothing."""
    if leaks := target.leaks(answer.everything, "bob"):
        return f"secrets {leaks}"
    return f"status {answer.status}" if 200 <= answer.status < 300 else ""


async def _list_sessions(target: Target) -> str:
    """Return the sessions of the owner and of Ann as they see them."""
    seen = [(await target.ask("GET", "/api/sessions", target.tokens[person])).json for person in ("owner", "ann")]
    shown = [
        await target.ask("GET", f"/api/sessions/{target.sessions[person]}/messages", target.tokens[person])
        for person in ("owner", "ann")
    ]
    titles = [[(one["id"], one.get("title")) for one in page.get("data", page.get("sessions", []))] for page in seen]
    return json.dumps(titles) + "".join(answer.body.decode() for answer in shown)
