"""Interfaces of the core to the outside; adapters implement them.

| module | contents |
|---|---|
| `platform` | chat platforms: incoming updates, outgoing messages |
| `model` | model endpoints: requests and streamed answers |
| `tools` | tools that the agent runs |
| `context` | context engines that summarise long conversations |
| `memory` | memory providers and their hooks |
| `transcriber` | speech to text |
| `lanes` | queues that one worker drains at a time, across processes |
| `clock` | time |
"""
