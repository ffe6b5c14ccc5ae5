"""What a process is handed that runs somebody else's program: what programs need, and no key of ours."""

from __future__ import annotations

from everthread.config.environment import child_environment

_PASSED_ON = frozenset(
    "PATH HOME USER LOGNAME SHELL LANG LANGUAGE LC_ALL LC_CTYPE TZ TMPDIR SSL_CERT_FILE SSL_CERT_DIR "
    "REQUESTS_CA_BUNDLE HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy".split()
)


def environment_for_others(**more: str) -> dict[str, str]:
    return {name: value for name, value in child_environment().items() if name in _PASSED_ON} | more
