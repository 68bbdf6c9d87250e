"""The client for asyncio: the same names as in kvstow, awaitable.

    async with kvstow.aio.Client("127.0.0.1:7380") as client:
        space = await client.open_space("llama", spec, recipe="int8")
        hit = await space.lookup(keys)
        results = await space.get(keys[:hit.pages], lease=hit.lease)
        async for layers, results in space.get_layers(keys, out): ...

Gets and puts run on the client's own threads and wake the event loop through a descriptor. The
other calls are short; they wait on other threads of the client. Where these are busy, a call waits
`timeout` for its answer, and is a miss. A task that is cancelled stops waiting; its call goes on,
and keeps its buffers, until it ends.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kvstow import _native, client as sync
from kvstow.types import (
    Buffer,
    Column,
    Event,
    Fidelity,
    GetResult,
    KvSpec,
    Outcome,
    Page,
    Payload,
    PrefixHit,
    PutResult,
    ReportResult,
    Serving,
)

_T = TypeVar("_T")
_THREADS = 16  # of a client, for short calls


class _Threads:
    """Where a client's short calls wait for the server."""

    def __init__(self, client: sync.Client) -> None:
        self._client = client
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS, "kvstow_aio")
        self.late = f"UNAVAILABLE: no answer in {client.timeout:g} s"

    async def run(
        self, call: Callable[[], _T], miss: Callable[[], _T], lease: Callable[[_T], int] = lambda _: 0
    ) -> _T:
        """The call's result; a miss where none comes in time. A lease that nobody gets is released."""
        future = self._pool.submit(contextvars.copy_context().run, call)

        def release(ended: concurrent.futures.Future[_T]) -> None:
            if not ended.cancelled() and ended.exception() is None and lease(ended.result()):
                self._pool.submit(self._client.release, lease(ended.result()))

        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._client.timeout)
        except asyncio.TimeoutError:
            future.add_done_callback(release)
            return miss()
        except asyncio.CancelledError:
            future.add_done_callback(release)
            raise


