"""Quotas of each person except the owner of the installation. Pure."""

from __future__ import annotations

from msgspec import Struct

from everthread.domain.errors import QuotaReached, StorageQuotaReached
from everthread.domain.text_format import pluralize

DAY_S = 86_400.0


class Quotas(Struct, frozen=True):
    """Limits for the data of one person. 0 forbids it."""

    exempt: str
    """The owner of the installation, who has no quota."""
    sessions: int
    forks_per_day: int
    media_bytes: int
    schedules: int
    stored_bytes: int

    def check_sessions(self, count: int) -> None:
        """Raise `QuotaReached` if a person with that many sessions may not open another."""
        if count >= self.sessions:
            raise QuotaReached(
                f"you have {pluralize(count, 'conversation')}, and {self.sessions:,} are allowed for each person here; "
                "continue one of yours, delete one, or ask the operator for more"
            )

    def check_forks(self, count: int) -> None:
        """Raise `QuotaReached` if a person with that many forks in a day may not make another."""
        if count >= self.forks_per_day:
            raise QuotaReached(
                f"{self.forks_per_day:,} branches in 24 hours are allowed for each person here; "
                "continue one of yours, or try again tomorrow"
            )

    def check_stored(self, count: int) -> None:
        """Raise `StorageQuotaReached` if a person whose messages and notes have that many bytes may not write more."""
        if count >= self.stored_bytes:
            raise StorageQuotaReached(
                f"your conversations and notes take {count:,} bytes, and {self.stored_bytes:,} are allowed for each "
                "person here; delete old conversations, or ask the operator for more"
            )

    def check_media(self, count: int) -> None:
        """Raise `StorageQuotaReached` if the attachments of a person may not have that many bytes."""
        if count > self.media_bytes:
            raise StorageQuotaReached(
                f"your attachments would take {count:,} bytes, and {self.media_bytes:,} are allowed for each person "
                "here; send the message without attachments, delete old conversations, or ask the operator for more"
            )
