"""`everthread doctor`.

group     the command: run all checks in order
check     values: `Check`, `Case`, `Finding`
machine   checks of Python, configuration, files, disk, store and clock
store     checks of deliveries, incidents, hooks, turns and notes
gateway   check of the gateway
services  checks of platforms, memory providers, MCP servers and the model
"""
