"""Unsigned, altered, late and repeated webhooks."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Mapping

from tests.attacks.attempts import Attempts
from tests.attacks.target import Target

BODY = b'{"build": {"id": 7, "state": "red"}}'


def sign(secret: str, content: bytes, algorithm: str = "sha256") -> str:
    return f"{algorithm}={hmac.new(secret.encode(), content, algorithm).hexdigest()}"


def signed_headers(secret: str, body: bytes, at: float) -> dict[str, str]:
    """Return the headers of our own scheme."""
    stamp = str(int(at))
    return {"X-Timestamp": stamp, "X-Signature": sign(secret, stamp.encode() + b"." + body)}


async def attack(target: Target) -> Attempts:
    attempts = Attempts("webhooks")
    secret, now = target.secrets["env"], time.time()
    good = signed_headers(secret, BODY, now)
    for name, headers, body in _forgeries(secret, good, now):
        for hook in ("ci", "forge", "unknown"):
            answer = await target.ask("POST", f"/hooks/{hook}", "", body, headers)
            attempts.record(f"{hook}: {name}", str(answer.status) if 200 <= answer.status < 300 else "")
    await _compare_unknown(target, attempts)
    await _repeat(target, attempts, secret)
    return attempts


def _forgeries(secret: str, good: Mapping[str, str], now: float) -> list[tuple[str, dict[str, str], bytes]]:
    stamp, signature = good["X-Timestamp"], good["X-Signature"]
    found: list[tuple[str, dict[str, str], bytes]] = [
        ("no signature", {}, BODY),
        ("empty signature", {"X-Signature": "", "X-Timestamp": stamp}, BODY),
        ("prefix only", {"X-Signature": "sha256=", "X-Timestamp": stamp}, BODY),
        ("signature of the body alone", {"X-Signature": sign(secret, BODY), "X-Timestamp": stamp}, BODY),
        ("our scheme as github's", {"X-Hub-Signature-256": signature}, BODY),
        ("github's scheme with our secret", {"X-Hub-Signature-256": sign(secret, BODY)}, BODY + b" "),
        ("sha1", {"X-Signature": sign(secret, stamp.encode() + b"." + BODY, "sha1"), "X-Timestamp": stamp}, BODY),
        ("no timestamp", {"X-Signature": signature}, BODY),
        ("wrong secret", signed_headers("guess", BODY, now), BODY),
        ("empty secret", signed_headers("", BODY, now), BODY),
        ("token instead of signature", {"Authorization": "Bearer et_" + "0" * 43}, BODY),
        ("no scheme in signature", {**good, "X-Signature": signature.removeprefix("sha256=")}, BODY),
    ]
    for seconds in (301, 400, 3600, 86_400, 31_536_000, -900, -3600, -86_400, 10**9):
        found.append((f"{seconds} s old", signed_headers(secret, BODY, now - seconds), BODY))
    for changed in (b"", BODY + b" ", BODY[:-1], BODY.replace(b"7", b"8"), BODY.upper(), BODY[::-1], b"\x00" + BODY):
        found.append((f"body changed to {changed[:12]!r}", dict(good), changed))
    for place in range(7, 71, 2):
        letter = "0" if signature[place] != "0" else "1"
        changed_signature = signature[:place] + letter + signature[place + 1 :]
        found.append((f"digit {place} changed", {**good, "X-Signature": changed_signature}, BODY))
    for other in ("1e9", "0x10", "٣", "+1", "1 ", "1.0", "9" * 13, "-1", ""):
        headers = {"X-Timestamp": other.encode("ascii", "ignore").decode() or "x", "X-Signature": signature}
        found.append((f"timestamp {other!r}", headers, BODY))
    return found


async def _compare_unknown(target: Target, attempts: Attempts) -> None:
    """Tell a hook that exists from one that does not."""
    bad = {
        "X-Timestamp": str(int(time.time())),
        "X-Signature": "sha256=" + "0" * 64,
        "X-Hub-Signature-256": "sha256=" + "0" * 64,
    }
    for headers in ({}, bad, {"X-Signature": "sha256=" + "0" * 64}, {"X-Hub-Signature-256": "sha256=" + "0" * 64}):
        known = [await target.ask("POST", f"/hooks/{hook}", "", BODY, headers) for hook in ("ci", "unknown")]
        same = (known[0].status, known[0].body) == (known[1].status, known[1].body)
        attempts.record(
            f"an unknown hook differs with {list(headers)}", "" if same else f"{known[0].status} and {known[1].status}"
        )


async def _repeat(target: Target, attempts: Attempts, secret: str) -> None:
    """Replay a delivery under other ids, and at another hook."""
    body = json.dumps({"build": {"id": 1, "state": "green"}}).encode()
    headers = signed_headers(secret, body, time.time())
    first = await target.ask("POST", "/hooks/ci", "", body, headers)
    assert first.status == 202, f"a signed webhook is refused: {first}"
    for number in range(10):
        more = {"X-Delivery": str(number), "X-GitHub-Delivery": str(number), "Idempotency-Key": str(number)}
        answer = await target.ask("POST", "/hooks/ci", "", body, {**headers, **more})
        attempts.record(f"replay {number}", "accepted as new" if answer.status == 202 and answer.json["new"] else "")
    hub = {"X-Hub-Signature-256": sign(secret + "-forge", body)}
    await target.ask("POST", "/hooks/forge", "", body, hub)
    for number in range(10):
        answer = await target.ask("POST", "/hooks/forge", "", body, {**hub, "X-GitHub-Delivery": str(number)})
        attempts.record(
            f"github replay {number}", "accepted as new" if answer.status == 202 and answer.json["new"] else ""
        )
    for hook, these in (("forge", headers), ("ci", hub)):
        answer = await target.ask("POST", f"/hooks/{hook}", "", body, these)
        attempts.record(f"delivery replayed at {hook}", "accepted" if answer.status == 202 else "")
