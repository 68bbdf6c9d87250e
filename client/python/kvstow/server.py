"""A kvstowd of this process's own, for notebooks, tests and single machines."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from kvstow.programs import program

PATIENCE = 3600.0  # seconds: a client's timeout at a server of our own that codes large models
_SECONDS_TO_START = 60.0
_SECONDS_TO_STOP = 30.0
_running: set[Server] = set()  # until they are closed, also where nobody else knows them any more


class Server:
    """Starts kvstowd on a free loopback port; stops it when it is closed, or when Python ends.

        with kvstow.Server(host_bytes="1GiB") as server:
            client = kvstow.Client(server.address)

    host_bytes: encoded bytes that it may hold in memory.
    disk_path, disk_bytes: a folder for cold pages, which also makes restarts warm.
    recipe: of spaces that name none.
    local_bytes: shared memory for `Client.buffer()`; 0 = none.
    flags: any other flag of kvstowd, with underscores for hyphens: lease_ttl="30s".

    Raises RuntimeError, with what kvstowd said, where it does not start.
    """

    def __init__(
        self,
        host_bytes: str = "256MiB",
        disk_path: str | Path | None = None,
        *,
        disk_bytes: str | None = None,
        recipe: str | None = None,
        local_bytes: int | str = "1GiB",
        **flags: str | int | float,
    ) -> None:
        daemon = str(program("kvstowd"))
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()  # a forked child leaves its parent's server alone
        self._folder = Path(tempfile.mkdtemp(prefix="kvstow_"))
        values: dict[str, object] = {"host_bytes": host_bytes, "disk_path": disk_path}
        values |= {"disk_bytes": disk_bytes, "recipe": recipe}
        if local_bytes:
            values |= {"local_socket": self._folder / "local", "local_bytes": local_bytes}
        values |= flags
        values.setdefault("http_listen", "127.0.0.1:0")
        values.setdefault("listen", f"127.0.0.1:{_free_port()}")
        self._arguments = [daemon]
        for name, value in values.items():
            if value is not None:
                self._arguments += ["--" + name.replace("_", "-"), str(value)]
        self.address = ""
        self.http_address = ""
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process, or 0 where it does not run."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process is not None else 0

    def log(self) -> str:
        """The output of kvstowd, of all its starts."""
        return (self._folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Starts it again, at the same address, after kill() or stop()."""
        if self.pid:
            return
        with open(self._folder / "log", "ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(
                self._arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        _running.add(self)
        end = time.monotonic() + _SECONDS_TO_START
        while True:
            said = (self._folder / "log").read_bytes()[begin:].decode(errors="replace")
            line = next((l for l in said.splitlines(True) if "listening grpc=" in l), "")
            if line.endswith("\n"):
                break
            if self._process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise RuntimeError(f"kvstowd did not start:\n{said[-2000:]}")
            time.sleep(0.005)
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        self.address = words["grpc"]
        self.http_address = words.get("http", "")

    def stop(self) -> None:
        """Asks it to end (SIGTERM): it finishes calls and flushes to disk."""
        if self.pid and self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Ends it at once (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def send_signal(self, number: signal.Signals) -> None:
        """Sends it a signal: SIGSTOP freezes it, SIGCONT wakes it. Returns once it is frozen."""
        if self.pid:
            os.kill(self.pid, number)
            if number == signal.SIGSTOP:  # each of its threads stops in its own time
                os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def close(self) -> None:
        """Stops it and removes its log. A disk_path stays. In a forked child: nothing."""
        if os.getpid() != self._owner:
            return
        self.stop()
        _running.discard(self)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"kvstow.Server({self.address!r}, pid={self.pid})"


def _free_port() -> int:
    """A loopback port that stays free while the server is down.

    Ports of 32768 and above are given to outgoing connections, also to clients that wait for the
    server to come back.
    """
    while True:
        port = random.randint(10_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@atexit.register
def _stop_servers() -> None:
    for server in list(_running):
        server.close()
