"""The address of a client, for the log and the limits of each address. Access never depends on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

UNIX = "unix"
"""The address of every client of the Unix socket."""
FORWARDED_MAX = 20
"""Addresses of `X-Forwarded-For` that are read, from the right."""
_IPV6_SITE_BITS = 64

Address = IPv4Address | IPv6Address


class TrustedProxies:
    """The proxies of `gateway.http.trusted_proxies`."""

    def __init__(self, texts: Iterable[str]) -> None:
        texts = tuple(texts)
        self._unix = UNIX in texts
        self._networks = tuple(ip_network(text) for text in texts if text != UNIX)

    def __contains__(self, address: Address | None) -> bool:
        """Return True for a trusted address; None is the Unix socket."""
        if address is None:
            return self._unix
        return any(address in network for network in self._networks)


def client_address(peer: str | None, forwarded: Sequence[str], trusted: TrustedProxies) -> str:
    """Return the address of the client that a request comes from.

    `peer` is the other end of the connection, None on the Unix socket; `forwarded` are the `X-Forwarded-For` headers. A
    client can send any such header, so only what a trusted proxy has appended counts: the rightmost address that is no
    trusted proxy itself.
    """
    found = parse_address(peer) if peer is not None else None
    if found not in trusted:
        return str(found) if found is not None else UNIX
    for text in reversed(",".join(forwarded).split(",")[-FORWARDED_MAX:]):
        if (hop := parse_address(text)) is None:
            break
        found = hop
        if found not in trusted:
            break
    return str(found) if found is not None else UNIX


def slowed_network(address: str) -> str:
    """Return the key under which failures are counted. One IPv6 client has a whole /64."""
    parsed = parse_address(address)
    if isinstance(parsed, IPv6Address):
        return str(IPv6Network((int(parsed), _IPV6_SITE_BITS), strict=False))
    return address


@lru_cache(1024)
def parse_address(text: str) -> Address | None:
    """Parse an address with or without a port. An IPv4 address that is written as IPv6 counts as IPv4."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        # The name of the interface behind % may be any text.
        parsed = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (parsed.ipv4_mapped or parsed) if isinstance(parsed, IPv6Address) else parsed
