"""A controller as a program, for tests that freeze or kill it: its argument is its
configuration as JSON; it prints a line of JSON when it leads. What may not live here:
anything the real command does better."""

from __future__ import annotations

import asyncio
import signal
import sys

import msgspec

from controller.app import ControllerInfo, run_controller
from controller.config import ControllerConfig
from controller.logs import setup_logging


def say(info: ControllerInfo) -> None:
    sys.stdout.write(msgspec.json.encode(info).decode() + "\n")
    sys.stdout.flush()


async def main(config: ControllerConfig) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await run_controller(config, ready=say, stop=stop)


if __name__ == "__main__":
    setup_logging("info", "json")
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=ControllerConfig)))
