"""Test the Anthropic Messages client against the model client contract."""

import pytest

from everthread.adapters.models.anthropic import Anthropic
from everthread.testing.contracts.model_client import MakeClient, ModelContract
from everthread.testing.model_server.replies import Protocol


class TestAnthropic(ModelContract):
    protocol = Protocol.MESSAGES

    @pytest.fixture
    def make_client(self) -> MakeClient:
        return Anthropic
