"""A worker: says who it is, then works until it is asked to end."""

import os
import signal
import threading

stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())

me, slots = os.environ["SLOTBUS_WORKER_ID"], int(os.environ["SLOTBUS_SLOTS"])
print(f"{me}: {slots} slots, program {os.environ['SLOTBUS_PROGRAM']}", flush=True)
stop.wait()
print(f"{me}: ended as asked", flush=True)
