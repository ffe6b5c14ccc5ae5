"""One gateway for each bot."""

from pathlib import Path

import pytest

from everthread.adapters.platforms.telegram.token_lock import TokenLock
from everthread.domain.errors import PlatformUnavailable


def test_a_bot_is_served_by_one_gateway_at_a_time(tmp_path: Path) -> None:
    first, second = TokenLock(tmp_path / "locks", "1:abc"), TokenLock(tmp_path / "locks", "1:abc")
    first.acquire()
    first.acquire()
    with pytest.raises(PlatformUnavailable, match="another gateway"):
        second.acquire()
    TokenLock(tmp_path / "locks", "2:def").acquire()
    first.release()
    second.acquire()
    second.release()


def test_the_file_does_not_contain_the_token(tmp_path: Path) -> None:
    lock = TokenLock(tmp_path, "1:abc")
    lock.acquire()
    [file] = tmp_path.iterdir()
    assert "abc" not in file.name
    lock.release()


def test_a_folder_that_can_not_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PlatformUnavailable, match="this folder must be yours"):
        TokenLock(tmp_path / "file" / "locks", "1:abc").acquire()
