"""The OpenAPI description, generated from the table of routes and their types."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum
from importlib.metadata import version
from typing import Any, Literal

import msgspec
from msgspec import Struct
from starlette.responses import Response

from everthread.web.errors import ProblemBody
from everthread.web.request import ApiCall

_JSON = "application/json"


class AuthMode(StrEnum):
    """The authentication of a route."""

    OPEN = "open"
    TOKEN = "token"
    SIGNED = "signed"


class Parameter(Struct, frozen=True):
    name: str
    place: Literal["query", "header", "path"]
    help: str
    schema: dict[str, Any]


class Operation(Struct, frozen=True):
    """One method of one path, with its request and response types."""

    method: str
    path: str
    act: Callable[[ApiCall], Awaitable[Response]]
    summary: str
    answers: Mapping[int, Any]
    """By status: a type, or a media type if there is none."""
    body: Any = None
    """A type; an empty dict is any JSON."""
    parameters: tuple[Parameter, ...] = ()
    door: AuthMode = AuthMode.TOKEN
    also: str = ""
    """A second media type of the response."""
    refusals: tuple[int, ...] = ()


async def show_description(call: ApiCall) -> Response:
    return Response(call.request.app.state.description, media_type=_JSON)


def describe(operations: Iterable[Operation]) -> bytes:
    operations = tuple(operations)
    shapes = [shape for one in operations for shape in (*one.answers.values(), one.body) if isinstance(shape, type)]
    _, components = msgspec.json.schema_components(
        [*dict.fromkeys(shapes), ProblemBody], ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _described(one)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Everthread", "version": version("everthread")},
            "paths": paths,
            "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        }
    )


def _described(one: Operation) -> dict[str, Any]:
    named = [Parameter(name, "path", "", {"type": "string"}) for name in re.findall(r"\{(\w+)\}", one.path)]
    described: dict[str, Any] = {
        "summary": one.summary,
        "operationId": (one.method.lower() + re.sub(r"\W+", "_", one.path)).rstrip("_"),
        "parameters": [_parameter(parameter) for parameter in (*named, *one.parameters)],
        "security": [{"token": []}] if one.door is AuthMode.TOKEN else [],
        "responses": {str(status): _answer(shape, one.also) for status, shape in one.answers.items()},
    }
    if one.body is not None:
        described["requestBody"] = {"required": bool(one.body), "content": {_JSON: {"schema": _schema(one.body)}}}
    for status in sorted(_refusals(one)):
        described["responses"].setdefault(str(status), _answer(ProblemBody))
    return described


def _refusals(one: Operation) -> set[int]:
    always = {500, 503}
    if one.body is not None or one.parameters:
        always |= {400, 408}
    if one.door is AuthMode.TOKEN:
        always |= {401, 403}
    if "{session_id}" in one.path:
        always |= {404}
    return always | set(one.refusals)


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.help,
        "schema": parameter.schema,
    }


def _answer(shape: Any, also: str = "") -> dict[str, Any]:
    media: dict[str, Any] = {shape: {}} if isinstance(shape, str) else {_JSON: {"schema": _schema(shape)}}
    return {"description": "", "content": media | ({also: {}} if also else {})}


def _schema(shape: Any) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{shape.__name__}"} if isinstance(shape, type) else shape
