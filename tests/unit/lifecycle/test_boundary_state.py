from pathlib import Path

import pytest
from tests.runtime import CLI, ME, CoreFixture

from everthread.domain.errors import Erased, NotFound
from everthread.lifecycle import ForgetSession
from everthread.lifecycle.boundary_state import owned_session


async def test_a_session_is_found_only_by_its_owner_and_until_it_is_forgotten(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        session_id = (await core.turn(CLI, "hello")).ref.session_id
        found = await core.store.read(lambda uow: owned_session(uow, session_id, ME))
        assert found.id == session_id
        with pytest.raises(NotFound):
            await core.store.read(lambda uow: owned_session(uow, session_id, "stranger"))
        await core.lifecycle.forget(ForgetSession(session_id), owner=ME)
        with pytest.raises(Erased):
            await core.store.read(lambda uow: owned_session(uow, session_id, ME))
