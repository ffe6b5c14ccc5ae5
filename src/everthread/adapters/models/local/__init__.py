"""Local model: SmolLM2-135M-Instruct in a child process, for a chat without a key or a server.

client  the model client, and the life cycle of the child process
server  the program that the child process runs; does not import everthread
"""
