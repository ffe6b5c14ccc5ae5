"""What Telegram says went wrong, in our words. A token is never in them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from telegram.error import BadRequest, Conflict, Forbidden, InvalidToken, TelegramError

from everthread.adapters.platforms.telegram.http import NotReached, TooMuch
from everthread.domain.errors import PlatformError, PlatformRefused, PlatformUnavailable, SendUncertain
from everthread.domain.text_format import one_line

WORDS_MAX = 200
BAD_TOKEN = (
    "its token is not accepted; ask @BotFather for the right one and put it into .env (everthread setup telegram)"
)
NOT_ALONE = (
    "another program reads this bot's messages (409); stop it there, or get a token of its own for one of them "
    "from @BotFather"
)


class Failures:
    """How the calls of one bot fail. Knows its token, so that it is left out wherever it might be repeated."""

    def __init__(self, token: str, call_s: float) -> None:
        self._token = token
        self.call_s = call_s
        """What a call gets that is answered at once."""

    @contextmanager
    def told(self, *, uncertain: bool = False) -> Generator[None]:
        """Raise a `PlatformError` for every failure inside. `uncertain` if it matters whether a call that broke off
        had its effect.
        """
        try:
            yield
        except TelegramError as error:
            raise self._ours(error, SendUncertain if uncertain else PlatformUnavailable) from None

    def _ours(self, error: TelegramError, broken: type[PlatformError]) -> PlatformError:
        match error:
            case TooMuch():
                return PlatformUnavailable(str(error), error.seconds)
            case InvalidToken():
                return PlatformUnavailable(BAD_TOKEN)
            case Conflict():
                return PlatformUnavailable(NOT_ALONE)
            case NotReached():
                return PlatformUnavailable(str(error))
            case BadRequest() | Forbidden():
                return PlatformRefused(f"it refused: {self.words(error)}")
            case _:
                return broken(self.words(error))

    def words(self, error: TelegramError) -> str:
        return one_line(str(error).replace(self._token, "(token)"))[:WORDS_MAX]
