"""Error responses of the Bot API."""

from __future__ import annotations

import math


class ApiError(Exception):
    """`{"ok": false, ...}`, sent with its code as HTTP status."""

    def __init__(
        self, code: int, description: str, retry_after: int | None = None, moved_to: int | None = None
    ) -> None:
        super().__init__(description)
        self.code = code
        self.description = description
        self.retry_after = retry_after
        self.moved_to = moved_to

    def body(self) -> dict[str, object]:
        body: dict[str, object] = {"ok": False, "error_code": self.code, "description": self.description}
        if self.retry_after is not None:
            body["parameters"] = {"retry_after": self.retry_after}
        if self.moved_to is not None:
            body["parameters"] = {"migrate_to_chat_id": self.moved_to}
        return body


def bad_request(description: str) -> ApiError:
    return ApiError(400, f"Bad Request: {description}")


def chat_moved(to: int) -> ApiError:
    return ApiError(400, "Bad Request: group chat was upgraded to a supergroup chat", moved_to=to)


def forbidden(description: str) -> ApiError:
    return ApiError(403, f"Forbidden: {description}")


def conflict(description: str) -> ApiError:
    return ApiError(409, f"Conflict: {description}")


def rate_limited(wait_s: float) -> ApiError:
    retry_after = max(1, math.ceil(wait_s))
    return ApiError(429, f"Too Many Requests: retry after {retry_after}", retry_after)
