"""An agent as a program, for tests that freeze or kill it: its argument is its
configuration as JSON. What may not live here: anything the real command does better."""

from __future__ import annotations

import asyncio
import signal
import sys

import msgspec

from schedulers.node.agent import run_agent
from schedulers.node.config import AgentConfig


async def main(config: AgentConfig) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await run_agent(config, stop=stop)


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=AgentConfig)))
