"""The demo: an example pipeline as a user would write one, and the show around it.

What lives here: `pipeline` (the worker program), `windows` (its arithmetic), `readings` and
`feeder` (what it is fed), and the demo itself. What may not: anything that the rest of slotbus
needs.
"""
