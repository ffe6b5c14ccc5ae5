"""The client of Anthropic's Messages keeps the contract of all clients of models."""

import pytest

from everthread.adapters.models.anthropic import Anthropic
from everthread.testing.contracts.model_client import MakeClient, ModelContract
from everthread.testing.model_server.replies import Protocol


class TestAnthropic(ModelContract):
    protocol = Protocol.MESSAGES

    @pytest.fixture
    def make_client(self) -> MakeClient:
        return Anthropic
