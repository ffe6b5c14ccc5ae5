"""`/v1`: what clients of models ask for."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from starlette.responses import Response

from everthread.web import limits, shapes
from everthread.web.conversing import converse
from everthread.web.places import place_of
from everthread.web.shapes import ChatRequest
from everthread.web.site import Call
from everthread.web.stateless import complete


class Model(Struct):
    id: str
    created: int
    object: str = "model"
    owned_by: str = "everthread"


class Models(Struct):
    data: list[Model]
    object: str = "list"


async def list_models(call: Call) -> Response:
    gateway = call.gateway
    names = dict.fromkeys((*shapes.OUR_MODELS, *gateway.known_models()))
    found = Models([Model(name, int(gateway.started_at)) for name in names])
    return Response(msgspec.json.encode(found), media_type="application/json")


async def chat(call: Call) -> Response:
    """A conversation if a header names one; else an answer to just what was sent."""
    asked = await call.read(ChatRequest)
    shapes.check(asked)
    if (place := await place_of(call)) is not None:
        return await converse(call, asked, place)
    limits.check(call)
    return await complete(call, asked)
