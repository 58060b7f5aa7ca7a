"""Something that is made asynchronously: to be awaited, or to be used as a context.

What lives here: ``Connecting``. What may not: what is made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar


class Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class Connecting(Generic[T]):
    """A client on its way: awaited it is the client; as a context it is closed at the
    end."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._client: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._make().__await__()

    async def __aenter__(self) -> T:
        self._client = await self._make()
        return self._client

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._client is not None:
            await self._client.close()
