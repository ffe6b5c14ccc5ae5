"""`everthread import`.

group          the command group
hermes         `import hermes`: options, report, history of imports
hermes_data    sessions, chat bindings, notes and accounts
hermes_skills  skills
"""
