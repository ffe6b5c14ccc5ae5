"""`everthread backup` and `everthread restore`.

group    the command `backup`: copy the store, pack and verify
archive  the format of a backup file
restore  the command `restore`
"""
