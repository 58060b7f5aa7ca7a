"""`slotbus demo`: real processes, a real pipeline, a real loss, and a list of what was promised.

What lives here: bringing the demo's processes up and down, and its deadline. What may not: what
happens in between (`scenario`).
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from pathlib import Path
from typing import Final

import aiohttp
import nats.errors

from controller.demo.pipeline import BadProgram
from controller.demo.processes import Processes, free_port
from controller.demo.recorded import recordings
from controller.demo.scenario import play
from controller.demo.show import Promise, Show
from controller.demo.stage import EXPIRY_S, HEARTBEAT_S, NODE_SLOTS, NODES, DemoFailed, open_stage
from controller.embedded import EmbeddedServer
from events.errors import SlotbusError

DEADLINE_S: Final = 60.0
"""The demo is over by then, whatever happens."""
END_S: Final = 12.0
"""Of that, kept for ending the processes."""
EXIT_BROKEN: Final = 1
EXIT_INTERRUPTED: Final = 130


def run_demo() -> int:
    """Plays the demo on this machine; returns 0 only if every promise held.

    Ends within DEADLINE_S seconds, and ends every process that it started. Interrupted by
    SIGINT or SIGTERM it cleans up too, and returns EXIT_INTERRUPTED.
    """
    show = Show()
    try:
        return asyncio.run(_demo(show))
    except asyncio.CancelledError:
        show.say("interrupted; everything that was started has been ended")
        return EXIT_INTERRUPTED


async def _demo(show: Show) -> int:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with tempfile.TemporaryDirectory(prefix="slotbus-demo-") as name:
        folder = Path(name)
        processes = Processes(folder)
        nats_server = EmbeddedServer(folder / "nats")
        try:
            async with asyncio.timeout(DEADLINE_S - END_S):
                await nats_server.start()
                await _play(show, folder, processes, nats_server.url)
        except TimeoutError:
            show.check(f"it goes on until its end within {DEADLINE_S - END_S:g} s", False)
        except (DemoFailed, BadProgram, SlotbusError, nats.errors.Error) as error:
            show.check("it goes on until its end", False, str(error) or repr(error))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            show.check("it goes on until its end", False, repr(error))
        finally:
            left = await asyncio.to_thread(processes.end_all)
            await nats_server.stop()
    show.step("What was promised")
    found = f"pids {left}" if left else ""
    show.promises.append(Promise("nothing that it started is left", not left, found))
    return 0 if show.checklist() else EXIT_BROKEN


async def _play(show: Show, folder: Path, processes: Processes, server: str) -> None:
    http = f"127.0.0.1:{free_port()}"
    show.say(f"NATS listens on {server}, everything is kept in {folder}")
    common = ["--server", server, "--state-dir"]
    processes.start(
        "controller",
        ["controller", "--scheduler", "node", *common, str(folder / "controller"), "--http", http],
        {
            "node_expiry_s": str(EXPIRY_S),
            "heartbeat_s": str(HEARTBEAT_S),
            "record": recordings(folder),
        },
    )
    for node_id in NODES:
        node = ["--node-id", node_id, "--slots", str(NODE_SLOTS), "--http", "off"]
        processes.start(node_id, ["agent", *node, *common, str(folder / node_id)], {})
    metrics_url = f"http://{http}/metrics"
    async with open_stage(show, folder, processes, server, metrics_url) as stage:
        await play(stage)
