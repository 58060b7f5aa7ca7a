"""The reference: pages and schemas made from the code itself.

What lives here: nothing to import; ``python -m controller.reference`` writes the pages, and
``schema`` is what ``slotbus schema`` prints. What may not: any text that the code says too.
"""
