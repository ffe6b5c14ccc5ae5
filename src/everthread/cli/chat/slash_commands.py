"""Run slash commands in the terminal: build their context, let the user choose from menus, show results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from everthread.cli.context import CliRuntime
from everthread.cli.files import new_file
from everthread.cli.view import ChatView
from everthread.domain.errors import EverthreadError
from everthread.domain.model import SessionKey

if TYPE_CHECKING:
    from everthread.agent.model_call import ModelChoice
    from everthread.commands.context import CommandContext, CommandResult, MenuItem
    from everthread.commands.registry import ParsedCommand


class SlashCommands:
    """The commands of one chat. Remembers the model that `/model` chose."""

    def __init__(
        self, runtime: CliRuntime, key: SessionKey, view: ChatView, model: str, *, fail: Callable[[str], None]
    ) -> None:
        self._runtime = runtime
        self._key = key
        self._view = view
        self.fail = fail
        self.model = model
        self.crossing = asyncio.Lock()
        """Held while a command changes the session. The next turn begins after the command's result is shown."""

    def choices(self) -> Sequence[ModelChoice]:
        """Return the model in use and its fallbacks."""
        return self._runtime.choices(self.model)

    def context(self) -> CommandContext:
        from everthread.commands.context import CommandContext
        from everthread.gateway.access import Access

        runtime, settings = self._runtime, self._runtime.settings
        reaches = Access(runtime.store, settings.gateway, settings.platforms, settings.owner).reaches
        return CommandContext(runtime, self._key, settings.owner, self.model, reaches=reaches)

    async def run(self, parsed: ParsedCommand) -> CommandResult | None:
        """Run a command and show its result; `None` if the user chose nothing from its menu."""
        result = await self._run(parsed, offers=self._view.rich)
        if not result.menu or not self._view.rich:
            return result
        if not result.ok:
            self.fail(result.text)
        chosen = await self._choose(parsed, result.menu)
        return await self._run(chosen, offers=False) if chosen is not None else None

    async def _run(self, parsed: ParsedCommand, *, offers: bool) -> CommandResult:
        """Run a command. Show its result, unless it `offers` a menu."""
        from everthread.commands.registry import run_command

        async with self.crossing if parsed.command.crosses_boundary else nullcontext():
            result = await run_command(self.context(), parsed)
            if not (offers and result.menu):
                self._show(result)
        return result

    async def _choose(self, parsed: ParsedCommand, menu: Sequence[MenuItem]) -> ParsedCommand | None:
        from everthread.commands.registry import ParsedCommand, parse

        title = f"/{parsed.command.name} {parsed.argument}".rstrip()
        index = await self._view.pick(title, [item.label for item in menu])
        chosen = parse(menu[index].command) if index is not None else None
        assert chosen is None or isinstance(chosen, ParsedCommand)
        return chosen

    def _show(self, result: CommandResult) -> None:
        if result.document is not None:
            try:
                with new_file(result.document.name) as file:
                    file.write(result.document.text.encode())
            except EverthreadError as error:
                # Instead of the result, which says that the file is there.
                self.fail(str(error))
                return
        if result.ok and not result.quits:
            self._view.show_text(result.text)
        elif not result.ok:
            self.fail(result.text)
        if result.model is not None:
            self.model = result.model
        if result.recap is not None:
            self._view.show_recap(result.recap)
