"""The table of routes, and the dispatch of a request: authentication, session, errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from everthread.domain.errors import ModelError
from everthread.log_context import enter_log_scope
from everthread.web import completions, events, metrics, openapi, schemas, sessions, webhooks
from everthread.web.auth import authenticate
from everthread.web.body_budget import HeldBody
from everthread.web.errors import HttpError, to_http_error
from everthread.web.openapi import AuthMode, Operation, Parameter
from everthread.web.ownership import ID_HEADER, KEY_HEADER, find_owned_session
from everthread.web.request import ApiCall, WebState
from everthread.web.responses import EventStream

_SSE = "text/event-stream"
_SESSION = "/api/sessions/{session_id}"
_PAGE = (
    Parameter("limit", "query", "Length of the page.", {"type": "integer", "minimum": 1}),
    Parameter("cursor", "query", "`next_cursor` of the page before."),
)
_CHAT_HEADERS = (
    Parameter(KEY_HEADER, "header", "A conversation by a name of your choice."),
    Parameter(ID_HEADER, "header", "A conversation by its session."),
    Parameter("Idempotency-Key", "header", "Requests with the same key are handled once."),
)
_CONTINUED = sessions.SessionContinued
_EVENTS_HEADERS = (Parameter("Last-Event-ID", "header", "The id of the event after which to continue."),)
_HOOK_HEADERS = (
    Parameter("X-Signature", "header", "sha256= and the HMAC of timestamp, dot, body."),
    Parameter("X-Timestamp", "header", "Seconds since 1970."),
    Parameter("X-Hub-Signature-256", "header", "GitHub's signature, for webhooks with that scheme."),
)

OPERATIONS = (
    Operation("GET", "/v1/models", completions.list_models, {200: completions.ModelList}),
    Operation(
        "POST",
        "/v1/chat/completions",
        completions.chat,
        {200: schemas.Completion},
        schemas.ChatRequest,
        _CHAT_HEADERS,
        stream_type=_SSE,
        errors=(404, 409, 413, 429, 502, 503),
    ),
    Operation("GET", "/api/sessions", sessions.list_sessions, {200: sessions.SessionPage}, parameters=_PAGE),
    Operation("GET", _SESSION, sessions.show_session, {200: sessions.SessionView}),
    Operation(
        "PATCH",
        _SESSION,
        sessions.rename_session,
        {200: sessions.SessionView},
        sessions.RenameRequest,
        counted=True,
        errors=(409, 413),
    ),
    Operation("DELETE", _SESSION, sessions.delete_session, {200: sessions.SessionDeleted}, counted=True),
    Operation("GET", f"{_SESSION}/messages", sessions.list_messages, {200: sessions.MessagePage}, parameters=_PAGE),
    Operation(
        "POST",
        f"{_SESSION}/fork",
        sessions.fork_session,
        {201: _CONTINUED},
        sessions.ForkRequest,
        counted=True,
        errors=(409, 413),
    ),
    Operation(
        "POST",
        f"{_SESSION}/resume",
        sessions.resume_session,
        {200: _CONTINUED},
        sessions.ResumeRequest,
        counted=True,
        errors=(409, 413),
    ),
    Operation("GET", f"{_SESSION}/export", sessions.export_session, {200: "application/x-ndjson"}, counted=True),
    Operation("GET", "/api/events", events.follow, {200: _SSE}, parameters=_EVENTS_HEADERS, errors=(429,)),
    Operation(
        "POST",
        "/hooks/{name}",
        webhooks.receive,
        {202: webhooks.WebhookAccepted},
        {},
        _HOOK_HEADERS,
        AuthMode.SIGNED,
        errors=(401, 411),
    ),
    Operation("GET", "/health", metrics.health, {200: metrics.Health}, auth=AuthMode.OPEN),
    Operation("GET", "/ready", metrics.ready, {200: metrics.Health}, auth=AuthMode.OPEN),
    Operation("GET", "/metrics", metrics.metrics, {200: "text/plain"}, errors=(403,)),
    Operation("GET", "/openapi.json", openapi.show_description, {200: "application/json"}, auth=AuthMode.OPEN),
)


def make_app(state: WebState) -> Starlette:
    paths: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = operation
    routes = [Route(path, _endpoint(state, methods), methods=list(methods)) for path, methods in paths.items()]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _not_served})
    app.router.redirect_slashes = False
    app.state.description = openapi.describe(OPERATIONS)
    return app


def _endpoint(state: WebState, methods: dict[str, Operation]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        operation = methods["GET" if request.method == "HEAD" else request.method]
        held = HeldBody(state.bodies, state.address_of(request))
        release_at_end = False
        try:
            response = await _dispatch(ApiCall(state, request, held), operation)
            if isinstance(response, EventStream):
                if request.method == "HEAD":
                    response = await response.without_body()
                else:
                    response.release_at_end(held.release)
                    release_at_end = True
        except Exception as error:  # noqa: BLE001 - the last handler: translated for the client
            response = to_http_error(error).response()
        finally:
            if not release_at_end:
                held.release()
        state.requests[response.status_code] = state.requests.get(response.status_code, 0) + 1
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    return answer


async def _dispatch(call: ApiCall, operation: Operation) -> Response:
    try:
        return await _handle(call, operation)
    except HttpError as error:
        if error.status != HTTPStatus.UNAUTHORIZED:
            raise
        # Without the traceback, whose frames hold the body: the answer may be slowed down.
        failed = error.with_traceback(None)
    call.held.release()
    await call.state.auth_failures.record(call.client_address, failed.reason)
    raise failed


async def _handle(call: ApiCall, operation: Operation) -> Response:
    # Every route needs a token, except those that the table declares otherwise.
    if operation.auth not in (AuthMode.OPEN, AuthMode.SIGNED):
        call = replace(call, authenticated=await authenticate(call))
        call.held.count_for(call.caller.owner)
        enter_log_scope(owner=call.caller.owner)
        if call.caller.read_only and not operation.only_reads:
            raise HttpError(403, "This token is read-only: use GET routes, or another token.", "read_only_token")
    if operation.counted:
        call.check_limits()
    if (session_id := call.request.path_params.get("session_id")) is not None:
        call = replace(call, path_session=await find_owned_session(call.gateway, session_id, call.caller.owner))
    try:
        response = await operation.handler(call)
    except ModelError as error:
        raise to_http_error(error, is_guest=call.is_guest) from error
    if isinstance(response, EventStream):
        response.end_unless(call.may_stay)
    return response


async def _not_served(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = {404: "Unknown path. GET /openapi.json lists the routes.", 405: "This path does not support this method."}
    return HttpError(error.status_code, known.get(error.status_code, error.detail), headers=error.headers).response()
