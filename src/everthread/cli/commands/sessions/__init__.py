"""`everthread sessions`.

group    the group, and `list`
browse   choose from a list
show     print a transcript
tree     draw the lineage
edit     `rename` and `delete`
export   write JSON lines
import_  read them
prune    delete old sessions
"""
