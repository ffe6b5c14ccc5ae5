"""The OpenAPI description matches the routes and their responses."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.e2e.web.test_webhooks import ENVIRONMENT
from tests.http_gateway import http_gateway

from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from everthread.web.app import OPERATIONS, make_app
from everthread.web.openapi import describe
from everthread.web.request import WebState

SLOW = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
EXAMPLES = 8
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
ENDLESS = "/api/events"


def try_all(url: str, session_id: str, auth: dict[str, str]) -> None:
    schema: Any = schemathesis.openapi.from_url(url + "/openapi.json")
    schema.config.headers = auth
    # All of Unicode but surrogates, as with "utf-8", for which Hypothesis tries every character, once in each checkout.
    schema.config.generation.codec = None
    tried = set[str]()
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path == ENDLESS:
            continue
        for mode in GenerationMode:
            try_operation(operation, mode, {})
        if "{session_id}" in operation.path and operation.method != "delete":
            try_operation(operation, GenerationMode.POSITIVE, {"session_id": session_id})
        tried.add(operation.path)
    assert tried == {one.path for one in OPERATIONS} - {ENDLESS, "/openapi.json"}


def try_operation(operation: Any, mode: GenerationMode, path: dict[str, str]) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=SLOW, database=None)
    @given(operation.as_strategy(mode, path_parameters=path or None))
    def ask(case: Any) -> None:
        response = case.call_and_validate(checks=CHECKS, timeout=10)
        assert "Traceback" not in response.text

    # For some operations no invalid request can be generated.
    with contextlib.suppress(Unsatisfiable):
        ask()


def test_the_description_covers_exactly_the_routes() -> None:
    app = make_app(WebState.__new__(WebState))
    served = {
        (method, route.path)  # type: ignore[attr-defined]
        for route in app.routes
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
    }
    described = msgspec.json.decode(describe(OPERATIONS))
    assert {(method.upper(), path) for path, one in described["paths"].items() for method in one} == served
    named = set(described["components"]["schemas"])
    used = {word for word in str(described).split("'") if word.startswith("#/components/schemas/")}
    assert {f"#/components/schemas/{name}" for name in named} == used
    assert all(one["responses"] for path in described["paths"].values() for one in path.values())
    ids = [one["operationId"] for path in described["paths"].values() for one in path.values()]
    assert len(set(ids)) == len(ids) == len(OPERATIONS)


@pytest.mark.timeout(60)
def test_generated_requests_get_the_described_responses(tmp_path: Path) -> None:
    """Send valid and invalid requests generated from the description; no 500, no undescribed status."""

    async def serve() -> None:
        async with (
            ModelServer(lambda _: Say("Hello.")) as model,
            http_gateway(tmp_path, model, **ENVIRONMENT) as fixture,
        ):
            first = await fixture.say("hello", X_Session_Key="desk")
            await asyncio.to_thread(try_all, fixture.url, first.headers["X-Session-Id"], fixture.auth)

    asyncio.run(serve())
