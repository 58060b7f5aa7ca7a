"""What the benchmarks' controllers record leads to the log that they wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import measure, recording, starts
from bench.rig import cluster, linked, nats_server, scratch
from events.client import SlotbusClient


@pytest.mark.timeout(120)
async def test_commands_at_full_load(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (measure, recording):
        monkeypatch.setattr(module, "ROUNDS", 1)
    monkeypatch.setattr(recording, "COMMANDS", 1_500)
    into_file, outside = await recording.rows()  # raises where it leads elsewhere
    assert into_file.ratio is not None
    assert outside.ratio is not None


@pytest.mark.timeout(120)
async def test_starts_on_agents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(starts, "AT_ONCE", 6)
    async with (
        nats_server() as server,
        scratch() as folder,
        cluster(server, folder, 8, record=tmp_path / "recordings"),
        linked(server) as nc,
    ):
        bus = SlotbusClient(nc)
        await starts._round(bus)
        await recording.until_recorded(nc, bus.subjects, tmp_path / "recordings")
