"""Every error that leaves the core, drawn as a tree.

EverthreadError
├── BadInput                 the caller's words are off: say them again, corrected
│   ├── BadKey  BadTitle  BadPolicy  BadBoundary  BadExport  BadSkill  TooLarge
│   ├── BadRecurrence  BadSchedule
│   ├── TitleTaken
│   ├── Ambiguous            what was named fits several sessions; carries them
│   └── NotesFull  AlreadyNoted
├── NotFound                 there is no such session, note or entry (or it is somebody else's)
│   └── NoSuchSession        carries those with the nearest names
├── AlreadyThere             something would be overwritten: choose another name, or move it away
├── Gone                     it was forgotten on request and can't come back
├── Busy                     a turn is running there
├── LockedOut                too many wrong codes: no code is looked at for a while
├── DoneBefore               a command that came in was carried out already
├── Fenced                   another holder has taken over what this one still believed to hold
├── StoreError
│   ├── StoreBusy            another program holds the file's write lock: try again
│   ├── DiskFull  StoreUnwritable
│   └── StoreCorrupt  StoreTooNew
├── ProviderError
│   ├── Unavailable          try again later: the entry waits
│   │   └── StartOver        what it was told before is gone: tell it again from there
│   └── Rejected             never try again: the entry is parked
├── ModelError
│   ├── ModelUnavailable     overloaded, unreachable or cut off: try again, or another model
│   ├── ModelRefused         the request will never be taken as it is
│   ├── ModelUnauthorized    the key is missing or wrong
│   ├── ModelUnknown         the endpoint has no such model
│   ├── ModelWithoutTools    the model can't be given tools
│   └── ContextTooLong       more was sent than the model can read
├── PlatformError
│   ├── PlatformUnavailable  not sent, or nothing heard: try again, not before `retry_after`
│   ├── PlatformRefused      it will never be taken as it is
│   └── SendUncertain        it may have gone out, and nobody can say
├── BudgetSpent              the owner's limit on spending is reached
├── TurnTooLong              a turn has taken more steps than it may
├── NotCompressed            a conversation is left as it is, and why
├── NotApproved              a dangerous call was not allowed; the model is told why
├── ToolFailed               a tool could not do what it was asked; the model is told why
└── BadConfig                the configuration can't be used; names file, line and the nearest valid key
"""

from collections.abc import Sequence
from typing import ClassVar


class EverthreadError(Exception):
    """Something a person can act on; the message is one line that says what and what next."""


class BadInput(EverthreadError):
    """The caller's words are off."""


class BadKey(BadInput):
    """A session key that can't be read."""


class BadTitle(BadInput):
    """A title that is empty, too long or made of nothing visible."""


class BadPolicy(BadInput):
    """A reset policy that means nothing."""


class BadRecurrence(BadInput):
    """A time, an interval or a cron expression that can't be read, or never comes."""


class BadSchedule(BadInput):
    """A scheduled task that can't be kept as it was asked for."""


class BadBoundary(BadInput):
    """A boundary whose numbers or ids make no sense."""


class BadExport(BadInput):
    """A file of exported sessions that can't be read; names the line."""


class TooLarge(BadInput):
    """An input beyond its limit."""


class BadSkill(BadInput):
    """A skill's file does not say what it must."""


class TitleTaken(BadInput):
    """Another session of the same owner has this title."""


class Ambiguous(BadInput):
    """What was named fits several sessions. `fitting` has some: the id and the title of each."""

    def __init__(self, message: str, fitting: Sequence[tuple[str, str]]) -> None:
        super().__init__(message)
        self.fitting = tuple(fitting)


class NotesFull(BadInput):
    """A collection of notes has no room for more."""

    def __init__(self, used: int, limit: int) -> None:
        super().__init__(f"the notes may have {limit:,} characters and have {used:,}; shorten or remove one first")
        self.used = used
        self.limit = limit


class AlreadyNoted(BadInput):
    """There is a note of the very same words."""


class NotFound(EverthreadError):
    """There is no such thing, or it belongs to somebody else: the two are not told apart."""


