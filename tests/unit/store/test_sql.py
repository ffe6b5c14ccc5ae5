from everthread.domain.model import Fate, SessionKey
from everthread.store.sql import by_value, from_json, key_of, placeholders, to_json


def test_placeholders_are_separated_by_commas() -> None:
    assert placeholders(3) == "?, ?, ?"


def test_enumerations_are_looked_up_by_their_stored_value() -> None:
    assert by_value(Fate)[Fate.LIVE.value] is Fate.LIVE


def test_json_survives_a_lone_surrogate() -> None:
    assert from_json(to_json({"text": "a\ud800b"})) == {"text": "a?b"}


def test_a_stored_key_reads_back_and_a_damaged_one_is_shown(key: SessionKey) -> None:
    assert key_of(str(key)) == key
    assert key_of("no key at all").chat == "no key at all"
