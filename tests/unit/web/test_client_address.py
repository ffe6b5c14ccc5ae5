"""The client's address behind proxies: what a client claims counts only if a trusted proxy says it."""

from __future__ import annotations

import pytest

from everthread.web.client_address import TrustedProxies, client_address, parse_address, slowed_network

NOBODY = TrustedProxies(())
PROXY = TrustedProxies(("10.0.0.1", "192.168.0.0/16", "2001:db8:1::/48"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "trusted", "expected"),
    [
        ("127.0.0.1", ["198.51.100.9"], NOBODY, "127.0.0.1"),
        ("10.0.0.1", ["198.51.100.9"], PROXY, "198.51.100.9"),
        ("10.0.0.2", ["198.51.100.9"], PROXY, "10.0.0.2"),
        ("10.0.0.1", [], PROXY, "10.0.0.1"),
        ("10.0.0.1", [""], PROXY, "10.0.0.1"),
        # A client may send the header itself; the proxy appends to it.
        ("10.0.0.1", ["127.0.0.1, 198.51.100.9"], PROXY, "198.51.100.9"),
        ("10.0.0.1", ["127.0.0.1", "198.51.100.9"], PROXY, "198.51.100.9"),
        ("10.0.0.1", ["203.0.113.1, 198.51.100.9, 192.168.3.4"], PROXY, "198.51.100.9"),
        ("10.0.0.1", ["192.168.1.1, 192.168.1.2"], PROXY, "192.168.1.1"),
        ("10.0.0.1", ["198.51.100.9, nonsense"], PROXY, "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.9:4711"], PROXY, "198.51.100.9"),
        ("10.0.0.1", ["[2001:db8::5]:4711"], PROXY, "2001:db8::5"),
        ("2001:db8:1::7", ["::ffff:198.51.100.9"], PROXY, "198.51.100.9"),
        ("::ffff:10.0.0.1", ["198.51.100.9"], PROXY, "198.51.100.9"),
        (None, ["198.51.100.9"], PROXY, "unix"),
        (None, ["198.51.100.9"], TrustedProxies(("unix",)), "198.51.100.9"),
        (None, [], TrustedProxies(("unix",)), "unix"),
    ],
)
def test_only_a_trusted_proxy_names_the_client(
    peer: str | None, forwarded: list[str], trusted: TrustedProxies, expected: str
) -> None:
    assert client_address(peer, forwarded, trusted) == expected


def test_a_long_header_is_read_from_the_right_only() -> None:
    forwarded = ["203.0.113.1, " + "192.168.1.1, " * 5000 + "192.168.1.2"]
    assert client_address("10.0.0.1", forwarded, PROXY) == "192.168.1.1"


@pytest.mark.parametrize("text", ["", "x", "1.2.3", "fe80::1%", "[", "[]", ":", "::::", "1.2.3.4.5", "a" * 100_000])
def test_nonsense_is_no_address(text: str) -> None:
    assert parse_address(text) is None or text == "fe80::1%"


def test_the_logged_address_has_no_text_of_the_client() -> None:
    assert str(parse_address('fe80::1%"},"injected')) == "fe80::1"


def test_one_ipv6_client_cannot_use_its_many_addresses() -> None:
    assert slowed_network("2001:db8:0:1::1") == slowed_network("2001:db8:0:1:ffff::2") == "2001:db8:0:1::/64"
    assert slowed_network("2001:db8:0:2::1") != slowed_network("2001:db8:0:1::1")
    assert slowed_network("198.51.100.9") == "198.51.100.9"
    assert slowed_network("unix") == "unix"
