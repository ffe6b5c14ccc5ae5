"""MCP servers as tools of the agent, through the official SDK (the extra `everthread[mcp]`).

servers     all configured servers of a process, and their tools
server      one configured server, across its connections
connection  one connection; the only module that imports the SDK
stdio       a server as a child process
tools       tools that servers offer, and their names for the model
results     results of tool calls as text
text        shortening and cleaning of texts from servers
"""
