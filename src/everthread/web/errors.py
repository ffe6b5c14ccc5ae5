"""HTTP errors in the format of the OpenAI API. They reveal nothing internal."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from secrets import token_hex

from msgspec import Struct
from starlette.responses import Response

from everthread.domain import errors
from everthread.domain.text_format import REFERENCE_CHARS, guest_error
from everthread.web.responses import json_response

log = logging.getLogger("everthread.web")

WENT_WRONG = "Internal error. The log of the gateway has the details."


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ErrorDetail(Struct):
    message: str
    type: str
    code: str | None = None
    param: str | None = None


class ErrorBody(Struct):
    error: ErrorDetail


class HttpError(Exception):
    """Answer the request with this status and message."""

    def __init__(
        self, status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.headers = dict(headers or {})

    @property
    def reason(self) -> str:
        """The reason for the log. It quotes nothing from the request."""
        return (self.code or "refused").replace("_", " ")

    @property
    def body(self) -> ErrorBody:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return ErrorBody(ErrorDetail(self.message, kind, self.code))

    def response(self) -> Response:
        return json_response(self.body, self.status, self.headers)


class AuthenticationFailed(HttpError):
    """Answer 401 to a request without a valid token."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(401, message, "invalid_api_key", {"WWW-Authenticate": "Bearer"})
        self._reason = reason

    @property
    def reason(self) -> str:
        return self._reason


def no_such_session() -> HttpError:
    """The same error for an unknown session, a forgotten one and another owner's."""
    return HttpError(404, "There is no such session. GET /api/sessions lists yours.", "session_not_found")


def stopping(headers: Mapping[str, str] | None = None) -> HttpError:
    text = "The gateway is stopping. Stored messages are answered after its restart; send others again."
    return HttpError(503, text, "stopping", {"Retry-After": "5", **(headers or {})})


def to_http_error(error: Exception, *, is_guest: bool = True) -> HttpError:
    """Translate an error for the client. Details for the operator go to the log."""
    if isinstance(error, HttpError):
        return error
    message = str(error)
    if is_guest and isinstance(error, errors.ModelError):
        reference = token_hex(REFERENCE_CHARS // 2)
        log.warning("a request was not answered: %s", error, extra={"reference": reference})
        message = guest_error(error.plain, reference)
    for kind, status, code in _KNOWN:
        if isinstance(error, kind):
            if code not in _CONFIDENTIAL:
                return HttpError(status, message, code, _retry_after(error))
            log.warning("a request could not be answered: %s", error)
            return HttpError(status, _CONFIDENTIAL[code], code, {"Retry-After": "5"})
    log.error("a request failed", exc_info=error)
    return HttpError(500, WENT_WRONG, "internal_error")


_KNOWN: tuple[tuple[type[Exception], int, str], ...] = (
    (errors.TooLarge, 413, "too_large"),
    (errors.TitleTaken, 409, "title_taken"),
    (errors.BadInput, 400, "bad_request"),
    (errors.NotFound, 404, "not_found"),
    (errors.Erased, 404, "not_found"),
    (errors.Busy, 409, "busy"),
    (errors.KeyMoved, 409, "left"),
    (errors.BudgetExceeded, 429, "insufficient_quota"),
    (errors.StorageQuotaReached, 413, "quota_reached"),
    (errors.QuotaReached, 429, "quota_reached"),
    (errors.TurnTooLong, 500, "turn_too_long"),
    (errors.ContextTooLong, 400, "context_length_exceeded"),
    (errors.ModelUnknown, 404, "model_not_found"),
    (errors.ModelWithoutTools, 400, "tools_not_supported"),
    (errors.ModelRefused, 400, "refused_by_model"),
    (errors.ModelUnavailable, 503, "model_unavailable"),
    (errors.ModelUnauthorized, 502, "model_unauthorized"),
    (errors.StoreError, 503, "store_unavailable"),
    (errors.BadConfig, 503, "not_configured"),
)

_CONFIDENTIAL = {
    # Their texts name files, variables and addresses.
    "store_unavailable": "The store is unavailable. Try again later.",
    "model_unauthorized": "The model endpoint rejects the gateway's key.",
    "not_configured": "No model is configured here.",
}


def _retry_after(error: Exception) -> dict[str, str]:
    wait_s = error.retry_after_s if isinstance(error, errors.ModelUnavailable) else None
    return {"Retry-After": str(int(wait_s + 1))} if wait_s is not None else {}
