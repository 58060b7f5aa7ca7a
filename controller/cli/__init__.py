"""The command line: arguments in, requests out, answers as tables or JSON.

Modules here import nothing heavy at their top, because ``slotbus --help`` waits for them.
"""
