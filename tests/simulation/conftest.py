"""What the tests of this folder don't want of the others' fixtures."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def laws() -> None:
    """Stories have their own watch over the laws, and kill engines in mid-sentence."""
