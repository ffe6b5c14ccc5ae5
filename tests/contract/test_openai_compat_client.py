"""Test the Chat Completions client against the model client contract."""

import pytest

from everthread.adapters.models.openai_compat import OpenAICompat
from everthread.testing.contracts.model_client import MakeClient, ModelContract
from everthread.testing.model_server.replies import Protocol


class TestOpenAICompat(ModelContract):
    protocol = Protocol.CHAT

    @pytest.fixture
    def make_client(self) -> MakeClient:
        return OpenAICompat
