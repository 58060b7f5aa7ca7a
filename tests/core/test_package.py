"""The distribution: its name, its version, and whose `events` Python would import."""

import subprocess
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import controller
from controller import entry

HOME = Path(controller.__file__).parent.parent


def spec_in(folder: Path) -> ModuleSpec | None:
    return PathFinder.find_spec("events", [str(folder)])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder that looks like the one our packages are installed in."""
    package = tmp_path / "events"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "ids.py").touch()
    return tmp_path


def test_events_init_is_empty() -> None:
    assert (HOME / "events" / "__init__.py").read_bytes() == b""


@pytest.mark.parametrize("package", ["events", "schedulers", "controller"])
def test_packages_are_typed(package: str) -> None:
    assert (HOME / package / "py.typed").is_file()


def test_console_script_is_the_entry() -> None:
    (script,) = entry_points(group="console_scripts", name="slotbus")
    assert script.load() is entry.main


def test_version_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["--version"]) == 0
    assert capsys.readouterr().out == f"slotbus {version('slotbus')}\n"


def test_our_own_events_is_accepted() -> None:
    assert entry.foreign_events(spec_in(HOME), HOME) is None


def test_lookalike_next_to_us_is_accepted(home: Path) -> None:
    assert entry.foreign_events(spec_in(home), home) is None


def test_overwritten_init_is_foreign(home: Path) -> None:
    init = home / "events" / "__init__.py"
    init.write_text("from .events import Events\n")
    assert entry.foreign_events(spec_in(home), home) == str(init)


def test_package_without_our_marker_is_foreign(home: Path) -> None:
    (home / "events" / "ids.py").unlink()
    assert entry.foreign_events(spec_in(home), home) == str(home / "events" / "__init__.py")


def test_package_elsewhere_is_foreign(home: Path) -> None:
    assert entry.foreign_events(spec_in(home), HOME) == str(home / "events" / "__init__.py")


def test_single_module_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "events.py").touch()
    assert entry.foreign_events(spec_in(tmp_path), HOME) == str(tmp_path / "events.py")


def test_bare_folder_and_nothing_are_foreign(tmp_path: Path) -> None:
    assert entry.foreign_events(spec_in(tmp_path), HOME) == "nowhere"
    (tmp_path / "events").mkdir()
    assert entry.foreign_events(spec_in(tmp_path), HOME) == "a folder without __init__.py"


def test_entry_refuses_a_foreign_events_without_importing_it(tmp_path: Path) -> None:
    package = tmp_path / "events"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('was imported')\n")
    program = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(HOME)!r}]\n"
    program += "from controller.entry import main; sys.exit(main(['--help']))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == entry.EXIT_MISUSE
    assert done.stdout == ""
    assert done.stderr == entry.explain(str(package / "__init__.py")) + "\n"
