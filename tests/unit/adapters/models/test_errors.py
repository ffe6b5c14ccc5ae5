"""Error responses of endpoints as model errors."""

import pytest

from everthread.adapters.models.errors import EndpointInfo, error_message_in, model_error, retry_after_s
from everthread.domain.errors import (
    ContextTooLong,
    ModelRefused,
    ModelUnauthorized,
    ModelUnavailable,
    ModelUnknown,
    ModelWithoutTools,
)

ENDPOINT = EndpointInfo("api.example:443", "EXAMPLE_KEY", "sk-secret", ("header-secret",))


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (401, "", ModelUnauthorized),
        (400, "this model does not support tools", ModelWithoutTools),
        (400, "maximum context length is 8192 tokens", ContextTooLong),
        (413, "", ContextTooLong),
        (404, "", ModelUnknown),
        (400, "no such model", ModelUnknown),
        (429, "", ModelUnavailable),
        (503, "", ModelUnavailable),
        (302, "", ModelRefused),
        (400, "no", ModelRefused),
    ],
)
def test_status_and_message_choose_the_error(status: int, message: str, error: type[Exception]) -> None:
    assert type(model_error(ENDPOINT, status, message)) is error


def test_secrets_are_kept_out_of_the_message() -> None:
    text = str(model_error(ENDPOINT, 400, "bad sk-secret in header-secret")) + repr(ENDPOINT)
    assert "secret" not in text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no", "type": "bad"}}', "bad: no"),
        (b'[{"error": {"message": "no"}}]', "no"),
        (b'{"detail": "no"}', "no"),
        (b"<html>no</html>", ""),
        (b"plain", "plain"),
    ],
)
def test_the_message_is_found_in_every_format(body: bytes, message: str) -> None:
    assert error_message_in(body) == message


def test_the_delay_is_a_number_or_a_date() -> None:
    assert retry_after_s({"Retry-After": "7"}) == 7
    assert retry_after_s({"Retry-After-Ms": "500"}) == 0.5
    dates = {"Retry-After": "Wed, 21 Oct 2015 07:28:10 GMT", "Date": "Wed, 21 Oct 2015 07:28:00 GMT"}
    assert retry_after_s(dates) == 10
    assert retry_after_s({}) is None
