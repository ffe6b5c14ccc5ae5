from everthread.domain.clock_rules import AHEAD_S_MAX
from everthread.memory.circuit_breaker import FAILURES_MAX, RECALL_PAUSE_S, ProviderBreakers, RecallBreakers
from everthread.store.cursors import ProviderRow


def test_an_open_breaker_is_cached_until_its_end_or_a_delivery() -> None:
    breakers = ProviderBreakers()
    assert breakers.open_until("ill", 100.0) is None
    breakers.update([ProviderRow("ill", 0, open_until=130.0)])
    assert breakers.open_until("ill", 129.0) == 130.0
    assert breakers.open_until("well", 129.0) is None
    assert breakers.open_until("ill", 130.0) is None
    assert breakers.open_until("ill", 130.0 - AHEAD_S_MAX - 1.0) is None
    breakers.close("ill")
    assert breakers.open_until("ill", 129.0) is None


def test_after_a_pause_one_turn_tries_again() -> None:
    breakers, one = RecallBreakers(), ("one", True)
    assert breakers.may_ask(one, 0.0)
    breakers.record_timeout(one, 2.0)
    assert not breakers.may_ask(one, 3.0)
    assert breakers.may_ask(("two", True), 3.0)
    assert breakers.may_ask(one, 2.0 + RECALL_PAUSE_S)
    assert not breakers.may_ask(one, 2.0 + RECALL_PAUSE_S)
    breakers.record_success(one)
    assert breakers.may_ask(one, 3.0 + RECALL_PAUSE_S)
    assert breakers.may_ask(one, 3.0 + RECALL_PAUSE_S)


def test_several_failures_in_a_row_pause_recall() -> None:
    breakers, one = RecallBreakers(), ("one", True)
    for _ in range(FAILURES_MAX - 1):
        breakers.record_failure(one, 1.0)
    assert breakers.may_ask(one, 1.0)
    breakers.record_success(one)
    for _ in range(FAILURES_MAX - 1):
        breakers.record_failure(one, 1.0)
    assert breakers.may_ask(one, 1.0)
    breakers.record_failure(one, 1.0)
    assert not breakers.may_ask(one, 2.0)
    assert breakers.may_ask(one, 1.0 + RECALL_PAUSE_S)
    breakers.record_failure(one, 1.0 + RECALL_PAUSE_S)
    assert not breakers.may_ask(one, 2.0 + RECALL_PAUSE_S)