class NoSuchSession(NotFound):
    """No session has this name. `near` are those that may have been meant: the id and the title of each."""

    def __init__(self, message: str, near: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.near = tuple(near)


class AlreadyThere(EverthreadError):
    """Something of that name is there, and is not overwritten."""


class Gone(EverthreadError):
    """It was forgotten on request."""


class KeyMoved(EverthreadError):
    """What is for one session alone was not taken in: its key is on another one, or about to be."""


class Busy(EverthreadError):
    """A turn is running in that session."""


class LockedOut(EverthreadError):
    """Too many wrong codes."""


class DoneBefore(EverthreadError):
    """A command from the inbox was carried out before, perhaps by a process that is gone."""


class Fenced(EverthreadError):
    """Another holder has taken over a slot or a lease."""


class StoreError(EverthreadError):
    """The store could not do its work; nothing of the unit of work was kept."""


class StoreBusy(StoreError):
    """Another program holds the write lock."""


class DiskFull(StoreError):
    """There is no room left."""


class StoreUnwritable(StoreError):
    """The file or its folder can't be written."""


class StoreCorrupt(StoreError):
    """The file is no database of ours, or a damaged one."""


class StoreTooNew(StoreError):
    """A newer program wrote the file."""


class ProviderError(EverthreadError):
    """A memory provider could not do its work."""

    def __init__(self, provider: str, why: str = "") -> None:
        super().__init__(f"{provider}: {why or type(self).__name__.lower()}")
        self.provider = provider


class Unavailable(ProviderError):
    """The provider can't be reached or is overloaded; the same call may go through later."""

    def __init__(self, provider: str, why: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(provider, why)
        self.retry_after_s = retry_after_s


class StartOver(Unavailable):
    """The provider has lost what it was told of this session from entry `seq` on, and acknowledged: tell it again."""

    def __init__(self, provider: str, why: str, *, seq: int) -> None:
        super().__init__(provider, why)
        self.seq = seq


class Rejected(ProviderError):
    """The provider will never take this entry."""


class ModelError(EverthreadError):
    """A model could not be asked, or did not answer. What it says may name the endpoint and how it is set up."""

    plain: ClassVar[str] = "The model can't answer as it is set up now."
    """For people who have nothing to do with that."""


class ModelUnavailable(ModelError):
    """Overloaded, unreachable or cut off: the same request may go through later."""

    plain = "The model can't be reached now; try again later."

    def __init__(self, why: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class ModelRefused(ModelError):
    """The endpoint will never take this request."""

    plain = "The model does not take this; try it in other words."


class ModelUnauthorized(ModelError):
    """The key is missing or wrong."""


class ModelUnknown(ModelError):
    """The endpoint has no such model."""


class ModelWithoutTools(ModelError):
    """The model can't be given tools."""


class ContextTooLong(ModelError):
    """More was sent than the model can read."""

    plain = "This is more than the model can read; say less at once, or start afresh with /new."


class PlatformError(EverthreadError):
    """Something went wrong between us and a messaging platform."""


class PlatformUnavailable(PlatformError):
    """What was asked for has not happened: try again, but not before `retry_after` seconds."""

    def __init__(self, text: str, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class PlatformRefused(PlatformError):
    """The platform will never take it as it is, say because the chat is gone."""


class SendUncertain(PlatformError):
    """The connection broke after a message was handed over: it may have gone out."""


class BudgetSpent(EverthreadError):
    """A limit on spending is reached."""


class TurnTooLong(EverthreadError):
    """A turn has taken more steps than it may."""


class NotCompressed(EverthreadError):
    """A conversation was not compressed, and is as it was."""


class NotApproved(EverthreadError):
    """A dangerous call was not approved; it says why, in words for the model."""


class NotCondensed(EverthreadError):
    """Notes were not made shorter, and are as they were."""


class ToolFailed(EverthreadError):
    """A tool could not do what it was asked."""


class BadConfig(EverthreadError):
    """The configuration can't be used as it is."""
