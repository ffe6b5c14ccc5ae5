"""What an endpoint says when it does not answer, and the error of ours that it means."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

import msgspec

from everthread.domain.errors import (
    ContextTooLong,
    ModelError,
    ModelRefused,
    ModelUnauthorized,
    ModelUnavailable,
    ModelUnknown,
    ModelWithoutTools,
)

SAID_CHARS_MAX = 200

# Not compiled until something has failed: that takes longer than reading the whole module.
_TOOLS = (
    r"(does not|doesn't|do not|not) support.{0,30}(tool|function)"
    r"|(tool|function)( use| calling| choice|s)?\b.{0,40}not (supported|enabled|available)"
    r"|support tool use|--enable-auto-tool-choice|tools param requires"
)
_CONTEXT = (
    r"context[ _](length|window|size|limit)|maximum (context|prompt)|(prompt|input|request) (is|was) too (long|large)"
    r"|input token.{0,40}exceed|too many input tokens|exceed_context_size"
)
_MODEL = (
    r"model_not_found|(unknown|invalid|unsupported|no such) model|not a valid model"
    r"|\bmodel\b.{0,100}(not found|not exist|not supported|is not valid|unknown)"
)
_AGAIN = frozenset({408, 409, 425, 429})
# Errors inside a stream come with a name where a response would have had a status.
_STATUS = {
    "authentication_error": 401,
    "context_length_exceeded": 400,
    "insufficient_quota": 429,
    "invalid_api_key": 401,
    "invalid_request_error": 400,
    "model_not_found": 404,
    "not_found_error": 404,
    "overloaded_error": 529,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "request_too_large": 413,
}


class ErrorObject(msgspec.Struct):
    """An error as nearly all endpoints write it."""

    message: str | None = None
    type: str | None = None
    code: str | int | None = None
    metadata: dict[str, object] | None = None
    """OpenRouter's: what the endpoint behind it said."""

    @property
    def said(self) -> str:
        raw = (self.metadata or {}).get("raw")
        kind = self.code if isinstance(self.code, str) else self.type
        return ": ".join(part for part in (kind, self.message, raw) if isinstance(part, str) and part)

    @property
    def status(self) -> int:
        if isinstance(self.code, int) and 400 <= self.code <= 599:
            return self.code
        return _STATUS.get(str(self.code)) or _STATUS.get(str(self.type)) or 500


class _Body(msgspec.Struct):
    error: ErrorObject | str | None = None
    message: str | None = None
    detail: str | None = None

    @property
    def said(self) -> str:
        if isinstance(self.error, ErrorObject):
            return self.error.said
        return self.error or self.message or self.detail or ""


# Gemini's compatible endpoint puts its errors into a list.
_BODY: msgspec.json.Decoder[_Body | list[_Body]] = msgspec.json.Decoder(_Body | list[_Body])


class Endpoint(msgspec.Struct, frozen=True):
    """How an endpoint is spoken of."""

    name: str
    """Host and port."""
    key_name: str
    """Where its key is set."""
    key: str = ""
    words: tuple[str, ...] = ()
    """Of its headers. They are kept out of everything that is said, as the key is."""

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, {self.key_name!r})"


def failure(endpoint: Endpoint, status: int, said: str, retry_after_s: float | None = None) -> ModelError:
    """The error that a status and the endpoint's own words amount to."""
    said = _shortened(said, filter(None, (endpoint.key, *endpoint.words)))
    what = f"{endpoint.name} answered {status}" + (f" ({said})" if said else "")
    if status in (401, 403):
        return _unauthorized(endpoint, status, said)
    # A server that can't do tools says so with all kinds of statuses.
    if status in (400, 404, 422, 500, 501) and _has(_TOOLS, said):
        return ModelWithoutTools(
            f"{what}: this model can't be given tools; choose another, or declare it without tools"
        )
    if status == 413 or status in (400, 422, 500) and _has(_CONTEXT, said):
        return ContextTooLong(f"{what}: more was sent than the model can read")
    if status == 404 or status in (400, 422) and _has(_MODEL, said):
        return ModelUnknown(f"{what}: check the model's name and the base URL")
    if status in _AGAIN or status >= 500:
        return ModelUnavailable(what, retry_after_s=retry_after_s)
    if 300 <= status <= 399:
        return ModelRefused(f"{what}: it sends us elsewhere; set the base URL to where the endpoint is")
    return ModelRefused(what)


def _has(pattern: str, said: str) -> bool:
    return re.search(pattern, said, re.IGNORECASE) is not None


def said_in(body: bytes) -> str:
    """The endpoint's own words in the body of a refusal; none if it is a page for people."""
    try:
        found = _BODY.decode(body)
    except (ValueError, RecursionError):
        text = body.decode(errors="replace").strip()
        return "" if text.startswith("<") else text
    return next((one.said for one in found), "") if isinstance(found, list) else found.said


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long the endpoint asks us to wait. A date counts from the endpoint's own `Date`: clocks differ."""
    for name, unit in (("Retry-After-Ms", 0.001), ("Retry-After", 1.0)):
        try:
            wait = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if math.isfinite(wait):
            return max(wait, 0.0)
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - only for an endpoint that is overrun

    try:
        until, now = (parsedate_to_datetime(headers.get(name, "")) for name in ("Retry-After", "Date"))
        return max((until - now).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None


def _unauthorized(endpoint: Endpoint, status: int, said: str) -> ModelUnauthorized:
    if not endpoint.key:
        return ModelUnauthorized(f"{endpoint.name} wants a key: set {endpoint.key_name}")
    # With 401, endpoints like to repeat parts of the key.
    why = f" ({said})" if said and status == 403 else ""
    return ModelUnauthorized(f"{endpoint.name} does not accept the key{why}: set {endpoint.key_name} to a valid one")


def _shortened(said: str, secrets: Iterable[str]) -> str:
    line = " ".join(said[: SAID_CHARS_MAX * 20].split())
    for secret in secrets:
        line = line.replace(secret, "***")
    return line if len(line) <= SAID_CHARS_MAX else line[: SAID_CHARS_MAX - 3] + "..."
