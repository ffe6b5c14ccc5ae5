"""The tools of one session: those that its owner, a person or a group, may use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable

from msgspec import Struct

from everthread.agent.tools.runner import Toolbox, TurnRights, may_use
from everthread.domain.rights import OWNER_RIGHTS, AccessRole, Rights
from everthread.ports.tools import Tool

TOOLBOXES_MAX = 64
"""Limit for the tool sets that are kept. Most people have the same rights."""


async def _limit_to_any_guest(rights: Rights, accounts: Collection[str]) -> Rights:
    return rights.limited_to([Rights()]) if rights.role is AccessRole.GROUP else rights


class SessionTools(Struct, frozen=True):
    """The tool set of a session and the rights that it was selected by."""

    toolbox: Toolbox
    rights: Rights
    of_speakers: Callable[[Rights, Collection[str]], Awaitable[Rights]] = _limit_to_any_guest
    """As `RightsLookup.of_speakers`."""

    async def of_turn(self, speakers: frozenset[str]) -> TurnRights:
        """Return the rights that the calls of a turn are run with. `speakers` wrote the messages that it answers."""
        if self.rights.is_owner:
            return TurnRights(self.rights, speakers)
        return TurnRights(await self.of_speakers(self.rights, speakers), speakers)


class Toolboxes:
    """One set of tools, selected by rights. The owner has the whole set, which is not selected again."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._all = Toolbox(tools)
        self._selected: OrderedDict[Rights, Toolbox] = OrderedDict()

    def of(self, rights: Rights) -> Toolbox:
        if rights is OWNER_RIGHTS:
            return self._all
        found = self._selected.get(rights)
        if found is None:
            found = self._all.only(lambda tool: may_use(rights, tool))
            self._selected[rights] = found
            if len(self._selected) > TOOLBOXES_MAX:
                self._selected.popitem(last=False)
        self._selected.move_to_end(rights)
        return found
