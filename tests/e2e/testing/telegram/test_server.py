"""The HTTP server of the emulator: tokens."""

from __future__ import annotations

import pytest
from tests.e2e.telegram_fixture import refused, scene
from tests.e2e.telegram_libraries import LIBRARIES, Library

pytestmark = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: type(library).__name__)


async def test_a_wrong_token_is_unauthorized(library: Library) -> None:
    async with scene(library) as s, library.bot(s.emulator.base_url, "42:WRONG") as stranger:
        await refused(stranger.get_me(), library.unauthorized, "")
