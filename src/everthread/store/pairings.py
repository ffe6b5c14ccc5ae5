"""Access beyond the settings: paired guests, pairing codes, and failed attempts."""

from __future__ import annotations

from everthread.domain.pairing import PairedAccount, PairingRequest, WrongCodes
from everthread.store.database import Table

_GUEST = 'platform, "user", owner, name, at'
_PAIRING = 'platform, "user", code_hash, name, at, expires_at, since, codes'


class Access(Table):
    """Guests, codes and failed attempts."""

    def guest(self, platform: str, user: str) -> PairedAccount | None:
        row = self._first(f'SELECT {_GUEST} FROM guests WHERE platform = ? AND "user" = ?', (platform, user))
        return PairedAccount(*row) if row else None

    def guests(self, owner: str | None = None) -> tuple[PairedAccount, ...]:
        """Return all guests, or the accounts of one owner, ordered by account."""
        whose, values = ("WHERE owner = ?", (owner,)) if owner is not None else ("", ())
        return tuple(
            PairedAccount(*row)
            for row in self._execute(f'SELECT {_GUEST} FROM guests {whose} ORDER BY platform, "user"', values)
        )

    def add_guest(self, guest: PairedAccount) -> None:
        """Add or update a guest."""
        self._execute(
            f'INSERT INTO guests ({_GUEST}) VALUES (?, ?, ?, ?, ?) ON CONFLICT (platform, "user") '
            "DO UPDATE SET owner = excluded.owner, name = excluded.name, at = excluded.at",
            (guest.platform, guest.user, guest.owner, guest.name, guest.at),
        )

    def remove_guest(self, platform: str, user: str) -> bool:
        """Remove a guest. Return False if there is none."""
        return self._exists('DELETE FROM guests WHERE platform = ? AND "user" = ? RETURNING 1', (platform, user))

    def pairing(self, platform: str, user: str) -> PairingRequest | None:
        row = self._first(f'SELECT {_PAIRING} FROM pairings WHERE platform = ? AND "user" = ?', (platform, user))
        return PairingRequest(*row) if row else None

    def pairings(self, platform: str | None = None) -> tuple[PairingRequest, ...]:
        """Return the codes of one platform or of all, the oldest first, including expired ones."""
        some, values = ("WHERE platform = ?", (platform,)) if platform is not None else ("", ())
        return tuple(
            PairingRequest(*row)
            for row in self._execute(f'SELECT {_PAIRING} FROM pairings {some} ORDER BY at, platform, "user"', values)
        )

    def recent_pairings(self, platform: str, after: float, before: float, limit: int) -> int:
        """Count the platform's codes that were offered between those times, up to a limit."""
        return self._value(
            "SELECT COUNT(*) FROM (SELECT 1 FROM pairings WHERE platform = ? AND at > ? AND at <= ? LIMIT ?) AS recent",
            (platform, after, before, limit),
        )

    def drop_old_pairings(self, platform: str, until: float, after: float) -> None:
        """Remove the platform's codes that were offered before `until`, or later than `after`."""
        self._execute("DELETE FROM pairings WHERE platform = ? AND (at <= ? OR at > ?)", (platform, until, after))

    def put_pairing(self, pairing: PairingRequest) -> None:
        """Store a code in place of the account's previous one."""
        p = pairing
        self._execute(
            f'INSERT INTO pairings ({_PAIRING}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (platform, "user") '
            "DO UPDATE SET code_hash = excluded.code_hash, name = excluded.name, at = excluded.at, "
            "expires_at = excluded.expires_at, since = excluded.since, codes = excluded.codes",
            (p.platform, p.user, p.code_hash, p.name, p.at, p.expires_at, p.since, p.codes),
        )

    def drop_pairing(self, platform: str, user: str) -> bool:
        """Remove a code. Return False if there is none."""
        return self._exists('DELETE FROM pairings WHERE platform = ? AND "user" = ? RETURNING 1', (platform, user))

    def wrong_codes(self, scope: str) -> WrongCodes | None:
        row = self._first("SELECT scope, count, locked_until FROM wrong_codes WHERE scope = ?", (scope,))
        return WrongCodes(*row) if row else None

    def put_wrong_codes(self, wrong: WrongCodes) -> None:
        self._execute(
            "INSERT INTO wrong_codes (scope, count, locked_until) VALUES (?, ?, ?) ON CONFLICT (scope) "
            "DO UPDATE SET count = excluded.count, locked_until = excluded.locked_until",
            (wrong.scope, wrong.count, wrong.locked_until),
        )

    def drop_wrong_codes(self, scope: str) -> None:
        self._execute("DELETE FROM wrong_codes WHERE scope = ?", (scope,))
