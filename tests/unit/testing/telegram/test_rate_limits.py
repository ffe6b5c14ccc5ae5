"""How fast a bot may send on the emulated Telegram."""

from everthread.testing.telegram.rate_limits import Limits

CHAT, GROUP = 7, -1001


def test_a_chat_allows_a_short_burst_and_then_one_message_a_second() -> None:
    limits = Limits(is_on=True)
    assert [limits.wait_s(CHAT, 0.0) for _ in range(7)] == [0, 0, 0, 0, 0, 1, 1]
    assert limits.wait_s(CHAT, 0.75) == 0.25
    assert limits.wait_s(CHAT, 1.0) == 0
    assert limits.wait_s(CHAT, 1.0) == 1


def test_a_group_allows_twenty_messages_a_minute() -> None:
    limits = Limits(is_on=True)
    assert all(limits.wait_s(GROUP, float(second)) == 0 for second in range(20))
    assert limits.wait_s(GROUP, 20.0) == 40
    assert limits.wait_s(GROUP, 60.0) == 0
    assert limits.wait_s(GROUP, 60.0) == 1
    # A person's chat has no such limit.
    assert all(limits.wait_s(CHAT, float(second)) == 0 for second in range(60, 120))


def test_all_chats_together_allow_thirty_messages_a_second() -> None:
    limits = Limits(is_on=True)
    assert all(limits.wait_s(chat, 0.0) == 0 for chat in range(1, 31))
    assert 0 < limits.wait_s(31, 0.0) < 0.1
    assert limits.wait_s(31, 0.5) == 0


def test_refused_messages_do_not_count_and_limits_can_be_off() -> None:
    limits = Limits(is_on=True)
    for _ in range(50):
        limits.wait_s(CHAT, 0.0)
    assert limits.wait_s(CHAT, 1.0) == 0
    limits.is_on = False
    assert all(limits.wait_s(CHAT, 1.0) == 0 for _ in range(100))
