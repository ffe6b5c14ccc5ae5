"""Entities of a text and addresses of links."""

from everthread.testing.telegram.entities import link_target


def test_links_are_normalised() -> None:
    assert link_target("example.org") == "http://example.org/"
    assert link_target("HTTPS://Example.org/Path") == "https://example.org/Path"
    assert link_target("tg://user?id=7") == "tg://user?id=7"
    assert link_target("localhost") is None
    assert link_target("two words") is None
