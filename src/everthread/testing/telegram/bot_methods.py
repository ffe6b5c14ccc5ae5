"""Bot API methods about the bot itself: identity, commands, delivery of updates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everthread.testing.telegram.errors import bad_request, conflict
from everthread.testing.telegram.objects import BotCommand, Chat, User
from everthread.testing.telegram.params import Params
from everthread.testing.telegram.state import TelegramState
from everthread.testing.telegram.updates import UpdateBatch
from everthread.testing.telegram.webhook import Webhook

POLL_S_MAX = 50
DEFAULT_SCOPE = ""
_COMMAND = re.compile(r"[a-z0-9_]{1,32}")


class BotMethods:
    def __init__(self, state: TelegramState, webhook: Webhook) -> None:
        self._state = state
        self._webhook = webhook
        self._poll = 0
        self.methods: Mapping[str, Callable[[Params], object]] = {
            "getme": self.get_me,
            "getchat": self.get_chat,
            "getupdates": self.get_updates,
            "setmycommands": self.set_commands,
            "getmycommands": self.get_commands,
            "deletemycommands": self.delete_commands,
            "logout": lambda _: True,
            "close": lambda _: True,
        }

    def get_me(self, _: Params) -> User:
        return self._state.bot

    def get_chat(self, params: Params) -> Chat:
        return self._state.chat(params.text("chat_id"))

    # --- Updates -----------------------------------------------------------------------------------------------------

    async def get_updates(self, params: Params) -> UpdateBatch:
        """Long-poll for updates. A later call ends an earlier one that is still waiting."""
        state, updates = self._state, self._state.updates
        if self._webhook.url:
            raise conflict(
                "can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"
            )
        self._poll += 1
        mine = self._poll
        state.changes.notify()
        updates.allow(params.read("allowed_updates", list[str], "allowed_updates"))
        updates.confirm(params.integer("offset"))
        limit = min(max(params.integer("limit", 100), 1), 100)
        timeout_s = min(max(params.integer("timeout"), 0), POLL_S_MAX)

        def is_over() -> bool:
            return mine != self._poll or bool(self._webhook.url) or bool(updates.batch(limit))

        await state.changes.wait_for(is_over, timeout_s)
        if mine != self._poll:
            raise conflict("terminated by other getUpdates request; make sure that only one bot instance is running")
        if self._webhook.url:
            raise conflict("terminated by setWebhook request")
        return updates.batch(limit)

    # --- Commands ----------------------------------------------------------------------------------------------------

    def set_commands(self, params: Params) -> bool:
        commands = params.read("commands", list[BotCommand], "commands")
        if commands is None:
            raise bad_request('parameter "commands" is required')
        if len(commands) > 100:
            raise bad_request("BOT_COMMANDS_TOO_MUCH")
        for one in commands:
            if not _COMMAND.fullmatch(one.command.removeprefix("/")):
                raise bad_request("BOT_COMMAND_INVALID")
            if not 1 <= len(one.description.strip()) <= 256:
                raise bad_request("BOT_COMMAND_DESCRIPTION_INVALID")
        self._state.commands[_scope(params)] = tuple(
            BotCommand(one.command.removeprefix("/"), one.description.strip()) for one in commands
        )
        self._state.changes.notify()
        return True

    def get_commands(self, params: Params) -> Sequence[BotCommand]:
        return self._state.commands.get(_scope(params), ())

    def delete_commands(self, params: Params) -> bool:
        self._state.commands.pop(_scope(params), None)
        return True


def _scope(params: Params) -> str:
    """Return the key of a command scope."""
    scope = params.read("scope", dict[str, Any], "BotCommandScope") or {}
    return DEFAULT_SCOPE if scope.get("type", "default") == "default" else params.text("scope")
