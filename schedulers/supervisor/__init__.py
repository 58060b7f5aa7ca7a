"""The supervisor: it alone spawns, signals and reaps workers on a node.

What lives here: the port (``api``), the core that does the work in-process, the server
that wraps it in a process of its own behind a Unix socket, and the client of that socket.
What may not: NATS, the event log, decisions about which workers should exist.
"""
