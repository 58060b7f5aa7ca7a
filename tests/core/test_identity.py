"""Which processes can be proven dead, and which can't."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from controller.identity import Process, _stat, new_holder_name, provably_gone, this_process


def test_we_are_not_gone() -> None:
    assert this_process().started > 0
    assert not provably_gone(this_process())


def test_a_child_is_gone_once_it_ended_even_before_it_is_reaped() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = msgspec.structs.replace(
        this_process(), pid=child.pid, started=_stat(child.pid).started
    )
    assert not provably_gone(process)
    child.communicate(b"\n")
    assert provably_gone(process)


def test_a_recycled_pid_is_another_process() -> None:
    ours = this_process()
    assert provably_gone(msgspec.structs.replace(ours, started=ours.started + 1))


def test_what_runs_elsewhere_cant_be_judged() -> None:
    ours = this_process()
    assert not provably_gone(msgspec.structs.replace(ours, space="another boot", started=1))
    assert not provably_gone(Process())


def test_every_start_has_its_own_name() -> None:
    assert new_holder_name() != new_holder_name()
