"""The pytest plugin as a user's pytest runs it, in processes of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLE = CHECKOUT / "examples" / "replay_project"
PLUGIN = ("-p", "slotbus_pytest")
TIMEOUT_S = 50.0


@dataclass(frozen=True)
class Ran:
    code: int
    out: str


async def pytest_in(folder: Path, *arguments: str, autoload: bool = False) -> Ran:
    """What a run of pytest in a folder says; of plugins only ours is there, or all."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environ["PYTHONPATH"] = str(CHECKOUT)
    if not autoload:
        environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider", *arguments),
        cwd=folder,
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Ran(process.returncode or 0, out.decode())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the example, to be changed."""
    ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    return Path(shutil.copytree(EXAMPLE, tmp_path / "project", ignore=ignored))


async def test_the_example_passes_by_itself_and_beside_other_plugins(project: Path) -> None:
    alone = await pytest_in(project, "-W", "error")
    assert (alone.code, "7 passed" in alone.out) == (0, True), alone.out
    scope = "asyncio_default_fixture_loop_scope=function"
    beside = await pytest_in(project, "-o", "asyncio_mode=auto", "-o", scope, autoload=True)
    assert (beside.code, "7 passed" in beside.out) == (0, True), beside.out


async def test_a_test_that_fails_tells_the_story(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "class TestIt:\n"
        "    async def test_method(self, cluster):\n"
        "        await cluster.start('wordcount', 2)\n"
        "        assert cluster.free_slots() == 99\n"
    )
    ran = await pytest_in(tmp_path)
    assert ran.code == 1
    assert "slotbus story" in ran.out
    assert "worker_assigned w-" in ran.out
    assert "assert 10 == 99" in ran.out


async def test_golden_files_are_asked_for_compared_and_accepted(project: Path) -> None:
    path = project / "tests" / "golden" / "a_partition_that_heals.txt"
    path.write_text(path.read_text().replace("worker_lost", "worker_found"))
    changed = await pytest_in(project, "-k", "heals")
    assert changed.code == 1
    assert "+                      worker_lost" in changed.out
    assert "-                      worker_found" in changed.out
    path.unlink()
    missing = await pytest_in(project, "-k", "heals")
    assert "make it with --slotbus-update-golden" in missing.out
    written = await pytest_in(project, "-k", "heals", "--slotbus-update-golden")
    assert written.code == 0, written.out
    original = EXAMPLE / "tests" / "golden" / "a_partition_that_heals.txt"
    assert path.read_bytes() == original.read_bytes()


async def test_a_folder_that_hides_our_package_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "test_it.py").write_text("def test_it(cluster): pass\n")
    hidden = await pytest_in(tmp_path, "--import-mode=prepend")
    assert hidden.code != 0
    assert "run pytest with --import-mode=importlib, or rename that folder" in hidden.out
    found = await pytest_in(tmp_path, "--import-mode=importlib")
    assert found.code == 0, found.out


async def test_a_package_of_that_name_beside_the_tests_is_named_where_modules_need_ours(
    project: Path,
) -> None:
    (project / "events").mkdir()
    (project / "events" / "__init__.py").touch()
    (project / "pyproject.toml").write_text("[tool.pytest.ini_options]\npythonpath = ['.']\n")
    hidden = await pytest_in(project, "--import-mode=importlib")
    assert hidden.code != 0
    assert "No module named 'events." in hidden.out
    assert "run `pytest`, not `python -m pytest`, which looks there first" in hidden.out


async def test_a_broken_law_fails_a_test_that_passed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "from events.facts import WorkerEnded, Record\n"
        "async def test_it(cluster):\n"
        "    end = WorkerEnded(worker_id='w', state='failed')\n"
        "    foreign = Record(at=cluster.now, epoch=1, cause='a ghost', events=[end])\n"
        "    end = cluster.ledger.position\n"
        "    await cluster.log.append([foreign], expected=end, timeout_s=1)\n"
    )
    ran = await pytest_in(tmp_path)
    assert "law 5 at 5: worker_ended for worker w, which nobody decided" in ran.out
    assert "1 passed, 1 error" in ran.out
