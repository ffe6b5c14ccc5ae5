"""Skills: folders of instructions that the model reads on demand.

In the order of data flow:

- `folders`: find, read and write skill folders.
- `format`: parse and render `SKILL.md`; show skills to the model. Pure functions.
- `history`: the log of changes to the user's skills.
"""
