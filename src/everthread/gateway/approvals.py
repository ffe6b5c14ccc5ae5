"""Ask in a chat for the approval of a dangerous tool call.

A question is sent like a reply, and answered by a command. The turn that asks waits in this process: if the process
ends, the question is void, and an answer to it says so.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from everthread.agent.events import ApprovalRequest, Approve
from everthread.commands.context import CommandResult
from everthread.concurrency import cancel_tasks
from everthread.domain.errors import EverthreadError, NobodyToAsk, NotApproved, PlatformError
from everthread.domain.model import Reply, ReplyState, SessionKey, SessionRef
from everthread.domain.text_format import pluralize, shorten
from everthread.gateway.access import Access
from everthread.gateway.command_runner import GatewayRuntime
from everthread.gateway.message_split import split_for
from everthread.gateway.outbox import QUESTION, Outbox
from everthread.lifecycle.turns import without_forgotten
from everthread.log_context import log_fields
from everthread.ports.platform import Address, Button, Platform
from everthread.store.unit_of_work import UnitOfWork

log = logging.getLogger("everthread.gateway")

CODE_CHARS = 4
_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"
CLOSE_S_MAX = 10.0
_ANSWER_COLUMNS_MAX = 200

NOT_YOU = (
    "this call needs approval, and this user may not approve it; tell them that the operator decides who may "
    "(gateway.approvals)"
)
NO_ANSWER = "this call needs approval, and nobody answered within {time}; do not try it again unasked"
NOTHING_ASKED = "No tool call waits for approval here. If one is still needed, I ask again."
NO_LONGER = "This question is no longer open, so nothing was done."
NOT_YOURS = "Only the user whose message I am answering can decide this."


class _Question(Struct):
    code: str
    user: str
    call: str
    answer: asyncio.Future[bool]


class Approvals:
    """The open questions: at most one for each key."""

    def __init__(
        self,
        runtime: GatewayRuntime,
        outbox: Outbox,
        platforms: Mapping[str, Platform],
        access: Access,
        choice: Callable[[str], str],
    ) -> None:
        """`choice` picks a character with a cryptographic generator."""
        self._store, self._clock = runtime.store, runtime.clock
        self._wait_s = runtime.settings.gateway.approval_s
        self._outbox = outbox
        self._platforms = platforms
        self._access = access
        self._choice = choice
        self._open: dict[SessionKey, _Question] = {}
        self._closing: set[asyncio.Future[None]] = set()

    def of_turn(self, user: Callable[[], str]) -> Approve:
        """Return a function that asks about a call of one turn. `user` names the asking user."""

        async def approve(request: ApprovalRequest, ref: SessionRef) -> bool:
            if request.refusal:
                await self._tell(request, ref)
                return False
            return await self._ask(request, ref, user())

        return approve

    def answer(self, key: SessionKey, user: str, code: str, yes: bool) -> CommandResult:
        """Handle /approve and /deny. Only the named question is approved: a late press answers no other."""
        question = self._open.get(key)
        if question is None or question.answer.done():
            return CommandResult(NO_LONGER if code else NOTHING_ASKED, ok=False)
        if question.user != user:
            return CommandResult(NOT_YOURS, ok=False)
        if yes and not code:
            return CommandResult(f"Add the code: /approve {question.code} allows {question.call}", ok=False)
        if code and code.lower() != question.code:
            return CommandResult(NO_LONGER, ok=False)
        question.answer.set_result(yes)
        platform = self._platforms.get(key.platform)
        if code and platform is not None and platform.capabilities.edits:
            # The question itself is edited to show the result.
            return CommandResult("")
        return CommandResult(f"{'Allowed' if yes else 'Denied'}: {question.call}")

    async def finish(self) -> None:
        """Stop editing answered questions."""
        await cancel_tasks(self._closing)

    async def _tell(self, request: ApprovalRequest, ref: SessionRef) -> None:
        """Send the reason why a call is refused without a question."""
        if ref.key.platform in self._platforms:
            now = self._clock.now()
            name = f"{QUESTION}{ref.session_id}-{self._new_code()}-{now:.3f}"
            reply = Reply(name, ref.key, ref.session_id, ref.owner, request.refusal, ReplyState.READY, now)
            self._outbox.put(await self._store.write(lambda uow: _put_question(uow, reply)))

    async def _ask(self, request: ApprovalRequest, ref: SessionRef, user: str) -> bool:
        key, call = ref.key, request.call
        platform = self._platforms.get(key.platform)
        if platform is None or not user:
            raise NobodyToAsk
        if not self._access.may_approve(key.platform, user, ref.owner):
            raise NotApproved(NOT_YOU)
        code, time = self._new_code(), _time(self._wait_s)
        # In a code block, so that no Markdown in the call or in a tool's description is rendered.
        asked = f"May I do this?\n{_fence(request.description)}"
        text = f"{asked}\n/approve {code} allows it, /deny {code} does not. I wait {time}."
        short = shorten(request.text, _ANSWER_COLUMNS_MAX)
        question = _Question(code, user, short, asyncio.get_running_loop().create_future())
        name = f"{QUESTION}{ref.session_id}-{code}-{self._clock.now():.3f}"
        outcome = "This question is closed."
        self._open[key] = question
        log.info("asked for approval of %s", call.name, extra=log_fields(key, ref.session_id))
        try:
            reply = Reply(name, key, ref.session_id, ref.owner, text, ReplyState.READY, self._clock.now())
            stored = await self._store.write(lambda uow: _put_question(uow, reply))
            self._outbox.put(stored, (Button("Allow", f"/approve {code}"), Button("Deny", f"/deny {code}")))
            async with asyncio.timeout(self._wait_s):
                yes = await question.answer
            outcome = "Allowed." if yes else "Denied."
        except TimeoutError as error:
            outcome = "Nobody answered, so it was not done."
            raise NotApproved(NO_ANSWER.format(time=time)) from error
        finally:
            if self._open.get(key) is question:
                del self._open[key]
            log.info("approval of %s: %s", call.name, outcome, extra=log_fields(key, ref.session_id))
            closing = asyncio.ensure_future(self._close(platform, name, f"{asked}\n{outcome}"))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        return yes

    def _new_code(self) -> str:
        return "".join(self._choice(_ALPHABET) for _ in range(CODE_CHARS))

    async def _close(self, platform: Platform, name: str, text: str) -> None:
        """Withhold a question that was not sent; edit one that was to show the result, without buttons."""
        try:
            reply = await self._store.write(lambda uow: _withdraw(uow, name))
            if reply is not None and reply.platform_message_id and platform.capabilities.edits:
                last = split_for(text, platform.capabilities)[-1]
                with suppress(PlatformError):
                    async with asyncio.timeout(CLOSE_S_MAX):
                        await platform.edit(Address.of(reply.key), reply.platform_message_id, last)
        except (EverthreadError, TimeoutError) as error:
            log.info("could not show the result of a question: %s", error)
        except Exception:
            log.exception("could not show the result of a question")


def _put_question(uow: UnitOfWork, reply: Reply) -> Reply:
    """Store a question of a running turn, without the facts that were forgotten while it ran."""
    slot = uow.slots.live(reply.session_id)
    return uow.outbox.put_reply(replace(reply, text=without_forgotten(uow, slot, reply.text)) if slot else reply)


def _withdraw(uow: UnitOfWork, name: str) -> Reply | None:
    reply = uow.outbox.reply(name)
    if reply is not None and reply.state is ReplyState.READY:
        uow.outbox.put_reply(replace(reply, state=ReplyState.WITHHELD))
        return None
    return reply


def _fence(text: str) -> str:
    """Format as a code block with a fence longer than any in the text."""
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    fence = max(fence, "```", key=len)
    return f"{fence}\n{text}\n{fence}"


def _time(seconds: float) -> str:
    return pluralize(round(seconds / 60), "minute") if seconds >= 60 else pluralize(round(seconds), "second")
