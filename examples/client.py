"""The client: what the command line does, from a program of your own."""

import asyncio

from events.client import SlotbusClient
from events.errors import NotEnoughSlots


async def main() -> None:
    async with SlotbusClient.connect() as bus:  # NATS_URL, else nats://127.0.0.1:4222
        try:
            reply = await bus.start(job_id="from-python", slots=3)
        except NotEnoughSlots as error:
            print("no room:", error.slots_needed, "more slots are needed")
            return
        print("run", reply.run_id, "has", len(reply.workers), "workers")
        for worker in await bus.workers("from-python"):
            print(worker.node_id, worker.slots, worker.state)
        await bus.stop("from-python")
        async for record in bus.events(job_id="from-python"):
            print(record.position, record.cause, len(record.events), "facts")


asyncio.run(main())
