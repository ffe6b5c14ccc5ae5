"""Deliver the results of scheduled tasks to files and webhooks."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from everthread.config.checks import check_url, check_variable
from everthread.config.schema import Settings
from everthread.domain.backoff import Backoff
from everthread.domain.errors import BadSchedule, EverthreadError
from everthread.domain.schedule import RETRY_S_MAX, Occurrence, Target, TargetKind
from everthread.lifecycle.schedules import OccurrenceResult, ScheduleOutput

POST_S_MAX = 30.0
DELIVERY_ATTEMPTS_MAX = 12
"""About a day and a half, with the pauses between."""
RETRY = Backoff(first_s=10.0, max_s=RETRY_S_MAX, factor=4.0)
ADDRESS_CHARS_MAX = 2000
NAME_BYTES_MAX = 255


class OutputFailed(Exception):
    """A result could not be delivered."""

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


def file_at(settings: Settings, path: str) -> Path:
    """Resolve the path of a file that may be written. Raise `BadSchedule`."""
    folders = [folder.resolve() for folder in settings.file_folders]
    if not path.isprintable() or any(len(part.encode()) > NAME_BYTES_MAX for part in path.split("/")):
        raise BadSchedule(f"{path[:100]!r} is not a path: a name has at most {NAME_BYTES_MAX} visible characters")
    try:
        file = (folders[0] / Path(path).expanduser()).resolve()
        is_folder = file.is_dir()
    except (RuntimeError, OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadSchedule(f"{path[:100]!r} is not a path: {why}") from error
    if not any(folder in file.parents for folder in folders):
        raise BadSchedule(
            f"{file} is not under {' or '.join(map(str, folders))}; add its folder to schedule.folders in config.toml"
        )
    if is_folder:
        raise BadSchedule(f"{file} is a folder; give the name of a file in it")
    return file


async def deliver(settings: Settings, output: ScheduleOutput, again: bool, now: float, written: str = "") -> None:
    """Deliver the result of an occurrence to its file or webhook. Raise `OutputFailed`.

    `again` says that an earlier attempt may have succeeded. The result replaces `written`, which was written to the
    file before.
    """
    schedule, time, target = output.schedule, output.occurrence, output.schedule.target
    if target.kind is TargetKind.WEBHOOK:
        body = _encode(schedule.name, time, output.result)
        await _post(settings, target, body, f"{schedule.id}:{time.due_at:.0f}", now)
        return
    try:
        file = file_at(settings, target.to)
    except BadSchedule as error:
        raise OutputFailed(str(error), is_final=True) from error
    content, before = _with_line_break(output.result.text), _with_line_break(written) if written else b""
    try:
        if target.kind is TargetKind.APPEND:
            await asyncio.to_thread(_append, file, content, again, before)
        else:
            await asyncio.to_thread(_replace, file, content)
    except OSError as error:
        raise OutputFailed(f"{file}: {error.strerror}") from error


def _with_line_break(text: str) -> bytes:
    return (text if text.endswith("\n") else f"{text}\n").encode()


def _replace(file: Path, content: bytes) -> None:
    from everthread.config.edit import replace_file  # noqa: PLC0415 - only tasks with a file need it

    try:
        replace_file(file, content.decode())
    except EverthreadError as error:
        raise OutputFailed(str(error)) from error


def _append(file: Path, content: bytes, again: bool, before: bytes = b"") -> None:
    """Append the content; after a failed attempt, only if the file does not end with it.

    The content replaces `before`, with which the file must end.
    """
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(opened).st_size
        # First: the content may be the end of `before`.
        if before and _ends_with(opened, size, before):
            size -= len(before)
            os.ftruncate(opened, size)
        elif again and _ends_with(opened, size, content):
            return
        elif before:
            raise OutputFailed(f"{file} may contain forgotten words; edit or remove it", is_final=True)
        written = 0
        try:
            while written < len(content):
                written += os.write(opened, content[written:])
            os.fsync(opened)
        except OSError:
            # A full disk takes a part: remove it, so that the next attempt does not repeat it.
            if os.fstat(opened).st_size == size + written:
                os.ftruncate(opened, size)
            raise
    finally:
        os.close(opened)


def _ends_with(opened: int, size: int, content: bytes) -> bool:
    return os.pread(opened, len(content), max(size - len(content), 0)) == content


def _encode(name: str, time: Occurrence, outcome: OccurrenceResult) -> bytes:
    """Encode the JSON that a webhook receives."""
    result = {"schedule": name, "due_at": time.due_at, "session": outcome.session_id}
    return msgspec.json.encode(result | {"ok": not time.problem, "text": outcome.text, "problem": time.problem})


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Sign a body as the gateway's own webhooks expect it."""
    return f"sha256={hmac.new(secret.encode(), timestamp.encode() + b'.' + body, hashlib.sha256).hexdigest()}"


async def _post(settings: Settings, target: Target, body: bytes, delivery: str, now: float) -> None:
    secret = settings.secret(target.secret_env)
    if not secret:
        raise OutputFailed(f"{target.secret_env} is not set; put {target.secret_env}=... into {settings.env_path}")
    import aiohttp  # noqa: PLC0415 - only tasks with a webhook need it

    timestamp = str(int(now))
    headers = {
        "Content-Type": "application/json",
        "X-Timestamp": timestamp,
        "X-Signature": signature(secret, timestamp, body),
        "X-Delivery": delivery,
    }
    where = str(target)
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(POST_S_MAX)) as session,
            session.post(target.to, data=body, headers=headers, allow_redirects=False) as response,
        ):
            status = response.status
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise OutputFailed(f"{where}: {type(error).__name__}") from error
    if not 200 <= status < 300:
        # A client error is final, unless the server asks to retry.
        raise OutputFailed(f"{where} answered with {status}", is_final=400 <= status < 500 and status not in (408, 429))


def parse_target(text: str, secret_env: str, settings: Settings, chat: Callable[[str], str]) -> Target:
    """Parse `--to`: none, file:PATH, append:PATH, a URL, or else a chat. Raise `BadSchedule`."""
    kind, _, rest = text.partition(":")
    if kind in ("http", "https"):
        whole = len(text) <= ADDRESS_CHARS_MAX and text.isprintable() and " " not in text
        # Not quoted: it may contain a password.
        if not whole or check_url(text.partition("?")[0]):
            raise BadSchedule("not a webhook URL, or it contains a password; write one like https://example.com/hook")
        if not secret_env:
            raise BadSchedule("a webhook is signed: say with --secret-env which variable of .env has the secret")
        if problem := check_variable(secret_env):
            raise BadSchedule(f"--secret-env {problem}")
        return Target(TargetKind.WEBHOOK, text, secret_env)
    if secret_env:
        raise BadSchedule("--secret-env is for webhooks, whose address begins with https://")
    if text in ("", "none"):
        return Target()
    if kind in ("file", "append"):
        file_at(settings, rest)
        return Target(TargetKind(kind), rest)
    return Target(TargetKind.CHAT, chat(text))
