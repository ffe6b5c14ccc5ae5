"""Errors of Telegram as platform errors, without the token."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from telegram.error import BadRequest, Conflict, Forbidden, InvalidToken, TelegramError

from everthread.adapters.platforms.telegram.http import NotConnected, RateLimited
from everthread.domain.errors import PlatformError, PlatformRefused, PlatformUnavailable, SendUncertain
from everthread.domain.text_format import one_line

MESSAGE_CHARS_MAX = 200
BAD_TOKEN = (
    "its token is not accepted; ask @BotFather for the right one and put it into .env (everthread setup telegram)"
)
CONFLICT = (
    "another program reads this bot's messages (409); stop it there, or get a token of its own for one of them "
    "from @BotFather"
)


class ErrorTranslator:
    """Translates errors of one bot's calls. Knows the token, to remove it from messages."""

    def __init__(self, token: str, call_s: float) -> None:
        self._token = token
        self.call_s = call_s
        """Time limit of an ordinary call."""

    @contextmanager
    def translate(self, *, uncertain: bool = False) -> Generator[None]:
        """Translate every Telegram error inside into a `PlatformError`. With `uncertain`, a lost connection raises
        `SendUncertain`, because the call may have had its effect.
        """
        try:
            yield
        except TelegramError as error:
            raise self._platform_error(error, SendUncertain if uncertain else PlatformUnavailable) from None

    def _platform_error(self, error: TelegramError, otherwise: type[PlatformError]) -> PlatformError:
        match error:
            case RateLimited():
                return PlatformUnavailable(str(error), error.retry_after_s)
            case InvalidToken():
                return PlatformUnavailable(BAD_TOKEN)
            case Conflict():
                return PlatformUnavailable(CONFLICT)
            case NotConnected():
                return PlatformUnavailable(str(error))
            case BadRequest() | Forbidden():
                return PlatformRefused(f"it refused: {self.message_of(error)}")
            case _:
                return otherwise(self.message_of(error))

    def message_of(self, error: TelegramError) -> str:
        return one_line(str(error).replace(self._token, "(token)"))[:MESSAGE_CHARS_MAX]
