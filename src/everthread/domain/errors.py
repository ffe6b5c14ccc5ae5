"""The errors that leave the core, as one tree.

EverthreadError
├── BadInput                 invalid input: correct it and try again
│   ├── BadKey  BadTitle  BadPolicy  BadBoundary  BadExport  BadSkill  TooLarge
│   ├── BadRecurrence  BadSchedule
│   ├── TitleTaken
│   ├── Ambiguous            the name matches several sessions; lists them
│   └── NotesFull  DuplicateNote
├── NotFound                 no such session, note or entry, or it belongs to another owner
│   └── NoSuchSession        lists the sessions with the nearest names
├── AlreadyExists            the name is in use, and nothing is overwritten: choose another name
├── Erased                   erased by a forget request, permanently
├── KeyMoved                 the key left the session that the message was for: send it again
├── Busy                     a turn is running in the session
├── LockedOut                too many wrong pairing codes: wait
├── AlreadyDone              the command was carried out already
├── Fenced                   another holder took over the slot, lease or review
│   └── Outdated             something was forgotten since the text was derived from it: derive it again
├── TurnCancelled            a boundary cancelled the turn: commit it, and begin nothing more in it
├── StoreError               the transaction was rolled back
│   ├── StoreBusy            another process holds the write lock: retry
│   ├── DiskFull  StoreUnwritable
│   └── StoreCorrupt  StoreTooNew
├── ProviderError            a memory provider failed
│   ├── Unavailable          retry later: the entry stays pending
│   │   └── StartOver        the provider lost acknowledged entries: deliver them again
│   └── Rejected             do not retry: the entry is parked
├── ModelError               a model call failed
│   ├── ModelUnavailable     overloaded, unreachable or disconnected: retry, or use another model
│   ├── ModelRefused         the endpoint rejects the request
│   ├── ModelUnauthorized    the API key is missing or wrong
│   ├── ModelUnknown         the endpoint has no such model
│   ├── ModelWithoutTools    the model does not support tools
│   └── ContextTooLong       the request exceeds the model's context window
├── PlatformError            a messaging platform failed
│   ├── PlatformUnavailable  the request had no effect: retry after `retry_after` seconds
│   ├── PlatformRefused      the platform rejects the request
│   └── SendUncertain        the message may have been sent
├── BudgetExceeded           a spending limit is reached
├── QuotaReached             a person has reached a quota: delete something, or ask the operator
│   └── StorageQuotaReached  a quota of bytes
├── TurnTooLong              a turn exceeds its maximum number of steps
├── NotCompressed            the conversation was not compressed
├── NotCondensed             the notes were not condensed
├── NotApproved              a dangerous tool call was not approved; the model receives the reason
│   └── NobodyToAsk          no user is present who could approve it
├── ToolFailed               a tool call failed; the model receives the reason
└── BadConfig                invalid configuration; names the file, the line and the nearest valid key
"""

from collections.abc import Sequence
from typing import ClassVar


class EverthreadError(Exception):
    """Base class of the errors that a user can act on. The message is one line: the problem, then the next step.

    A class that declares `log_safe` is written to the log with its message: none of its messages contains words of a
    person, a model or another program. Of all other classes, the log has only the name. Subclasses do not inherit this.
    """


class BadInput(EverthreadError):
    """The input is invalid."""


class BadKey(BadInput):
    """The text is not a session key."""


class BadTitle(BadInput):
    """The title is empty, too long, or has no visible character."""


class BadPolicy(BadInput):
    """The reset policy has an invalid value, or the time zone is unknown."""


class BadRecurrence(BadInput):
    """The time, interval or cron expression is invalid, or never occurs."""


class BadSchedule(BadInput):
    """The scheduled task is invalid, for example its name, prompt or target."""


class BadBoundary(BadInput):
    """The boundary has an invalid number, text or parent."""


class BadExport(BadInput):
    """The export file is invalid. The message names the line."""


class TooLarge(BadInput):
    """The input exceeds its size limit."""


class BadSkill(BadInput):
    """The skill file is invalid."""


class TitleTaken(BadInput):
    """Another session of the same owner has this title."""


class Ambiguous(BadInput):
    """The name matches several sessions. `matches` has the id and the title of some of them."""

    def __init__(self, message: str, matches: Sequence[tuple[str, str]]) -> None:
        super().__init__(message)
        self.matches = tuple(matches)


class NotesFull(BadInput):
    """The collection of notes has reached its limit. `used` and `limit` are numbers of characters."""

    def __init__(self, used: int, limit: int) -> None:
        super().__init__(f"the notes may have {limit:,} characters and have {used:,}; shorten or remove one first")
        self.used = used
        self.limit = limit


class DuplicateNote(BadInput):
    """A note with the same text exists."""


class NotFound(EverthreadError):
    """The object does not exist or belongs to another owner. Callers can't distinguish the two cases."""


