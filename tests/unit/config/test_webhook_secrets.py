"""Problems of webhooks that are told at the start and by `everthread doctor`."""

from __future__ import annotations

from pathlib import Path

from everthread.config.schema import GatewaySettings, Settings, Variables, WebhookSettings
from everthread.config.webhook_secrets import disabled_webhooks, enabled_webhooks, missing_secrets, webhook_problems


def settings_of(values: dict[str, str], **hooks: WebhookSettings) -> Settings:
    return Settings(Path("/home/me"), gateway=GatewaySettings(webhooks=hooks), variables=Variables(values))


def test_a_webhook_without_a_scheme_is_disabled_and_its_line_is_named() -> None:
    settings = settings_of({"A": "a", "B": "b"}, old=WebhookSettings("A"), new=WebhookSettings("B", "github"))
    assert list(enabled_webhooks(settings)) == ["new"]
    [(says, fix)] = webhook_problems(settings)
    assert says == "the webhook old has no scheme and is disabled"
    assert fix == 'add scheme = "everthread" or scheme = "github" to [gateway.webhooks.old] in /home/me/config.toml'


def test_webhooks_that_share_a_secret_are_disabled_without_quoting_it() -> None:
    one, two, three = WebhookSettings("A", "github"), WebhookSettings("A", "github"), WebhookSettings("B", "github")
    settings = settings_of({"A": "hidden", "B": "hidden", "C": "c"}, one=one, two=two, three=three)
    assert set(disabled_webhooks(settings)) == {"one", "two", "three"}
    problems = webhook_problems(settings)
    assert [says for says, _ in problems] == [
        "the webhooks one and two have the same secret and are disabled",
        "the webhooks one and three have the same secret and are disabled",
    ]
    assert problems[0][1].startswith("give two a secret_env of its own in /home/me/config.toml")
    assert "hidden" not in str(problems)


def test_a_missing_secret_is_a_problem() -> None:
    [(says, _)] = missing_secrets(settings_of({}, one=WebhookSettings("A", "github")))
    assert says == "the webhook one has no secret"
