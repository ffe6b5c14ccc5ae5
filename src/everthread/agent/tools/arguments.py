"""Schemas of tools; validation of their arguments, with error messages that a model can act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from everthread.domain.errors import ToolFailed
from everthread.ports.model import ToolSchema

T = TypeVar("T")
TEXT: Mapping[str, Any] = {"type": "string"}


def tool_schema(
    name: str, description: str, properties: Mapping[str, Mapping[str, Any]], required: Sequence[str] = ()
) -> ToolSchema:
    """Build the schema of a tool that accepts these properties and no others."""
    # The order of the keys is part of the stored prompts.
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = list(required)
    return ToolSchema(name, description, {**parameters, "additionalProperties": False})


def text(description: str) -> Mapping[str, Any]:
    return {**TEXT, "description": description}


def parse_arguments(schema: ToolSchema, arguments: Mapping[str, Any], wanted: type[T]) -> T:
    """Convert the arguments to the type. Raises `ToolFailed`."""
    try:
        return msgspec.convert(dict(arguments), wanted)
    except msgspec.ValidationError as error:
        raise ToolFailed(f"{schema.name}: {error}. {_describe_expected(schema)}") from error


def _describe_expected(schema: ToolSchema) -> str:
    """Describe the expected arguments, for a model that got them wrong."""
    required = schema.parameters.get("required", ())
    described = [
        f"`{name}` ({' | '.join(one.get('enum', [one['type']]))}{'' if name in required else ', optional'})"
        for name, one in schema.parameters["properties"].items()
    ]
    return f"Expected: {', '.join(described)}"
