"""Sessions of Hermes as sessions of this program."""

from __future__ import annotations

from everthread.hermes_import.allowlist import accounts_of


def test_allowed_accounts_are_imported_and_a_wildcard_is_not() -> None:
    variables = {
        "TELEGRAM_ALLOWED_USERS": "1, 2,,*",
        "QQ_ALLOWED_USERS": "3",
        "QQ_GROUP_ALLOWED_USERS": "9",
        "DISCORD_ALLOW_ALL_USERS": "true",
        "SLACK_ALLOW_ALL_USERS": "false",
        "GATEWAY_ALLOWED_USERS": "7",
    }
    approved = {"telegram": {"2": {"user_name": "Ann  B", "approved_at": 5.0}}, "../x": {"1": {}}, "matrix": {"": {}}}
    accounts, left = accounts_of(variables, approved)
    assert sorted((each.platform, each.user, each.name) for each in accounts) == [
        ("qqbot", "3", ""),
        ("telegram", "1", ""),
        ("telegram", "2", "Ann B"),
    ]
    assert [each.what for each in left] == [
        "TELEGRAM_ALLOWED_USERS=*",
        "QQ_GROUP_ALLOWED_USERS",
        "DISCORD_ALLOW_ALL_USERS",
        "GATEWAY_ALLOWED_USERS",
        "accounts",
    ]
