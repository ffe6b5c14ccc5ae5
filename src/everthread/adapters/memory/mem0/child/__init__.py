"""Program of the child process with Mem0's library. It does not import everthread, and is not imported by it.

__main__      reads requests, runs them, writes responses
vector_store  Mem0's vector store on files with atomic writes
errors        failures that Mem0 swallows, and translation of its errors
"""
