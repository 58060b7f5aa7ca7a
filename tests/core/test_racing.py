"""The first of several tasks wins, and none is left behind."""

from __future__ import annotations

import asyncio

import pytest

from controller.racing import end_all, first_of


async def soon() -> str:
    return "done"


async def soon_wrong() -> None:
    raise ValueError("wrong")


class Patient:
    """Waits for ever, notices its end, and may overhear the first call to end."""

    def __init__(self, deaf: int = 0) -> None:
        self.deaf = deaf
        self.ended = False

    async def wait(self) -> None:
        try:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    self.deaf -= 1
                    if self.deaf < 0:
                        raise
        finally:
            self.ended = True


async def test_the_first_ends_the_others() -> None:
    patient = Patient()
    await first_of(patient.wait(), soon())
    assert patient.ended


async def test_the_error_of_the_first_is_raised_after_the_others_ended() -> None:
    patient = Patient()
    with pytest.raises(ValueError, match="wrong"):
        await first_of(patient.wait(), soon_wrong())
    assert patient.ended


async def test_who_cancels_the_race_ends_all() -> None:
    patients = [Patient(), Patient()]
    race = asyncio.create_task(first_of(*(patient.wait() for patient in patients)))
    await asyncio.sleep(0)
    await end_all([race])
    assert race.cancelled()
    assert all(patient.ended for patient in patients)


async def test_a_swallowed_cancellation_is_repeated() -> None:
    patient = Patient(deaf=1)
    task = asyncio.create_task(patient.wait())
    await asyncio.sleep(0)
    await end_all([task])
    assert patient.ended
    await end_all([])
