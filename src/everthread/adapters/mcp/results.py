"""Results of tool calls as text for the model."""

from __future__ import annotations

import msgspec
from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from everthread.adapters.mcp.text import format_size, one_line, shorten_middle

RESULT_CHARS_MAX = 100_000


def result_text(result: CallToolResult) -> str:
    """Join the texts of a result, and describe other content. Structured content is used only if there is no text."""
    parts = [_block_text(block) for block in result.content]
    if result.structured_content is not None and not any(isinstance(block, TextContent) for block in result.content):
        parts.append(msgspec.json.encode(result.structured_content).decode())
    return shorten_middle("\n".join(parts), RESULT_CHARS_MAX)


def _block_text(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}: {_mime_type(block.mime_type)}, {format_size(_decoded_size(block.data))}]"
        case ResourceLink():
            extent = "" if block.size is None else f", {format_size(block.size)}"
            return f"[resource {one_line(str(block.uri))}: {_mime_type(block.mime_type)}{extent}]"
        case EmbeddedResource():
            return _resource_text(block.resource)


def _resource_text(resource: TextResourceContents | BlobResourceContents) -> str:
    """Include a text resource in full: servers return files in this form."""
    label = f"resource {one_line(str(resource.uri))}: {_mime_type(resource.mime_type)}"
    if isinstance(resource, BlobResourceContents):
        return f"[{label}, {format_size(_decoded_size(resource.blob))}]"
    return f"[{label}, {format_size(len(resource.text.encode(errors='replace')))}]\n{resource.text}"


def _mime_type(mime_type: str | None) -> str:
    return one_line(mime_type or "", 100) or "unknown type"


def _decoded_size(base64: str) -> int:
    return max(0, len(base64) * 3 // 4 - base64[-2:].count("="))
