"""Drills: a real slotbus on this machine, and what may happen to it.

``python -m tests.drills --seconds 300 --seed 7``: a nats-server, two controllers and three
agents with their supervisors run as users run them, clients give commands without a pause,
and processes are killed and frozen, servers restarted, links cut, delayed and half opened: at
random, and at chosen points of the flow. The laws are checked from the event log (the
auditor), from the process table, and from what goes over the agents' links.

- ``frames``, ``line``: a proxy that knows NATS messages, one in front of each program
- ``table``, ``cluster``: the process table; the programs, started, found and ended
- ``workload``: the clients; ``laws``: what must hold, while it runs and when it rests
- ``faults``, ``points``: what happens at random, and just then
- ``drill``: unrest and peace in turns, and the figures at the end
- ``broken``: programs with deliberate faults, each of which a drill must find
"""
