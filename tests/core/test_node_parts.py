"""The agent's small parts: identity, the slots it gave out, waits, configuration."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from events.errors import Invalid
from events.states import WorkerState
from events.traffic import InventoryRow
from schedulers.backoff import Backoff
from schedulers.node.config import AgentConfig, check_agent, node_id_of, state_dir_of
from schedulers.node.identity import (
    StateDirLock,
    StateDirUnusable,
    is_later,
    machine_id,
    make_identity,
    new_incarnation,
)
from schedulers.node.roster import Roster
from schedulers.supervisor.api import Inventory


def row(worker_id: str, slots: int, state: WorkerState = WorkerState.RUNNING) -> InventoryRow:
    return InventoryRow(worker_id=worker_id, job_id="j", run_id=1, slots=slots, state=state)


def test_incarnations_sort_by_the_time_of_their_start() -> None:
    early, late = new_incarnation(1_000), new_incarnation(2_000_000_000_000)
    assert early < late
    assert is_later(late, than=early)
    assert not is_later(early, than=late)
    assert not is_later(early, than=early)
    assert not is_later("zz", than=early)
    assert new_incarnation(1_000) != early


def test_each_start_is_a_new_incarnation_on_the_same_machine(tmp_path: Path) -> None:
    first, second = make_identity("n1", tmp_path), make_identity("n1", tmp_path)
    assert first.machine_id == second.machine_id
    assert first.incarnation != second.incarnation
    assert make_identity("n1", tmp_path, "mine").machine_id == "mine"


def test_two_state_directories_of_one_machine_are_told_apart(tmp_path: Path) -> None:
    machine_file = tmp_path / "etc-machine-id"
    machine_file.write_text("0123\n")
    first, other = tmp_path / "first", tmp_path / "other"
    first.mkdir()
    other.mkdir()
    assert machine_id(first, machine_file).startswith("0123/")
    assert machine_id(first, machine_file) == machine_id(first, machine_file)
    assert machine_id(first, machine_file) != machine_id(other, machine_file)
    assert [path.name for path in other.iterdir()] == ["machine-id"]


def test_a_kept_id_that_was_lost_with_the_power_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "machine-id").write_text("")
    assert machine_id(tmp_path) == machine_id(tmp_path)
    assert (tmp_path / "machine-id").read_text().strip()


@pytest.mark.parametrize("content", [None, "", "uninitialized\n"])
def test_a_machine_without_an_id_keeps_one_of_its_own(tmp_path: Path, content: str | None) -> None:
    machine_file = tmp_path / "etc-machine-id"
    if content is not None:
        machine_file.write_text(content)
    first = machine_id(tmp_path, machine_file)
    assert first == machine_id(tmp_path, machine_file)
    other = tmp_path / "other"
    other.mkdir()
    assert first != machine_id(other, machine_file)


def test_the_lock_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    state_dir = tmp_path / "deep" / "state"
    with (
        StateDirLock(state_dir),
        pytest.raises(StateDirUnusable, match=r"pid \d+"),
        StateDirLock(state_dir),
    ):
        raise AssertionError("locked twice")
    with StateDirLock(state_dir):
        assert state_dir.is_dir()


def test_a_state_directory_that_cannot_be_made_is_said_to_be_unusable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateDirUnusable), StateDirLock(tmp_path / "file" / "state"):
        raise AssertionError("a folder in a file")


def test_waits_grow_to_their_limit_and_begin_anew() -> None:
    backoff = Backoff(1.0, 8.0)
    waits = [backoff.next() for _ in range(6)]
    for wait, most in zip(waits, (1, 2, 4, 8, 8, 8), strict=True):
        assert most / 2 <= wait <= most
    backoff.reset()
    assert backoff.next() <= 1.0


def test_reserved_slots_are_used_once_whatever_becomes_of_them() -> None:
    roster = Roster()
    roster.reserve("w1", 3)
    assert roster.used == 3
    roster.launched("w1", 3, seq=1)
    assert roster.used == 3
    roster.release("w1")
    assert (roster.used, roster.holds("w1")) == (3, True)
    roster.reserve("w2", 2)
    roster.release("w2")
    assert roster.used == 3
    roster.ended("w1")
    roster.ended("unknown")
    assert roster.used == 0


def test_an_inventory_does_not_undo_a_launch_after_it() -> None:
    roster = Roster()
    roster.launched("old", 1, seq=3)
    roster.launched("new", 2, seq=9)
    found = [row("found", 4), row("stopping", 8, WorkerState.STOPPING)]
    ended = row("ended", 16, WorkerState.FAILED)
    roster.refresh(Inventory(seq=5, epoch=1, workers=[*found, ended]))
    assert sorted(roster.held) == ["found", "new", "stopping"]
    assert roster.used == 14


def test_a_node_is_named_after_its_host_unless_it_is_told_otherwise() -> None:
    assert node_id_of(AgentConfig(node_id="n1")) == "n1"
    assert node_id_of(AgentConfig())
    with pytest.raises(Invalid):
        check_agent(AgentConfig(node_id="a b"))
    with pytest.raises(Invalid):
        check_agent(AgentConfig(root="a..b"))
    with pytest.raises(Invalid):
        check_agent(AgentConfig(worker_command=["a\0b"]))
    check_agent(AgentConfig(node_id="n1"))


def test_where_an_agent_keeps_its_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert state_dir_of(AgentConfig(state_dir="here")) == Path("here")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_dir_of(AgentConfig(node_id="n1")) == tmp_path / "slotbus" / "agent-n1"


def test_secrets_are_not_in_the_repr() -> None:
    config = AgentConfig(node_id="n1", password="geheim", token="geheim")
    assert "geheim" not in repr(config)
    assert config.access().password == "geheim"
    assert "geheim" not in repr(config.access())
    assert msgspec.json.decode(msgspec.json.encode(config), type=AgentConfig) == config
