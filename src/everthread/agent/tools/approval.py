"""Approval of dangerous tool calls: decide which calls need it, and what the user is shown.

Front ends only show an `ApprovalRequest` and return the answer.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from everthread.agent.events import ApprovalRequest, Approve
from everthread.agent.tools.tool_pins import PinnedTools, ToolChange
from everthread.config.schema import ToolSettings
from everthread.domain.errors import NobodyToAsk, NotApproved
from everthread.domain.model import SessionRef, ToolCall
from everthread.domain.text_format import format_call, show_invisible
from everthread.domain.tool_definition import ToolDefinition
from everthread.ports.tools import Tool

_DEFAULTS = ToolSettings()
DENIED = "this call was not approved by the user; do not try it again unasked"
NOBODY = (
    "this call needs approval, and there is nobody to ask here; tell the user that the operator can allow the tool in "
    "the settings (tools.allow)"
)
NOBODY_FOR_CHANGED = "there is nobody to ask here; tell the user that `everthread doctor` lists it with what to do"
TOO_LARGE = (
    "{what} {lines} lines and {chars:,} characters, and an approval request shows at most {lines_max} lines and "
    "{chars_max:,} characters (tools.approval_lines, tools.approval_chars)"
)
CALL_HAS = "the call has"
CHANGE_HAS = "the MCP server changed this tool since it was approved; the change and the call have"
READ_CHANGE = (
    "{refusal}; the operator can read the change with `everthread mcp pins {server} --changes`, and accept it with "
    "`everthread mcp unpin {server} {tool}`"
)


class ApprovalRules(Struct, frozen=True):
    """Decide on calls. `pins` is None if no tool has a definition to pin."""

    pins: PinnedTools | None = None
    lines_max: int = _DEFAULTS.approval_lines
    chars_max: int = _DEFAULTS.approval_chars

    async def refusal(
        self,
        tool: Tool,
        call: ToolCall,
        arguments: Mapping[str, Any],
        ref: SessionRef,
        approve: Approve,
        *,
        asks: bool,
    ) -> str:
        """Return why the call must not run, for the model; empty if it may. Ask the user if necessary.

        `asks` tells that every call of the tool needs approval; other tools need it once they have changed.
        """
        definition, pins = tool.definition, self.pins
        changed = None
        if definition is not None and pins is not None:
            changed = await pins.change_of(definition, first_use=not asks)
        if not asks and not changed:
            return ""
        request, too_large = self._request(call, arguments, changed, definition)
        if refusal := await _ask(request, ref, approve, too_large, changed):
            return refusal
        if definition is not None and pins is not None:
            await pins.approve(definition, ref.owner)
        return ""

    def _request(
        self,
        call: ToolCall,
        arguments: Mapping[str, Any],
        changed: ToolChange | None,
        definition: ToolDefinition | None,
    ) -> tuple[ApprovalRequest, str]:
        """Return the request with the whole call and the whole change of the tool, and why the call is refused if they
        are too large to be shown.
        """
        text = format_call(call.name, arguments)
        if refusal := self._too_large(CALL_HAS, text):
            return _refused(call, refusal), f"{refusal}; make it smaller, or tell the user"
        if changed is None or definition is None:
            return ApprovalRequest(call, text), ""
        notice = "\n".join(filter(None, (_summarize(changed), changed.whole)))
        if refusal := self._too_large(CHANGE_HAS, f"{notice}\n{text}"):
            server, tool = (show_invisible(shlex.quote(name)) for name in (definition.server, definition.tool))
            refusal = READ_CHANGE.format(refusal=refusal, server=server, tool=tool)
            return _refused(call, refusal), refusal
        return ApprovalRequest(call, text, notice), ""

    def _too_large(self, what: str, text: str) -> str:
        lines, chars = text.count("\n") + 1, len(text)
        if lines <= self.lines_max and chars <= self.chars_max:
            return ""
        return TOO_LARGE.format(what=what, lines=lines, chars=chars, lines_max=self.lines_max, chars_max=self.chars_max)


def _summarize(changed: ToolChange) -> str:
    return f"The MCP server changed this tool since it was approved: {changed.summary}."


def _refused(call: ToolCall, refusal: str) -> ApprovalRequest:
    return ApprovalRequest(call, call.name, refusal=f"{call.name} was refused: {refusal}.")


async def _ask(
    request: ApprovalRequest, ref: SessionRef, approve: Approve, too_large: str, changed: ToolChange | None
) -> str:
    # The model is told the summary only.
    before = f"{_summarize(changed)} " if changed else ""
    try:
        allowed = await approve(request, ref)
    except NobodyToAsk:
        return before + (NOBODY_FOR_CHANGED if changed else NOBODY)
    except NotApproved as error:
        return f"{before}{error}"
    if too_large:
        return too_large
    return "" if allowed else before + DENIED
