"""Translate error responses of an endpoint into model errors."""

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

MESSAGE_CHARS_MAX = 200

# Compiled only after a failure: compiling takes longer than importing this module.
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
_RETRYABLE = frozenset({408, 409, 425, 429})
# Errors inside a stream have a name in place of a status.
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
    """Error format of nearly all endpoints."""

    message: str | None = None
    type: str | None = None
    code: str | int | None = None
    metadata: dict[str, object] | None = None
    """OpenRouter: the message of the upstream endpoint."""

    @property
    def text(self) -> str:
        raw = (self.metadata or {}).get("raw")
        kind = self.code if isinstance(self.code, str) else self.type
        return ": ".join(part for part in (kind, self.message, raw) if isinstance(part, str) and part)

    @property
    def status(self) -> int:
        if isinstance(self.code, int) and 400 <= self.code <= 599:
            return self.code
        return _STATUS.get(str(self.code)) or _STATUS.get(str(self.type)) or 500


class _ErrorBody(msgspec.Struct):
    error: ErrorObject | str | None = None
    message: str | None = None
    detail: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.error, ErrorObject):
            return self.error.text
        return self.error or self.message or self.detail or ""


# Gemini's compatible endpoint wraps errors in a list.
_BODY: msgspec.json.Decoder[_ErrorBody | list[_ErrorBody]] = msgspec.json.Decoder(_ErrorBody | list[_ErrorBody])


class EndpointInfo(msgspec.Struct, frozen=True):
    """Name and secrets of an endpoint, for error messages."""

    name: str
    """Host and port."""
    key_name: str
    """Setting or environment variable of its key."""
    key: str = ""
    secrets: tuple[str, ...] = ()
    """Values of its headers, kept out of messages like the key."""

    def __repr__(self) -> str:
        return f"EndpointInfo({self.name!r}, {self.key_name!r})"


def model_error(endpoint: EndpointInfo, status: int, text: str, retry_after_s: float | None = None) -> ModelError:
    """Choose the error for a status and the endpoint's message."""
    text = _shorten(text, filter(None, (endpoint.key, *endpoint.secrets)))
    summary = f"{endpoint.name} answered {status}" + (f" ({text})" if text else "")
    if status in (401, 403):
        return _unauthorized(endpoint, status, text)
    # Servers report missing tool support with various statuses.
    if status in (400, 404, 422, 500, 501) and _has(_TOOLS, text):
        return ModelWithoutTools(
            f"{summary}: this model does not support tools; choose another, or set tools = false for its provider"
        )
    if status == 413 or status in (400, 422, 500) and _has(_CONTEXT, text):
        return ContextTooLong(f"{summary}: the request is longer than the model's context")
    if status == 404 or status in (400, 422) and _has(_MODEL, text):
        return ModelUnknown(f"{summary}: check the model's name and the base URL")
    if status in _RETRYABLE or status >= 500:
        return ModelUnavailable(summary, retry_after_s=retry_after_s)
    if 300 <= status <= 399:
        return ModelRefused(f"{summary}: it redirects; set the base URL to the endpoint's new address")
    return ModelRefused(summary)


def _has(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None


def error_message_in(body: bytes) -> str:
    """Return the message in the body of an error response; empty for an HTML page."""
    try:
        body_or_list = _BODY.decode(body)
    except (ValueError, RecursionError):
        text = body.decode(errors="replace").strip()
        return "" if text.startswith("<") else text
    return next((one.text for one in body_or_list), "") if isinstance(body_or_list, list) else body_or_list.text


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the requested delay. A date is relative to the endpoint's `Date` header, since clocks differ."""
    for name, unit in (("Retry-After-Ms", 0.001), ("Retry-After", 1.0)):
        try:
            wait = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if math.isfinite(wait):
            return max(wait, 0.0)
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - rarely needed

    try:
        until, now = (parsedate_to_datetime(headers.get(name, "")) for name in ("Retry-After", "Date"))
        return max((until - now).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None


def _unauthorized(endpoint: EndpointInfo, status: int, text: str) -> ModelUnauthorized:
    if not endpoint.key:
        return ModelUnauthorized(f"{endpoint.name} needs a key: set {endpoint.key_name}")
    # With 401, some endpoints quote parts of the key.
    why = f" ({text})" if text and status == 403 else ""
    return ModelUnauthorized(f"{endpoint.name} does not accept the key{why}: set {endpoint.key_name} to a valid one")


def _shorten(text: str, secrets: Iterable[str]) -> str:
    line = " ".join(text[: MESSAGE_CHARS_MAX * 20].split())
    for secret in secrets:
        line = line.replace(secret, "***")
    return line if len(line) <= MESSAGE_CHARS_MAX else line[: MESSAGE_CHARS_MAX - 3] + "..."
