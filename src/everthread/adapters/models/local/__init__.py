"""The local model: SmolLM2-135M-Instruct in a child process, so that there is a chat without a key or a server."""
