"""The answer of a call, in words the model can read."""

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

from everthread.adapters.mcp.text import cut_in_the_middle, one_line, size

ANSWER_CHARS_MAX = 100_000


def answer_of(result: CallToolResult) -> str:
    """Its texts; what is no text is described. Structured content only if there is no text to the same effect."""
    parts = [_words(block) for block in result.content]
    if result.structured_content is not None and not any(isinstance(block, TextContent) for block in result.content):
        parts.append(msgspec.json.encode(result.structured_content).decode())
    return cut_in_the_middle("\n".join(parts), ANSWER_CHARS_MAX)


def _words(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent():
            return f"[image: {_kind(block.mime_type)}, {size(_decoded(block.data))}]"
        case AudioContent():
            return f"[audio: {_kind(block.mime_type)}, {size(_decoded(block.data))}]"
        case ResourceLink():
            extent = "" if block.size is None else f", {size(block.size)}"
            return f"[resource {one_line(str(block.uri))}: {_kind(block.mime_type)}{extent}]"
        case EmbeddedResource():
            return _resource(block.resource)


def _resource(resource: TextResourceContents | BlobResourceContents) -> str:
    """A text is given in full: servers hand out files like this, and then it is the whole answer."""
    label = f"resource {one_line(str(resource.uri))}: {_kind(resource.mime_type)}"
    if isinstance(resource, BlobResourceContents):
        return f"[{label}, {size(_decoded(resource.blob))}]"
    return f"[{label}, {size(len(resource.text.encode(errors='replace')))}]\n{resource.text}"


def _kind(mime_type: str | None) -> str:
    return one_line(mime_type or "", 100) or "unknown type"


def _decoded(base64: str) -> int:
    return max(0, len(base64) * 3 // 4 - base64[-2:].count("="))