class NoSuchSession(NotFound):
    """No session has this name. `similar` has the id and the title of sessions with a similar name."""

    def __init__(self, message: str, similar: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.similar = tuple(similar)


class AlreadyExists(EverthreadError):
    """An object of that name exists, and is not overwritten."""


class Erased(EverthreadError):
    """The object was erased by a forget request."""


class KeyMoved(EverthreadError):
    """A message for one session was not accepted: its key is on another session, or a waiting command may move it."""


class Busy(EverthreadError):
    """A turn is running in the session."""


class LockedOut(EverthreadError):
    """Too many wrong pairing codes were entered."""


class AlreadyDone(EverthreadError):
    """A command of the inbox was carried out already, possibly by a process that has ended."""


class Fenced(EverthreadError):
    """Another holder has taken over the slot, lease or review. The write was refused."""

    log_safe: ClassVar[bool] = True


class Outdated(Fenced):
    """Something was forgotten since the text was derived from it. The write was refused."""

    log_safe: ClassVar[bool] = True


class TurnCancelled(EverthreadError):
    """A boundary has cancelled the turn. It can be committed, but must begin nothing more."""


class StoreError(EverthreadError):
    """The store failed, and rolled back the unit of work."""


class StoreBusy(StoreError):
    """Another process holds the write lock."""

    log_safe: ClassVar[bool] = True


class DiskFull(StoreError):
    """The disk is full."""

    log_safe: ClassVar[bool] = True


class StoreUnwritable(StoreError):
    """The database file or its folder is not writable."""

    log_safe: ClassVar[bool] = True


class StoreCorrupt(StoreError):
    """The file is damaged, or is not an Everthread database."""


class StoreTooNew(StoreError):
    """A newer version of Everthread wrote the file."""

    log_safe: ClassVar[bool] = True


class ProviderError(EverthreadError):
    """A memory provider failed."""

    def __init__(self, provider: str, why: str = "") -> None:
        super().__init__(f"{provider}: {why or type(self).__name__.lower()}")
        self.provider = provider


class Unavailable(ProviderError):
    """The provider is unreachable or overloaded. Retry the same call later."""

    def __init__(self, provider: str, why: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(provider, why)
        self.retry_after_s = retry_after_s


class StartOver(Unavailable):
    """The provider has lost acknowledged entries of this session. Deliver them again from entry `seq` on."""

    def __init__(self, provider: str, why: str, *, seq: int) -> None:
        super().__init__(provider, why)
        self.seq = seq


class Rejected(ProviderError):
    """The provider rejects this entry permanently. Park it."""


class ModelError(EverthreadError):
    """A model call failed. The message may name the endpoint and its configuration; `plain` does not."""

    plain: ClassVar[str] = "The model can't answer as it is set up now."
    """The message for users who do not operate the program."""


class ModelUnavailable(ModelError):
    """The endpoint is overloaded or unreachable, or the connection broke. Retry the same request later."""

    plain = "The model can't be reached now; try again later."

    def __init__(self, why: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class ModelRefused(ModelError):
    """The endpoint rejects this request permanently."""

    plain = "The model rejected this; try other words."


class ModelUnauthorized(ModelError):
    """The API key is missing or wrong."""


class ModelUnknown(ModelError):
    """The endpoint has no such model."""


class ModelWithoutTools(ModelError):
    """The model does not support tools."""


class ContextTooLong(ModelError):
    """The request exceeds the model's context window."""

    plain = "This is more than the model can read; send less at once, or start a new session with /new."


class PlatformError(EverthreadError):
    """A request to a messaging platform failed."""


class PlatformUnavailable(PlatformError):
    """The request had no effect. Retry it after `retry_after` seconds."""

    def __init__(self, text: str, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class PlatformRefused(PlatformError):
    """The platform rejects the request permanently, for example because the chat was deleted."""


class SendUncertain(PlatformError):
    """The connection broke after the request was written. The message may have been sent."""


class BudgetExceeded(EverthreadError):
    """A spending limit is reached."""


class QuotaReached(EverthreadError):
    """A person has reached a quota."""


class StorageQuotaReached(QuotaReached):
    """A person has stored as many bytes as allowed."""


class TurnTooLong(EverthreadError):
    """The turn exceeds its maximum number of steps."""


class NotCompressed(EverthreadError):
    """The conversation was not compressed, and is unchanged."""


class NotApproved(EverthreadError):
    """A dangerous tool call was not approved. The message gives the model the reason."""


class NobodyToAsk(NotApproved):
    """No user is present who could approve a dangerous tool call."""


class NotCondensed(EverthreadError):
    """The notes were not condensed, and are unchanged."""


class ToolFailed(EverthreadError):
    """A tool call failed. The message gives the model the reason."""


class BadConfig(EverthreadError):
    """The configuration is invalid."""
