"""The OpenAPI description, generated from the table of routes, the docstrings of the handlers and their types."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum
from importlib.metadata import version
from typing import Any, Literal

import msgspec
from msgspec import Struct, field
from starlette.responses import Response

from everthread.web.errors import ErrorBody
from everthread.web.request import ApiCall

_JSON = "application/json"


class AuthMode(StrEnum):
    """The authentication of a route."""

    OPEN = "open"
    TOKEN = "token"
    SIGNED = "signed"


class Parameter(Struct, frozen=True, rename={"location": "in"}):
    """A parameter of a route, as OpenAPI writes it."""

    name: str
    location: Literal["query", "header", "path"]
    description: str = ""
    schema: dict[str, Any] = field(default_factory=lambda: {"type": "string"})
    required: bool = False


class Operation(Struct, frozen=True):
    """One method of one path, with its request and response types."""

    method: str
    path: str
    handler: Callable[[ApiCall], Awaitable[Response]]
    """The first line of its docstring is the summary."""
    responses: Mapping[int, Any]
    """By status: a type, or a media type if there is none."""
    body: Any = None
    """A type; an empty dict is any JSON."""
    parameters: tuple[Parameter, ...] = ()
    auth: AuthMode = AuthMode.TOKEN
    stream_type: str = ""
    """A second media type of the response."""
    counted: bool = False
    """Each request counts as a message of the caller. The handler counts by itself if some requests do not."""
    errors: tuple[int, ...] = ()
    """Statuses of errors besides those that all routes of its kind have."""

    @property
    def only_reads(self) -> bool:
        """True if a read-only token may use it."""
        return self.method == "GET"


async def show_description(call: ApiCall) -> Response:
    """Get this description."""
    return Response(call.request.app.state.description, media_type=_JSON)


def describe(operations: Iterable[Operation]) -> bytes:
    operations = tuple(operations)
    types = [kind for one in operations for kind in (*one.responses.values(), one.body) if isinstance(kind, type)]
    _, components = msgspec.json.schema_components(
        [*dict.fromkeys(types), ErrorBody], ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _describe(one)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Everthread", "version": version("everthread")},
            "paths": paths,
            "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        }
    )


def _describe(one: Operation) -> dict[str, Any]:
    in_path = [Parameter(name, "path", required=True) for name in re.findall(r"\{(\w+)\}", one.path)]
    description: dict[str, Any] = {
        "summary": (one.handler.__doc__ or "").partition("\n")[0],
        "operationId": (one.method.lower() + re.sub(r"\W+", "_", one.path)).rstrip("_"),
        "parameters": [*in_path, *one.parameters],
        "security": [{"token": []}] if one.auth is AuthMode.TOKEN else [],
        "responses": {str(status): _response(kind, one.stream_type) for status, kind in one.responses.items()},
    }
    if one.body is not None:
        description["requestBody"] = {"required": bool(one.body), "content": {_JSON: {"schema": _schema(one.body)}}}
    for status in sorted(_errors(one)):
        description["responses"].setdefault(str(status), _response(ErrorBody))
    return description


def _errors(one: Operation) -> set[int]:
    statuses = {500, 503, *one.errors}
    if one.body is not None or one.parameters:
        statuses |= {400, 408}
    if one.body is not None:
        statuses |= {413, 429}
    if one.counted:
        statuses |= {429}
    if one.auth is AuthMode.TOKEN:
        statuses |= {401, 403}
    if one.auth is not AuthMode.OPEN:
        # Too many failed authentications.
        statuses |= {429}
    if "{session_id}" in one.path:
        statuses |= {404}
    return statuses


def _response(kind: Any, stream_type: str = "") -> dict[str, Any]:
    media: dict[str, Any] = {kind: {}} if isinstance(kind, str) else {_JSON: {"schema": _schema(kind)}}
    return {"description": "", "content": media | ({stream_type: {}} if stream_type else {})}


def _schema(kind: Any) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"} if isinstance(kind, type) else kind
