"""HTTP errors in the format of the OpenAI API. They reveal nothing internal."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from secrets import token_hex

import msgspec
from msgspec import Struct
from starlette.responses import Response

from everthread.domain import errors
from everthread.domain.text_format import REFERENCE_CHARS, to_a_guest

log = logging.getLogger("everthread.web")

WENT_WRONG = "something went wrong inside; it is in the log"


class Problem(Struct):
    message: str
    type: str
    code: str | None = None
    param: str | None = None


class ProblemBody(Struct):
    error: Problem


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
    def body(self) -> ProblemBody:
        return ProblemBody(Problem(self.message, _type(self.status), self.code))

    def response(self) -> Response:
        return Response(msgspec.json.encode(self.body), self.status, self.headers, "application/json")


def no_such_session() -> HttpError:
    """The same error for an unknown session, a forgotten one and another owner's."""
    return HttpError(404, "there is no such session; GET /api/sessions lists the ones there are", "session_not_found")


def to_http_error(error: Exception, *, guest: bool = True) -> HttpError:
    """Translate an error for the client. Details for the operator go to the log."""
    if isinstance(error, HttpError):
        return error
    told = str(error)
    if guest and isinstance(error, errors.ModelError):
        reference = token_hex(REFERENCE_CHARS // 2)
        log.warning("%s: a request was not answered: %s", reference, error)
        told = to_a_guest(error.plain, reference)
    for kind, status, code in _KNOWN:
        if isinstance(error, kind):
            return HttpError(status, told, code, _retry_after(error))
    for kind, status, message, code in _UNSAID:
        if isinstance(error, kind):
            log.warning("a request could not be answered: %s", error)
            return HttpError(status, message, code, _retry_after(error) or {"Retry-After": "5"})
    log.error("a request failed", exc_info=error)
    return HttpError(500, WENT_WRONG, "internal_error")


_KNOWN: tuple[tuple[type[Exception], int, str], ...] = (
    (errors.TooLarge, 413, "too_large"),
    (errors.TitleTaken, 409, "title_taken"),
    (errors.BadInput, 400, "bad_request"),
    (errors.NotFound, 404, "not_found"),
    (errors.Gone, 404, "not_found"),
    (errors.Busy, 409, "busy"),
    (errors.KeyMoved, 409, "left"),
    (errors.BudgetSpent, 429, "insufficient_quota"),
    (errors.TurnTooLong, 500, "turn_too_long"),
    (errors.ContextTooLong, 400, "context_length_exceeded"),
    (errors.ModelUnknown, 404, "model_not_found"),
    (errors.ModelWithoutTools, 400, "tools_not_supported"),
    (errors.ModelRefused, 400, "refused_by_model"),
    (errors.ModelUnavailable, 503, "model_unavailable"),
)

_UNSAID: tuple[tuple[type[Exception], int, str, str], ...] = (
    # These name files, variables and addresses.
    (errors.StoreError, 503, "nothing can be stored now; try again later", "store_unavailable"),
    (errors.ModelUnauthorized, 502, "the model's endpoint does not take our key", "model_unauthorized"),
    (errors.BadConfig, 503, "no model is set up here", "not_configured"),
)


def _retry_after(error: Exception) -> dict[str, str]:
    wait_s = error.retry_after_s if isinstance(error, errors.ModelUnavailable) else None
    return {"Retry-After": str(int(wait_s + 1))} if wait_s is not None else {}


def _type(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 404:
            return "not_found_error"
        case 429:
            return "rate_limit_error"
        case _:
            return "invalid_request_error" if status < 500 else "server_error"
