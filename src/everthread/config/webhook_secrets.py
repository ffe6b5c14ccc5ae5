"""Check that every webhook has a secret, and that no two share one."""

from __future__ import annotations

from everthread.config.schema import Settings


def webhook_problems(settings: Settings) -> list[tuple[str, str]]:
    """Return each problem and its fix. Neither quotes a secret."""
    problems: list[tuple[str, str]] = []
    names: dict[str, str] = {}
    for name, hook in settings.gateway.webhooks.items():
        secret = settings.secret(hook.secret_env)
        if not secret:
            fix = f"put {hook.secret_env}=... into {settings.env_path}, or into the environment"
            problems.append((f"the webhook {name} has no secret", fix))
        elif (other := names.setdefault(secret, name)) != name:
            fix = f"give {hook.secret_env} a value of its own in {settings.env_path}, and in the program that sends"
            problems.append((f"the webhooks {other} and {name} have the same secret", fix))
    return problems
