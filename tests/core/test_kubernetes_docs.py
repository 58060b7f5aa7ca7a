"""The page on Kubernetes names every setting, with the default that it has."""

from __future__ import annotations

import re
from typing import get_args

import msgspec

from schedulers.kubernetes.config import JOBS_MAY, JobOption, KubernetesConfig
from tests.support.controllers import ROOT

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()


def rows() -> dict[str, str]:
    """The defaults in the table of settings, by setting."""
    found: dict[str, str] = {}
    for line in PAGE.partition("## Settings")[2].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`(\w+)`", cells[0])
        if not line.startswith("| `") or len(cells) != 3:
            continue
        values = [cells[1]] if len(names) == 1 else [v.strip() for v in cells[1].split(", ")]
        found |= dict(zip(names, values * len(names) if len(values) == 1 else values, strict=False))
    return found


def test_every_setting_is_there() -> None:
    assert set(rows()) == {field.name for field in msgspec.structs.fields(KubernetesConfig)}


def test_numbers_and_words_are_the_defaults() -> None:
    told = rows()
    for name, value in msgspec.structs.asdict(KubernetesConfig()).items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert float(told[name]) == value, name
        elif isinstance(value, str) and value and name not in ("namespace", "cluster"):
            assert told[name] == f"`{value}`", name


def test_all_that_a_job_may_set_is_named() -> None:
    (line,) = [line for line in PAGE.splitlines() if line.startswith("| `jobs_may`")]
    _, _, default, meaning, _ = line.split("|")
    assert set(re.findall(r"`(\w+)`", default)) == set(JOBS_MAY)
    others = set(get_args(JobOption)) - set(JOBS_MAY)
    assert {name for name in others if f"`{name}`" in meaning} == others