class _Waker:
    """Wakes the tasks of one event loop whose calls made progress."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.completions = _native.Completions()
        self._waiting: dict[int, list[asyncio.Event]] = {}  # one for each task that waits
        loop.add_reader(self.completions.fileno(), self._drain)

    def _drain(self) -> None:
        for number in self.completions.drain():
            for event in self._waiting.get(number, ()):
                event.set()

    async def progress(self, call: _native.Call, or_run: bool = False) -> None:
        """Returns once the call is done, or has a run of layers that nobody took."""
        event = asyncio.Event()
        waiting = self._waiting.setdefault(call.number, [])
        waiting.append(event)
        try:
            while not call.wait(0, or_run):
                event.clear()
                if call.wait(0, or_run):
                    return
                await event.wait()
        finally:
            waiting.remove(event)
            if not waiting:
                del self._waiting[call.number]


_wakers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Waker] = weakref.WeakKeyDictionary()


def _waker() -> _Waker:
    loop = asyncio.get_running_loop()
    waker = _wakers.get(loop)
    if waker is None:
        waker = _wakers[loop] = _Waker(loop)
    return waker


class Client:
    """kvstow.Client, awaitable. Takes the same arguments.

    traceparent runs in another thread than the loop's, in the context of the task that calls.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:7380",
        *,
        token: str = "",
        token_file: str | Path = "",
        timeout: float = 10.0,
        attempts: int = 6,
        payload: Payload = "raw",
        shared_bytes: int = 256 << 20,
        direct_connections: int = 8,
        tls_ca: str | Path | None = None,
        tls_cert: str | Path | None = None,
        tls_key: str | Path | None = None,
        tls_name: str | None = None,
        gpu: int | None = None,
        calibrations: Sequence[str | Path] = (),
        traceparent: Callable[[], str] | None = None,
    ) -> None:
        self._sync = sync.Client(
            address,
            token=token,
            token_file=token_file,
            timeout=timeout,
            attempts=attempts,
            payload=payload,
            shared_bytes=shared_bytes,
            direct_connections=direct_connections,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_name=tls_name,
            gpu=gpu,
            calibrations=calibrations,
            traceparent=traceparent,
        )
        self._threads = _Threads(self._sync)

    async def open_space(
        self,
        name: str,
        spec: KvSpec,
        *,
        recipe: str = "",
        fidelity: Fidelity = "",
        private: bool | None = None,
        payload: Payload | None = None,
        queries: bytes = b"",
        normed_keys: bool = False,
    ) -> Space:
        """See kvstow.Client.open_space."""
        space = Space(
            sync.Space(
                self._sync, name, spec, recipe, fidelity, private, payload, queries, normed_keys
            ),
            self._threads,
        )
        await space.ready()
        return space

    async def find_space(self, name: str) -> Space | None:
        """See kvstow.Client.find_space."""
        space = await self._threads.run(lambda: self._sync.find_space(name), lambda: None)
        return None if space is None else Space(space, self._threads)

    async def drop_space(self, name: str) -> int | None:
        """See kvstow.Client.drop_space."""
        return await self._threads.run(lambda: self._sync.drop_space(name), lambda: None)

    async def send_calibration(self, calibration: bytes | str | Path) -> bytes | None:
        """See kvstow.Client.send_calibration."""
        return await self._threads.run(
            lambda: self._sync.send_calibration(calibration), lambda: None
        )

    async def release(self, lease: int) -> None:
        """See kvstow.Client.release."""
        await self._threads.run(lambda: self._sync.release(lease), lambda: None)

    async def buffer(self, bytes: int) -> npt.NDArray[np.uint8]:
        """See kvstow.Client.buffer."""
        return await self._threads.run(
            lambda: self._sync.buffer(bytes), lambda: np.zeros(bytes, np.uint8)
        )

    @property
    def serving(self) -> Serving:
        """See kvstow.Client.serving."""
        return self._sync.serving

    @property
    def closed(self) -> bool:
        return self._sync.closed

    async def close(self) -> None:
        """Ends open calls as misses. Calls after it raise ValueError."""
        await asyncio.to_thread(self._sync.close)  # the client's own may all wait for the server

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class Space:
    """kvstow.Space, awaitable."""

    def __init__(self, space: sync.Space, threads: _Threads) -> None:
        self._sync = space
        self._threads = threads

    @property
    def name(self) -> str:
        return self._sync.name

    @property
    def spec(self) -> KvSpec:
        return self._sync.spec

    @property
    def recipe(self) -> str:
        return self._sync.recipe

    @property
    def open(self) -> bool:
        return self._sync.open

    @property
    def message(self) -> str:
        return self._sync.message

    async def ready(self) -> bool:
        """See kvstow.Space.ready."""
        return self._sync.open or await self._threads.run(self._sync.ready, self._not_ready)

    def _not_ready(self) -> bool:
        self._sync.message = self._threads.late
        return False

    async def lookup(self, keys: Sequence[bytes], *, lease: bool = True) -> PrefixHit:
        """See kvstow.Space.lookup."""
        return await self._threads.run(
            lambda: self._sync.lookup(keys, lease=lease),
            lambda: PrefixHit(message=self._threads.late),
            lambda hit: hit.lease,
        )

    async def send_statistics(self, statistics: bytes) -> bool:
        """See kvstow.Space.send_statistics."""
        return await self._threads.run(
            lambda: self._sync.send_statistics(statistics), self._not_ready
        )

    async def put(self, pages: Sequence[Page]) -> list[PutResult]:
        """See kvstow.Space.put."""
        call = None
        waker = _waker()
        if await self.ready():
            call = self._sync.start_put(pages, waker.completions)
        if call is None:
            return sync._missed_puts(pages, self.message)
        await waker.progress(call)
        return sync._puts_of(call)

    async def get(
        self,
        keys: Sequence[bytes],
        out: Sequence[Buffer] | npt.NDArray[Any] | None = None,
        *,
        lease: int = 0,
        max_levels: int = 0,
        min_levels: int = 0,
        max_error: float = float("inf"),
        layers: tuple[int, int] | None = None,
        tokens: tuple[int, int] | None = None,
        again: bool = False,
        ready: Event = 0,
    ) -> list[GetResult]:
        """See kvstow.Space.get."""
        bounds = sync._bounds(max_levels, min_levels, max_error, layers, tokens, again, ready)
        rooms = self._sync._rooms(keys, out, bounds)
        call = None
        waker = _waker()
        if await self.ready():
            call = self._sync.start_get(keys, rooms, lease, bounds, waker.completions)
        if call is None:
            return sync._missed_gets(keys, self.message)
        await waker.progress(call)
        return sync._gets_of(call, rooms, out is None)

    async def get_layers(
        self,
        keys: Sequence[bytes],
        out: Sequence[Buffer] | npt.NDArray[Any],
        *,
        lease: int = 0,
        layers_per_run: int = 0,
        max_levels: int = 0,
        max_error: float = float("inf"),
    ) -> AsyncIterator[tuple[range, list[GetResult]]]:
        """See kvstow.Space.get_layers."""
        bounds = sync._bounds(max_levels, 0, max_error, None, None, False, 0)
        call = None
        waker = _waker()
        if await self.ready():
            call = self._sync.start_layers(
                keys, out, lease, bounds, layers_per_run, waker.completions
            )
        if call is None:
            yield range(0), sync._missed_gets(keys, self.message)
            return
        while True:
            await waker.progress(call, or_run=True)
            run = call.take_run()
            if run is None:
                break
            yield range(run[0], run[0] + run[1]), sync._to_gets(run[2], out, False)
        yield range(0), sync._gets_of(call, out, False)

    async def put_layers(self, pages: Sequence[Page]) -> LayersPut:
        """See kvstow.Space.put_layers."""
        waker = _waker()
        if await self.ready():
            return LayersPut(self._sync._start_put_layers(pages, waker.completions), waker)
        return LayersPut(self._sync._missed_layers(pages), waker)

    async def report_attention(self, reports: Sequence[tuple[bytes, Column]]) -> list[ReportResult]:
        """See kvstow.Space.report_attention."""
        return await self._threads.run(
            lambda: self._sync.report_attention(reports),
            lambda: [ReportResult("UNAVAILABLE", self._threads.late) for _ in reports],
        )

    async def delete(self, keys: Sequence[bytes], *, force: bool = False) -> list[Outcome]:
        """See kvstow.Space.delete."""
        return await self._threads.run(
            lambda: self._sync.delete(keys, force=force), lambda: ["UNAVAILABLE" for _ in keys]
        )

    async def pin(self, keys: Sequence[bytes], pinned: bool = True) -> list[Outcome]:
        """See kvstow.Space.pin."""
        return await self._threads.run(
            lambda: self._sync.pin(keys, pinned), lambda: ["UNAVAILABLE" for _ in keys]
        )


class LayersPut:
    """kvstow.client.LayersPut, whose results are awaited."""

    def __init__(self, put: sync.LayersPut, waker: _Waker) -> None:
        self._sync = put
        self._waker = waker

    def filled(self, layers: int) -> None:
        """The first `layers` layers of every page hold what is to be stored."""
        self._sync.filled(layers)

    async def results(self) -> list[PutResult]:
        """Waits for the put to end. A put whose layers are not all filled is given up."""
        self._sync._put = None
        if self._sync._call is not None:
            await self._waker.progress(self._sync._call)
        return self._sync.results()
