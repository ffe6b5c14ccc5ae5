"""The table of routes, and the dispatch of a request: authentication, session, errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from everthread.domain.errors import ModelError
from everthread.web import completions, events, metrics, sessions
from everthread.web import openapi as description
from everthread.web import schemas as shapes
from everthread.web import webhooks as hooks
from everthread.web.auth import authenticate
from everthread.web.errors import HttpError, to_http_error
from everthread.web.openapi import AuthMode, Operation, Parameter
from everthread.web.ownership import ID_HEADER, KEY_HEADER, find_owned_session
from everthread.web.request import ApiCall, WebState
from everthread.web.sse import EventStream

_JSON, _SSE = "application/json", "text/event-stream"
_LIMIT = Parameter("limit", "query", "How many at most.", {"type": "integer", "minimum": 1})
_CURSOR = Parameter("cursor", "query", "`next_cursor` of the answer before.", {"type": "string"})

OPERATIONS = (
    Operation("GET", "/v1/models", completions.list_models, "The models there are.", {200: completions.Models}),
    Operation(
        "POST",
        "/v1/chat/completions",
        completions.chat,
        "Ask a model; or, if a header names one, say something in a conversation.",
        {200: shapes.Completion},
        body=shapes.ChatRequest,
        parameters=(
            Parameter(KEY_HEADER, "header", "A conversation by a name of your own.", {"type": "string"}),
            Parameter(ID_HEADER, "header", "A conversation by its session.", {"type": "string"}),
            Parameter("Idempotency-Key", "header", "What is sent twice with it is taken once.", {"type": "string"}),
        ),
        also=_SSE,
        refusals=(404, 409, 413, 429, 502, 503),
    ),
    Operation(
        "GET",
        "/api/sessions",
        sessions.list_sessions,
        "Your conversations, the last active first.",
        {200: sessions.SessionPage},
        parameters=(_LIMIT, _CURSOR),
    ),
    Operation("GET", "/api/sessions/{session_id}", sessions.show_session, "One.", {200: sessions.SessionSaid}),
    Operation(
        "PATCH",
        "/api/sessions/{session_id}",
        sessions.rename_session,
        "Give it another title.",
        {200: sessions.SessionSaid},
        body=sessions.Rename,
        refusals=(409, 413),
    ),
    Operation(
        "DELETE",
        "/api/sessions/{session_id}",
        sessions.delete_session,
        "Forget it, for good.",
        {200: sessions.Deleted},
    ),
    Operation(
        "GET",
        "/api/sessions/{session_id}/messages",
        sessions.list_messages,
        "What was said in it; `limit` counts turns.",
        {200: sessions.MessagePage},
        parameters=(_LIMIT, _CURSOR),
    ),
    Operation(
        "POST",
        "/api/sessions/{session_id}/fork",
        sessions.fork_session,
        "Go on in a copy; this one stays as it is.",
        {201: sessions.Continued},
        body=sessions.Fork,
        refusals=(409, 413),
    ),
    Operation(
        "POST",
        "/api/sessions/{session_id}/resume",
        sessions.resume_session,
        "Have a name of yours lead to it.",
        {200: sessions.Continued},
        body=sessions.Go,
        refusals=(409, 413),
    ),
    Operation(
        "GET",
        "/api/sessions/{session_id}/export",
        sessions.export_session,
        "The lines that `everthread sessions export` writes.",
        {200: "application/x-ndjson"},
    ),
    Operation(
        "GET",
        "/api/events",
        events.follow,
        "What happens to your conversations, as it happens.",
        {200: _SSE},
        parameters=(
            Parameter("Last-Event-ID", "header", "The id of the event after which to go on.", {"type": "string"}),
        ),
        refusals=(429,),
    ),
    Operation(
        "POST",
        "/hooks/{name}",
        hooks.receive,
        "Have something said to the agent; signed.",
        {202: hooks.Taken},
        body={},
        parameters=(
            Parameter("X-Signature", "header", "sha256= and the HMAC of timestamp, dot, body.", {"type": "string"}),
            Parameter("X-Timestamp", "header", "Seconds since 1970.", {"type": "string"}),
        ),
        door=AuthMode.SIGNED,
        refusals=(401, 413),
    ),
    Operation("GET", "/health", metrics.health, "Whether it is alive.", {200: metrics.Health}, door=AuthMode.OPEN),
    Operation("GET", "/ready", metrics.ready, "Whether it takes messages.", {200: metrics.Health}, door=AuthMode.OPEN),
    Operation(
        "GET",
        "/metrics",
        metrics.metrics,
        "How it is doing, for Prometheus; with a token of the owner at the machine only.",
        {200: "text/plain"},
        refusals=(403,),
    ),
    Operation(
        "GET", "/openapi.json", description.show_description, "This description.", {200: _JSON}, door=AuthMode.OPEN
    ),
)


def make_app(site: WebState) -> Starlette:
    paths: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = operation
    routes = [Route(path, _endpoint(site, methods), methods=list(methods)) for path, methods in paths.items()]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _not_served})
    app.router.redirect_slashes = False
    app.state.description = description.describe(OPERATIONS)
    return app


def _endpoint(site: WebState, methods: dict[str, Operation]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        operation = methods["GET" if request.method == "HEAD" else request.method]
        try:
            response = await _dispatch(ApiCall(site, request), operation)
            if request.method == "HEAD" and isinstance(response, EventStream):
                response = await response.heads_only()
        except Exception as error:  # noqa: BLE001 - the last handler: translated for the client
            response = to_http_error(error).response()
        site.requests[response.status_code] = site.requests.get(response.status_code, 0) + 1
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    return answer


async def _dispatch(call: ApiCall, operation: Operation) -> Response:
    if operation.door is AuthMode.TOKEN:
        call = replace(call, who=await authenticate(call))
    if (session_id := call.request.path_params.get("session_id")) is not None:
        call = replace(call, session=await find_owned_session(call.gateway, session_id, call.caller.owner))
    try:
        return await operation.act(call)
    except ModelError as error:
        raise to_http_error(error, guest=call.guest) from error


async def _not_served(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = {404: "there is nothing here; GET /openapi.json says what there is", 405: "this can't be done here"}
    return HttpError(error.status_code, said.get(error.status_code, error.detail), headers=error.headers).response()
