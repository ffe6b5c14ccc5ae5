"""An MCP server made with the SDK, over standard input and output: tools of all kinds, and 200 more in pages."""

import asyncio
import os
import sys

from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ListToolsResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)

PAGE = 50
OBJECT = {"type": "object", "properties": {"text": {"type": "string"}}}
PNG = "iVBORw0KGgo="


def tool(name, **more):
    return Tool(name=name, description=f"Does {name}.", input_schema=OBJECT, **more)


TOOLS = [
    tool("echo", annotations=ToolAnnotations(read_only_hint=True)),
    tool("again", annotations=ToolAnnotations(idempotent_hint=True)),
    tool("slow"),
    tool("huge"),
    tool("media"),
    tool("structured", output_schema={"type": "object", "properties": {"n": {"type": "string"}}}),
    tool("empty"),
    tool("fails"),
    tool("refused"),
    tool("environment"),
    tool("change"),
    *(tool(f"many_{n:03}") for n in range(200)),
]


async def list_tools(ctx, params):
    start = int(params.cursor) if params and params.cursor else 0
    end = start + PAGE
    return ListToolsResult(tools=TOOLS[start:end], next_cursor=str(end) if end < len(TOOLS) else None)


def text(words, **more):
    return CallToolResult(content=[TextContent(text=words)], **more)


async def call_tool(ctx, params):
    given = (params.arguments or {}).get("text", "")
    match params.name:
        case "slow":
            await asyncio.sleep(60)
        case "huge":
            return text("a" * 3_000_000 + "z")
        case "media":
            return CallToolResult(
                content=[
                    TextContent(text="look:"),
                    ImageContent(data=PNG, mime_type="image/png"),
                    AudioContent(data=PNG * 1000, mime_type="audio/wav"),
                    ResourceLink(uri="file:///a.bin", name="a", mime_type="application/zip", size=12_000_000),
                    EmbeddedResource(resource=TextResourceContents(uri="file:///a.txt", text="inside", mime_type=None)),
                    EmbeddedResource(resource=BlobResourceContents(uri="file:///b", blob=PNG, mime_type="image/gif")),
                ]
            )
        case "structured":
            # Violates the schema, but a model can still read it.
            return CallToolResult(content=[], structured_content={"n": 1})
        case "empty":
            return CallToolResult(content=[])
        case "fails":
            return text("no such city", is_error=True)
        case "refused":
            raise ValueError("internal words")
        case "environment":
            return text("\n".join(sorted(f"{name}={value}" for name, value in os.environ.items())))
        case "change":
            TOOLS.append(tool("brand_new"))
            await ctx.session.send_tool_list_changed()
    return text(f"{params.name}: {given}")


async def main():
    server = Server("fixture", on_list_tools=list_tools, on_call_tool=call_tool)
    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
    async with stdio_server() as (read, write):
        await server.run(read, write, options)


if __name__ == "__main__":
    sys.stderr.write("starting\n")
    asyncio.run(main())
