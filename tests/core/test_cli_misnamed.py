"""Files that can't be used: a sentence with the name, and exit code 2, in every command."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from controller.cli.main import app
from controller.cli.running import MISUSED, REFUSED, reported

runner = CliRunner()


@pytest.mark.parametrize(
    "words",
    [("audit",), ("state",), ("story", "j"), ("why", "j"), ("diff", "1", "2")],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize(("name", "why"), [("none", "No such file"), ("", "Is a directory")])
def test_a_file_that_can_not_be_read(
    words: tuple[str, ...], name: str, why: str, tmp_path: Path
) -> None:
    result = runner.invoke(app, [*words, str(tmp_path / name)])
    assert result.exit_code == MISUSED, result.output
    assert why in result.output
    assert "internal" not in result.output


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.EEXIST, "File exists", "x.jsonl"), MISUSED, "error invalid: x.jsonl"),
        (OSError(errno.EACCES, "Permission denied", "x"), MISUSED, "error invalid: x can't"),
        (OSError(errno.ENOSPC, "No space left on device"), REFUSED, "what was to be written"),
        (OSError(errno.EIO, "Input/output error", "x"), REFUSED, "error internal: x can't"),
    ],
)
def test_what_the_system_says_is_said(
    error: OSError, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, reported():
        raise error
    assert ended.value.exit_code == code
    assert said in capsys.readouterr().err
