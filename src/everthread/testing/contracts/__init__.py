"""Contract kits: test classes that every adapter of a port must pass.

| module | port |
|---|---|
| `platform` | messaging platforms |
| `transcriber` | speech transcription |
| `model_client` | clients of models |
| `tools` | sources of tools |
| `memory_provider` | memory providers |
| `lanes` | lanes and their leases |
| `store` | stores |
"""
