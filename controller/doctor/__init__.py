"""Looking at a cluster from outside: is all as it should be, and if not, what to do?

What lives here: nothing to import. ``rounds`` goes through the examinations of ``jetstream`` and
``cluster``; a ``finding`` is what they see.
"""
