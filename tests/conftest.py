"""What holds for every test. Helpers and fixtures have names and live in tests/support."""

import asyncio


def pytest_configure() -> None:
    # Without this, whoever asks for the main thread's current loop before the first coroutine
    # test (looptime does, around synchronous tests) gets one made that nobody closes.
    asyncio.set_event_loop(None)
