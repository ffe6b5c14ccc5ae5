"""Check that every webhook has a scheme and a secret, and that no two share one."""

from __future__ import annotations

from collections.abc import Mapping

from everthread.config.schema import Settings, WebhookSettings


def missing_secrets(settings: Settings) -> list[tuple[str, str]]:
    """Return each webhook without a secret as a problem and its fix."""
    where = f"into {settings.env_path}, or into the environment"
    return [
        (f"the webhook {name} has no secret", f"put {hook.secret_env}=... {where}")
        for name, hook in settings.gateway.webhooks.items()
        if not settings.secret(hook.secret_env)
    ]


def disabled_webhooks(settings: Settings) -> dict[str, tuple[str, str]]:
    """Return the problem of each disabled webhook, and its fix. Neither quotes a secret.

    One without a scheme could be used with the weaker one, and a delivery for one could be sent to another with the
    same secret.
    """
    problems: dict[str, tuple[str, str]] = {}
    names: dict[str, list[str]] = {}
    for name, hook in settings.gateway.webhooks.items():
        if hook.scheme is None:
            line = 'add scheme = "everthread" or scheme = "github"'
            fix = f"{line} to [gateway.webhooks.{name}] in {settings.config_path}"
            problems[name] = (f"the webhook {name} has no scheme and is disabled", fix)
        if secret := settings.secret(hook.secret_env):
            names.setdefault(secret, []).append(name)
    for sharing in names.values():
        first, *others = sharing
        for other in others:
            says = f"the webhooks {first} and {other} have the same secret and are disabled"
            variable = settings.gateway.webhooks[other].secret_env
            fix = f"give {other} a secret of its own in {settings.env_path}, and in the program that sends"
            if variable == settings.gateway.webhooks[first].secret_env:
                fix = f"give {other} a secret_env of its own in {settings.config_path}; {fix}"
            problems.setdefault(other, (says, fix))
            problems.setdefault(first, (says, fix))
    return problems


def webhook_problems(settings: Settings) -> list[tuple[str, str]]:
    """Return each problem of a webhook and its fix, each once."""
    return list(dict.fromkeys((*missing_secrets(settings), *disabled_webhooks(settings).values())))


def enabled_webhooks(settings: Settings) -> Mapping[str, WebhookSettings]:
    disabled = disabled_webhooks(settings)
    return {name: hook for name, hook in settings.gateway.webhooks.items() if name not in disabled}
