"""Control calls of tests: act as users, inject faults, read the message log."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from everthread.testing.model_server.http import HttpRequest, respond
from everthread.testing.telegram import protocol as wire
from everthread.testing.telegram import screen
from everthread.testing.telegram.bot_methods import DEFAULT_SCOPE
from everthread.testing.telegram.errors import ApiError, bad_request
from everthread.testing.telegram.faults import Faults
from everthread.testing.telegram.objects import Message
from everthread.testing.telegram.rate_limits import Limits
from everthread.testing.telegram.state import TelegramState
from everthread.testing.telegram.user_actions import UserActions
from everthread.testing.telegram.webhook import Webhook


class Control:
    def __init__(
        self,
        state: TelegramState,
        limits: Limits,
        faults: Faults,
        webhook: Webhook,
        cut: Callable[[float], None],
        calls: Mapping[str, int],
        refused: Mapping[str, int],
    ) -> None:
        self._state = state
        self._limits = limits
        self._webhook = webhook
        self._calls = calls
        self._refused = refused
        actions = UserActions(state)
        self._acts: dict[str, tuple[Any, Callable[[Any], object]]] = {
            "introduce": (wire.UserProfile, actions.introduce),
            "group": (wire.Group, actions.create_group),
            "upgrade": (wire.GroupUpgrade, actions.upgrade),
            "odd": (wire.RawMessage, actions.send_raw),
            "topic": (wire.Topic, actions.open_topic),
            "say": (list[wire.UserMessage], lambda all_said: [*map(actions.say, all_said)]),
            "correct": (wire.UserEdit, actions.edit),
            "press": (wire.ButtonPress, actions.press),
            "block": (wire.BotBlock, actions.block),
            "redeliver": (int, self._redeliver),
            "fault": (wire.Fault, faults.inject),
            "cut": (float, cut),
            "heal": (None, lambda _: faults.heal()),
            "limits": (bool, self._limit),
            "watch": (wire.LogRequest, self._watch),
            "messages": (wire.ChatTopic, lambda place: [*map(screen.shown_message, self._messages_of(place))]),
            "screen": (wire.ChatTopic, self._screen),
            "file": (str, state.files.content),
            "dump": (None, self._dump),
        }

    async def serve(self, name: str, received: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        try:
            if name not in self._acts:
                raise bad_request(f"there is no such call; there are {', '.join(self._acts)}")
            kind, act = self._acts[name]
            answer = act(msgspec.json.decode(received.body, type=kind))
            if inspect.isawaitable(answer):
                answer = await answer
        except (ApiError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            return await respond(writer, 400, msgspec.json.encode({"error": str(error)}))
        return await respond(writer, 200, msgspec.json.encode(answer))

    def _redeliver(self, update_id: int) -> None:
        if not self._state.updates.redeliver(update_id):
            raise bad_request(f"there is no update {update_id}")

    def _limit(self, is_on: bool) -> None:
        self._limits.is_on = is_on
        self._limits.forget()

    async def _watch(self, watch: wire.LogRequest) -> Sequence[wire.ChatEvent]:
        seen = self._state.events
        await self._state.changes.wait_for(lambda: len(seen) > watch.after, watch.timeout_s)
        return seen[watch.after :]

    def _messages_of(self, place: wire.ChatTopic) -> list[Message]:
        messages = self._state.messages[self._state.chat(place.chat).id].values()
        return [one for one in messages if place.thread in (None, one.message_thread_id)]

    def _screen(self, place: wire.ChatTopic) -> str:
        return screen.draw_chat(self._state.chat(place.chat), self._messages_of(place))

    def _dump(self, _: None) -> wire.ServerState:
        commands = self._state.commands.get(DEFAULT_SCOPE, ())
        return wire.ServerState(
            tuple(self._state.updates.pending),
            dict(self._calls),
            dict(self._refused),
            {one.command: one.description for one in commands},
            self._webhook.url,
            self._state.updates.redelivered,
        )
