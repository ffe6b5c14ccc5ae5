"""Memory providers.

builtin        search in our own store
hindsight      Hindsight server
honcho         Honcho server
mem0           Mem0 library in a child process, or Mem0 cloud
openviking     OpenViking server
supermemory    Supermemory service
hermes_bridge  memory plugins written for Hermes, each in a child process
common         code shared by the services above
"""
