"""Approval of dangerous tool calls: decide which calls need it, and what the user is shown.

Front ends only show an `ApprovalRequest` and return the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from everthread.agent.events import ApprovalRequest, Approve
from everthread.agent.tools.tool_pins import PinnedTools
from everthread.config.schema import ToolSettings
from everthread.domain.errors import NobodyToAsk, NotApproved
from everthread.domain.model import SessionRef, ToolCall
from everthread.domain.text_format import format_call
from everthread.ports.tools import Tool

_DEFAULTS = ToolSettings()
DENIED = "this call was not approved by the user; do not try it again unasked"
NOBODY = (
    "this call needs approval, and there is nobody to ask here; tell the user that the operator can allow the tool in "
    "the settings (tools.allow)"
)
NOBODY_FOR_CHANGED = "there is nobody to ask here; tell the user that `everthread doctor` lists it with what to do"
TOO_LARGE = (
    "the call has {lines} lines and {chars:,} characters, and an approval request shows at most {lines_max} lines and "
    "{chars_max:,} characters (tools.approval_lines, tools.approval_chars)"
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
        changed = ""
        if definition is not None and pins is not None:
            changed = await pins.change_of(definition, first_use=not asks)
        if not asks and not changed:
            return ""
        notice = f"The MCP server changed this tool since it was approved: {changed}." if changed else ""
        if refusal := await self._ask(call, arguments, ref, approve, notice):
            return refusal
        if definition is not None and pins is not None:
            await pins.approve(definition, ref.owner)
        return ""

    async def _ask(
        self, call: ToolCall, arguments: Mapping[str, Any], ref: SessionRef, approve: Approve, notice: str
    ) -> str:
        text = format_call(call.name, arguments)
        refusal = self._too_large(text)
        before = f"{notice} " if notice else ""
        try:
            if refusal:
                await approve(ApprovalRequest(call, call.name, refusal=f"{call.name} was refused: {refusal}."), ref)
                return f"{refusal}; make it smaller, or tell the user"
            return "" if await approve(ApprovalRequest(call, text, notice), ref) else before + DENIED
        except NobodyToAsk:
            return before + (NOBODY_FOR_CHANGED if notice else NOBODY)
        except NotApproved as error:
            return f"{before}{error}"

    def _too_large(self, text: str) -> str:
        lines, chars = text.count("\n") + 1, len(text)
        if lines <= self.lines_max and chars <= self.chars_max:
            return ""
        return TOO_LARGE.format(lines=lines, chars=chars, lines_max=self.lines_max, chars_max=self.chars_max)
