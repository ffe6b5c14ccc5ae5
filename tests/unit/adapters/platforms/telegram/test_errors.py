"""Errors of Telegram as platform errors."""

import pytest
from telegram.error import BadRequest, Conflict, Forbidden, InvalidToken, NetworkError, TelegramError

from everthread.adapters.platforms.telegram.errors import ErrorTranslator
from everthread.adapters.platforms.telegram.http import NotConnected, RateLimited
from everthread.domain.errors import PlatformRefused, PlatformUnavailable, SendUncertain


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RateLimited(3), PlatformUnavailable),
        (InvalidToken("1:abc"), PlatformUnavailable),
        (Conflict("other reader"), PlatformUnavailable),
        (NotConnected("down"), PlatformUnavailable),
        (BadRequest("chat 1:abc not found"), PlatformRefused),
        (Forbidden("blocked"), PlatformRefused),
        (NetworkError("lost 1:abc"), SendUncertain),
    ],
)
def test_each_error_is_translated_without_the_token(error: TelegramError, expected: type[Exception]) -> None:
    translator = ErrorTranslator("1:abc", 1.0)
    with pytest.raises(expected) as caught, translator.translate(uncertain=True):
        raise error
    assert "1:abc" not in str(caught.value)


def test_a_lost_connection_is_uncertain_only_where_that_matters() -> None:
    with pytest.raises(PlatformUnavailable), ErrorTranslator("t", 1.0).translate():
        raise NetworkError("lost")


def test_the_delay_is_passed_on() -> None:
    with pytest.raises(PlatformUnavailable) as caught, ErrorTranslator("t", 1.0).translate():
        raise RateLimited(3)
    assert caught.value.retry_after == 3
