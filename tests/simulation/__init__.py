"""Deterministic simulation: whole deployments in virtual time, under faults, against the laws.

Real: controllers (lease, leadership, engine, log, event subjects, inbox), agents, supervisors,
clients and nats-py's subscriptions. Modelled: the clock, the loop, chance, the NATS server and
the way to it (``hub``, ``wire``, ``streams``), and the kernel below the supervisor
(``machine``). One seed says everything, so that it can be told again.
"""
