"""The feeder: sends the packaged readings to a NATS subject at a steady rate.

Readings are numbered from 1 and follow from their number, the rate and the time of the first
one, so that whoever holds those three can work out what any result should be (`expected`).

What lives here: sending, and that sum. What may not: receiving.

    python -m controller.demo.feeder --rate 100
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from typing import Final

import msgspec
from nats.aio.client import Client

from controller.demo import pipeline
from controller.demo.readings import reading
from controller.demo.windows import Part, TumblingWindows, WindowKey, merge_all

TICK_S: Final = 0.05
"""Readings that are due go out together, this often."""


class Feeder:
    """One feed: `rate` readings a second from now on, until `stop` is called."""

    def __init__(self, nc: Client, subject: str, rate: float) -> None:
        self._nc = nc
        self._subject = subject
        self.rate = rate
        self.first_at_ms = time.time_ns() // 1_000_000
        self.sent = 0
        """The number of the last reading sent."""
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self, seconds: float | None = None) -> None:
        """Returns after `seconds`, or when stopped; all that counts as sent is sent then."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not self._stop.is_set() and (seconds is None or loop.time() - began < seconds):
            due = int((loop.time() - began) * self.rate)
            while self.sent < due:
                number = self.sent + 1
                body = msgspec.json.encode(reading(number, self.first_at_ms, self.rate))
                await self._nc.publish(self._subject, body)
                self.sent = number
            try:
                async with asyncio.timeout(TICK_S):
                    await self._stop.wait()
            except TimeoutError:
                continue
        await self._nc.flush()

    def expected(self, first_seq: int, last_seq: int, window_ms: int) -> dict[WindowKey, Part]:
        """The windows that exactly these readings make up, worked out in one place."""
        windows = TumblingWindows(window_ms)
        parts: list[Part] = []
        for number in range(first_seq, last_seq + 1):
            parts += windows.add(reading(number, self.first_at_ms, self.rate))
        return merge_all(parts + windows.flush())


async def amain(server: str, subject: str, rate: float, seconds: float | None) -> int:
    try:
        nc = await pipeline.connect(server)
    except pipeline.BadProgram as error:
        pipeline.say(str(error))
        return 1
    feeder = Feeder(nc, subject, rate)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, feeder.stop)
    try:
        pipeline.say(f"sending {rate:g} readings a second on {subject}")
        await feeder.run(seconds)
    finally:
        await nc.close()
    pipeline.say(f"sent {feeder.sent} readings")
    return 0


def positive(text: str) -> float:
    number = float(text)
    if not 0 < number <= 100_000:
        raise argparse.ArgumentTypeError("must be above 0 and at most 100000")
    return number


def main() -> int:
    defaults = pipeline.Program()
    parser = argparse.ArgumentParser(
        prog="python -m controller.demo.feeder",
        description="Send one day's readings of a small dairy to a NATS subject, played fast.",
    )
    parser.add_argument("--server", default=defaults.server, help="NATS (%(default)s)")
    parser.add_argument("--subject", default=defaults.subject, help="(%(default)s)")
    parser.add_argument("--rate", type=positive, default=100.0, help="a second (%(default)g)")
    parser.add_argument("--seconds", type=positive, help="how long (until it is stopped)")
    options = parser.parse_args()
    return asyncio.run(amain(options.server, options.subject, options.rate, options.seconds))


if __name__ == "__main__":
    sys.exit(main())
