"""Reading the home of a Hermes Agent, and saying what is in it in the words of our own export format.

`snapshot` and `files` read, and never write to that home; everything else is pure.
"""
