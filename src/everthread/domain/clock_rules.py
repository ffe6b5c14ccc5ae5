"""Rules to compare stored times with a wall clock that may be wrong. No other module decides which times to trust.

The wall clock is accepted as it is, after a restart too. A stored time too far ahead of it was written before the
clock was set back: it delays nothing, and is replaced when it is next used. See docs/adr/0046.
"""

from __future__ import annotations

AHEAD_S_MAX = 300.0
"""Tolerance. A stored time further ahead of the wall clock was written before the clock was set back."""
EARLIEST_CREDIBLE = 1_767_225_600.0
"""The start of 2026. A clock that shows an earlier time is certainly wrong, because the program is newer."""


def is_ahead(at: float, now: float) -> bool:
    """Return True if the stored time of a past event lies too far in the future to be true."""
    return at > latest_deadline(now)


def is_recent(at: float, now: float, age_s_max: float) -> bool:
    """Return True if a time that another machine claims is at most that old, and not ahead of the wall clock."""
    return now - at <= age_s_max and not is_ahead(at, now)


def credible_time(at: float, now: float) -> float:
    """Return the stored time of a past event, or `now` if it lies too far in the future.

    If the clock is certainly wrong, the stored time is returned, as the more credible one: a machine without a clock
    battery boots in 1970, and must not lose the times at which its conversations were last used.
    """
    return now if is_ahead(at, now) and now >= EARLIEST_CREDIBLE else at


def latest_deadline(now: float, wait_s: float = 0.0) -> float:
    """Return the latest credible deadline. A later one counts as reached.

    `wait_s` is the longest wait of that kind; leave it out for waits of a few minutes at most.
    """
    return now + wait_s + AHEAD_S_MAX


def is_waiting(until: float, now: float, wait_s: float = 0.0) -> bool:
    """Return True before a deadline, unless it is too far ahead to be credible. For `wait_s` see `latest_deadline`."""
    return now < until <= latest_deadline(now, wait_s)


class ClockWatch:
    """Detects that the wall clock was set back, by comparing it with elapsed time.

    A jump forward needs no detection. If elapsed time confirms it, the machine was suspended and the time is real;
    otherwise the clock was set, and is accepted.
    """

    def __init__(self) -> None:
        self._highest: float | None = None

    def is_set_back(self, now: float, elapsed: float) -> bool:
        """Return True after the clock was set back, until `accept` is called.

        The first call returns True too: the clock may have been set back before this process started.
        """
        if self._highest is None or is_ahead(self._highest, now - elapsed):
            return True
        # Several small steps count like a large one.
        self._highest = max(self._highest, now - elapsed)
        return False

    def accept(self, now: float, elapsed: float) -> None:
        """Accept the clock as it is now, after stored times that are ahead of it were replaced."""
        self._highest = now - elapsed
