"""A worker: says who it is, then works until it is asked to end."""

import os
import signal
import sys
import threading

stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())

me, slots = os.environ["SLOTBUS_WORKER_ID"], int(os.environ["SLOTBUS_SLOTS"])
sys.stdout.write(f"{me}: {slots} slots, program {os.environ.get('SLOTBUS_PROGRAM')}\n")
sys.stdout.flush()
stop.wait()
sys.stdout.write(f"{me}: ended as asked\n")
