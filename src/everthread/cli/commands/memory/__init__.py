"""`everthread memory`.

group   the verbs for notes, and status and retry of memory providers
status  the status of memory providers
copy    deliver earlier sessions to a provider
bridge  memory plugins of Hermes Agent
"""
