"""Record `terminal.svg` from the real program on a pseudo-terminal. Only the model is a stub, scripted below.

`python -m docs.record` writes the picture.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import pyte.graphics
from tests.e2e.model_endpoint import model_endpoint
from tests.terminal_screen import ENTER, TerminalScreen

from docs.terminal_svg import svg
from everthread.agent.titles import INSTRUCTION
from everthread.domain.model import ToolCall
from everthread.ports.model import Usage
from everthread.testing.model_server.replies import Reply, Say
from everthread.testing.model_server.validation import Chat, Messages

PICTURE = Path(__file__).parent / "terminal.svg"
COLUMNS, ROWS = 92, 44
FIRST = "Bruno, my dog, is afraid of fireworks. He is fine as long as the radio is on."
SECOND = "Plan a quiet New Year's Eve for the two of us."
NOTE = {
    "action": "add",
    "target": "user",
    "content": "Has a dog, Bruno, who is afraid of fireworks; the radio calms him.",
}
NOTED = "Poor Bruno! I have made a note of it, so you need not tell me again."
PLAN = """\
With **Bruno** at home, I would stay in and be done before the noise begins:

| time | what | why |
|---|---|---|
| 16:00 | a long walk | it is still quiet, and he is tired later |
| 19:00 | dinner, curtains shut | no flashes at the windows |
| 23:30 | the radio, loud | it is what calms him |

- Put his bed where the walls are thick, *away* from the street.
- Tell the neighbours why the radio is on."""
CONFIG = """\
model = "demo/scripted"

[providers.demo]
base_url = "{url}"

[prices."demo/scripted"]
input = 2
output = 8
"""


def script(request: Chat | Messages) -> Reply:
    """Call the tool, then answer. The model stub knows earlier sessions only from the memory in the request."""
    assert isinstance(request, Chat)
    sent = [message.content or "" for message in request.messages]
    used = Usage(1_850, 120)
    if any(INSTRUCTION in text for text in sent):
        return Say("A quiet New Year's Eve" if "Plan a" in sent[-1] else "Bruno")
    if request.has_tool_result:
        return Say(NOTED, chunks=8, delay_s=0.02, usage=used)
    if FIRST in sent[-1]:
        return Say(calls=(ToolCall("call_1", "memory", json.dumps(NOTE)),), usage=used)
    known = any("afraid of fireworks" in text for text in sent)
    return Say(PLAN if known else "With whom?", chunks=40, delay_s=0.01, usage=used)


def record(home: Path) -> str:
    # pyte does not know faint text; record it as blinking, which this program never uses.
    pyte.graphics.TEXT[2] = "+blink"
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLORFGBG")}
    with model_endpoint(script=script) as server:
        (home / "config.toml").write_text(CONFIG.format(url=server.base_url))
        with TerminalScreen(
            [sys.executable, "-m", "everthread", "--home", str(home)], env, columns=COLUMNS, rows=ROWS
        ) as screen:
            screen.expect("new session · ")
            screen.type(FIRST + ENTER)
            screen.expect("Bruno · demo")
            screen.type("/new" + ENTER)
            screen.expect("new session · |untitled · ")
            screen.type(SECOND + ENTER)
            screen.expect("A quiet New Year's Eve · .* memory ok")
            screen.settle()
            rows = len(screen.rows())
            return svg(screen.cells()[:rows], title="everthread", cursor=screen.cursor())


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        PICTURE.write_text(record(Path(home)))
    print(PICTURE)


if __name__ == "__main__":
    main()
