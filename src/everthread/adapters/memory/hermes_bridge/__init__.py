"""Unmodified memory plugins of Hermes Agent as memory providers, each user's in a child process.

provider       the memory provider
user_plugin    one user's plugin: its process, its home, its deliveries
child_process  starts the child process and exchanges requests with it
plugin_host    the program that the child process runs; does not import everthread
plugin_home    folders of each user's plugin
plugin_log     log file of the plugin's output
acknowledged   deliveries that a plugin has acknowledged
codec          messages for plugins, and their text as recall items
"""
