"""Mem0 as a memory provider: its library in a child process, or its cloud.

provider      the memory provider
codec         log entries, memories and recall items; the protocol of both clients; no I/O
cloud_client  requests to Mem0's cloud
local_client  requests to the library in the child process
child         the program that the child process runs; does not import everthread
"""
