"""Approval of code and instructions that came with a package or a folder.

`decisions`         approvals and refusals of the user, in `trust.json` of the home
`project_skills`    the skill files of a project, by digest
`installed_plugins` the plugins of installed packages, found without importing them
"""
