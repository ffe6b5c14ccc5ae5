"""Code shared by the memory providers that talk to a service or a child process.

service_provider  base class: client life cycle, tools, recall limits, note and forget dispatch
http              JSON requests over HTTP; translates failures into provider errors
connection        aiohttp connection pool below `http`, imported on first use
encoding          ids in the alphabet that services accept; splitting of long texts
locks             one asyncio lock per name
tools             tools with one text argument, offered to the model
child_env         environment of a child process that runs third-party code
"""
