"""An MCP server without the SDK that misbehaves. The first argument selects the behaviour.

`echo` answers with its argument, `die` exits in the middle of the call, `hang` never answers, and so on.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

OBJECT = {"type": "object"}
MODERN = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def tools(how):
    found = [
        {"name": name, "inputSchema": OBJECT}
        for name in ("echo", "die", "hang", "pid", "bytes", "endless", "odd", "fails")
    ]
    if how == "sloppy":
        found += [
            {"name": "no_type", "inputSchema": {"properties": {}}},
            {"name": "no_schema"},
            {"name": "big_schema", "inputSchema": OBJECT | {"description": "x" * 70_000}},
            {"name": "wordy", "inputSchema": OBJECT, "description": "y" * 5_000},
            {"name": "echo", "inputSchema": OBJECT, "description": "a second echo"},
            {"name": "städte/suche", "inputSchema": OBJECT},
            {"name": "städte.suche", "inputSchema": OBJECT},
            {"name": "long" * 30, "inputSchema": OBJECT},
            "not even an object",
        ]
    if how == "as_told":
        found += [{"name": name, "inputSchema": OBJECT} for name in Path(sys.argv[2]).read_text().split()]
    return found


def send(message):
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
    sys.stdout.buffer.flush()


def write(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def call(name, arguments, ident):
    content = str(arguments.get("text", ""))
    match name:
        case "die":
            sys.stderr.write("about to die of secret-token-123\n")
            sys.stderr.flush()
            os._exit(3)
        case "hang":
            return
        case "pid":
            content = str(os.getpid())
        case "bytes":
            answer = {"jsonrpc": "2.0", "id": ident, "result": {"content": [{"type": "text", "text": "BYTES"}]}}
            write(json.dumps(answer).encode().replace(b"BYTES", b"caf\xe9") + b"\n")
            return
        case "endless":
            while True:
                write(b"x" * 1_000_000)
        case "fails":
            content = [{"type": "text", "text": "it can't be done"}]
            send({"jsonrpc": "2.0", "id": ident, "result": {"content": content, "isError": True}})
            return
        case "odd":
            send({"jsonrpc": "2.0", "id": ident, "result": {"content": [{"type": "hologram"}]}})
            return
    result = {"content": [{"type": "text", "text": content}], "resultType": "complete"}
    send({"jsonrpc": "2.0", "id": ident, "result": result})


def serve(how):
    for line in sys.stdin:
        message = json.loads(line)
        ident, params = message.get("id"), message.get("params") or {}
        match message.get("method"):
            case "initialize" if how == "modern":
                data = {"supported": ["2026-07-28"], "requested": params["protocolVersion"]}
                error = {"code": -32022, "message": "no such version", "data": data}
                send({"jsonrpc": "2.0", "id": ident, "error": error})
            case "server/discover":
                found = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}} | MODERN
                send({"jsonrpc": "2.0", "id": ident, "result": found})
            case "initialize":
                send({"jsonrpc": "2.0", "id": ident, "result": {
                    "protocolVersion": params["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "misbehaving", "version": "1"},
                }})  # fmt: skip
            case "tools/list":
                page = {"nextCursor": "more"} if how == "pages" else {}
                send({"jsonrpc": "2.0", "id": ident, "result": {"tools": tools(how)} | page | MODERN})
            case "tools/call":
                call(params["name"], params.get("arguments") or {}, ident)


def start_late(how, rest):
    match how:
        case "silent":
            time.sleep(60)
        case "slow":
            time.sleep(float(rest[0]))
        case "as_told":
            # Starts once a file exists, and also offers the tools listed in it.
            if not Path(rest[0]).exists():
                sys.exit("nobody has told me anything")


def main():
    how, *rest = [*sys.argv[1:], "well"]
    start_late(how, rest)
    match how:
        case "exits":
            sys.exit("there is no such database")
        case "once":
            # Starts successfully only the first time.
            marker = Path(rest[0])
            if marker.exists():
                sys.exit("gone for good")
            marker.touch()
        case "garbage":
            write(b"Welcome to my server!\n\n{}\n[1]\n\xff\xfe\n" + b'{"jsonrpc": "2.0"}\n')
        case "noise":
            write(b"only words\n" * 1000)
            time.sleep(60)
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "family":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            Path(rest[0]).write_text(str(child.pid))
    serve(how)
    if how == "stubborn":
        time.sleep(60)


if __name__ == "__main__":
    main()
