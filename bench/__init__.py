"""Benchmarks: how fast slotbus is beside the least that its parts cost.

What lives here: one module for each thing that is measured, with its floor beside it. What
may not: claims without a floor measured in the same run. ``python -m bench --help``.
"""
