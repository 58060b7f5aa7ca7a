"""The past of a cluster: what was true at any moment, what changed, and why.

What lives here: reading an event log (live, or a file), views of a moment, differences,
reasons, and laws with their story. What may not: printing (``controller.cli.past``).
"""
