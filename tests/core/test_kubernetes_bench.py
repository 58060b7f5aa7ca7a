"""The Kubernetes benchmark where there is no Kubernetes: what was not measured is said."""

from __future__ import annotations

import pytest

from bench import kubernetes
from tests.support.binaries.building import BuildFailed


def test_a_missing_server_is_loud_and_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise BuildFailed("no Go on PATH, and no network")

    monkeypatch.setattr(kubernetes, "ensure_kubernetes", missing)
    with pytest.raises(SystemExit) as ended:
        kubernetes.binaries()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "NOT MEASURED: Kubernetes" in said
    assert "no Go on PATH, and no network" in said
