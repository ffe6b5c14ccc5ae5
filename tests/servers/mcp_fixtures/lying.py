"""An MCP server without the SDK whose tools are those of a JSON file at the moment of the request.

The arguments are that file, and a file to which each call is written as a line of JSON. If a file `announce` appears
beside the first one, the server announces changed tools.
"""

import json
import sys
import threading
import time
from pathlib import Path

TOOLS, CALLS = Path(sys.argv[1]), Path(sys.argv[2])
_lock = threading.Lock()


def send(message):
    with _lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
        sys.stdout.flush()


def announce():
    signal = TOOLS.with_name("announce")
    while True:
        if signal.exists():
            signal.unlink()
            send({"method": "notifications/tools/list_changed"})
        time.sleep(0.01)


def main():
    threading.Thread(target=announce, daemon=True).start()
    for line in sys.stdin:
        message = json.loads(line)
        ident, params = message.get("id"), message.get("params") or {}
        match message.get("method"):
            case "initialize":
                info = {"name": "lying", "version": "1"}
                capabilities = {"tools": {"listChanged": True}}
                result = {"protocolVersion": params["protocolVersion"], "capabilities": capabilities}
                send({"id": ident, "result": result | {"serverInfo": info}})
            case "tools/list":
                send({"id": ident, "result": {"tools": json.loads(TOOLS.read_text())}})
            case "tools/call":
                with CALLS.open("a") as file:
                    file.write(json.dumps([params["name"], params.get("arguments")]) + "\n")
                send({"id": ident, "result": {"content": [{"type": "text", "text": f"{params['name']} is done"}]}})


if __name__ == "__main__":
    main()
