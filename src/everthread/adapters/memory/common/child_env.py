"""Environment of a child process that runs third-party code: system variables, and none of our keys."""

from __future__ import annotations

from everthread.config.environment import child_environment

_PASSED_ON = frozenset(
    "PATH HOME USER LOGNAME SHELL LANG LANGUAGE LC_ALL LC_CTYPE TZ TMPDIR SSL_CERT_FILE SSL_CERT_DIR "
    "REQUESTS_CA_BUNDLE HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy".split()
)


def restricted_environment(**more: str) -> dict[str, str]:
    """Return the allowed variables of this process, and `more`."""
    return {name: value for name, value in child_environment().items() if name in _PASSED_ON} | more
