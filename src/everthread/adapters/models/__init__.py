"""Model clients.

anthropic             Anthropic's Messages API
openai_compat         Chat Completions API of OpenAI and compatible endpoints
local                 SmolLM2 in a child process
http                  streamed POST requests, shared by the clients
connection            aiohttp connection pool below `http`, imported on first use
sse                   server-sent events; joining of split characters and deltas
errors                HTTP errors of endpoints as model errors
tool_call_validation  validation of tool calls
"""
