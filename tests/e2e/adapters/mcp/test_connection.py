"""Connections to MCP servers: handshake, tool lists, transports and limits."""

import re
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.mcp_servers import SECRET, call, failure, misbehaving, running, tool, with_sdk

from everthread.adapters.mcp.servers import McpServer


async def test_all_pages_of_tools_and_kinds_of_results_are_read() -> None:
    async with running(a=with_sdk(env={"MEANT": "for it"})) as servers:
        names = [tool.name for tool in servers.tools()]
        assert len(names) == 211
        assert names == sorted(names)
        assert tool(servers, "a__many_199").schema.description == "Does many_199."
        assert await call(servers, "a__echo", text="hi") == "echo: hi"
        assert await call(servers, "a__empty") == "(nothing was returned)"
        assert await call(servers, "a__structured") == '{"n":1}'
        assert await failure(servers, "a__fails") == "no such city"
        huge = await call(servers, "a__huge")
        assert len(huge) < 100_100
        assert huge.endswith("z")
        assert await call(servers, "a__media") == "\n".join(
            (
                "look:",
                "[image: image/png, 8 bytes]",
                "[audio: audio/wav, 9.0 kB]",
                "[resource file:///a.bin: application/zip, 12.0 MB]",
                "[resource file:///a.txt: unknown type, 6 bytes]",
                "inside",
                "[resource file:///b: image/gif, 8 bytes]",
            )
        )
        environment = await call(servers, "a__environment")
        assert "MEANT=for it" in environment
        assert "PATH=" in environment
        assert SECRET not in environment
        assert "OPENAI" not in environment


async def test_a_server_without_the_old_handshake_gets_the_new_one() -> None:
    async with running(a=misbehaving("modern")) as servers:
        assert servers.problems() == {}
        assert await call(servers, "a__echo", text="fine") == "fine"


async def test_lines_that_are_not_mcp_are_skipped() -> None:
    async with running(a=misbehaving("garbage")) as servers:
        assert await call(servers, "a__echo", text="fine") == "fine"
        assert await call(servers, "a__bytes") == "caf\ufffd"
        assert await failure(servers, "a__odd") == "its answer is not valid MCP"
        assert servers.problems() == {}


async def test_tools_that_are_too_large_or_invalid_are_left_out_and_reported() -> None:
    async with running(a=misbehaving("sloppy"), b=misbehaving("pages")) as servers:
        names = [tool.name for tool in servers.tools() if tool.name.startswith("mcp__a__")]
        # Suffixes of names that were taken or too long.
        names = [re.sub("_[0-9a-f]{8}$", "_MARK", name.removeprefix("mcp__a__")) for name in names]
        assert names == [
            *("bytes", "die", "echo", "endless", "fails", "hang", "long" * 11 + "lon_MARK", "no_type", "odd", "pid"),
            *("st_dte_suche_MARK", "st_dte_suche_MARK", "wordy"),
        ]
        assert len(tool(servers, "a__wordy").schema.description) == 2_000
        assert servers.problems() == {
            "a": "the schema of no_schema is not valid; the schema of ? is not valid; "
            "the schema of big_schema is over 64 KB",
            "b": "only its first 8 tools are used",
        }


class _Refusing(BaseHTTPRequestHandler):
    """Refuse every request at `/refuses`, stream forever at `/endless`, and never answer anywhere else."""

    def do_POST(self) -> None:
        if self.path == "/refuses":
            self.send_error(401)
        elif self.path == "/endless":
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            with suppress(ConnectionError):
                while True:
                    self.wfile.write(b"[" * 1_000_000)
        else:
            time.sleep(4.0)

    def log_message(self, format: str, *args: object) -> None:
        pass


async def test_an_http_server_that_refuses_or_never_answers_is_reported() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{http.server_port}"
        async with running(
            start_s=3.0,
            a=McpServer(url=f"{url}/refuses"),
            b=McpServer(url=f"{url}/b"),
            c=McpServer(url=f"{url}/sse"),
            d=McpServer(url=f"{url}/endless"),
        ) as servers:
            assert servers.problems() == {
                "a": "Server returned an error response (HTTP status 401)",
                "b": "no answer within 3 s",
                "c": "it answered with HTTP status 501",
                "d": "it sent a message of more than 16 MB",
            }
        http.shutdown()


async def test_an_endless_message_ends_the_connection_and_not_the_process() -> None:
    async with running(a=misbehaving(timeout_s=15.0)) as servers:
        assert "it sent a message of more than 16 MB" in await failure(servers, "a__endless")
        assert await call(servers, "a__echo", text="fine") == "fine"
