"""Lanes: FIFOs that one worker drains at a time.

local: lanes within one process, on leases in the store.
"""
