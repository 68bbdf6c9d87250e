"""The client: pages of KV cache into a kvstowd and out again.

    with kvstow.Client("127.0.0.1:7380") as client:
        space = client.open_space("llama", spec, recipe="int8")
        keys = kvstow.page_keys(tokens, spec.page_tokens)
        hit = space.lookup(keys)
        results = space.get(keys[:hit.pages], lease=hit.lease)
        space.put([kvstow.Page(key, array) for key, array in new_pages])

A server that is dead, slow or restarting is a miss (`outcome` UNAVAILABLE), never an exception, and
no call waits longer than the client's timeout. Wrong arguments are a ValueError that names them,
before anything is sent.

All of it is thread-safe. A process that forks after it made a client has none in the child: calls
there are misses, at once. Make clients after the fork, or use spawn.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstow import _native
from kvstow.types import (
    Bounds,
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
    Rope,
    Serving,
    SpaceMismatch,
)

_SECONDS_BETWEEN_OPENINGS = 1.0
_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _tls_option(given: str | Path | None, variable: str) -> str:
    return os.environ.get(variable, "") if given is None else str(given)


def _token_file(token: str, token_file: str | Path) -> str:
    return str(token_file) or ("" if token else os.environ.get("KVSTOW_TOKEN_FILE", ""))


class Client:
    """A connection to kvstowd. Making it does not wait for the server.

    address: HOST:PORT or unix:PATH; or several with commas between, of which one serves at a time:
        "unix:/run/kvstow/kvstow.sock,10.0.0.1:7380". A UNIX socket comes first, then an address of
        this host, then the others in their order. "dns:///NAME:PORT" is every address that NAME
        has.
    token: the bearer token that says who this is, where the server asks.
    token_file: in its place a file with the token; it is read again when it changes. Without
        either, KVSTOW_TOKEN_FILE names it.
    timeout: seconds that a call may take, with all its attempts.
    attempts: in a row, at a server that refuses connections; 6 take about 2 s, 1 gives up at once.
    payload: how pages cross the network; "encoded" saves bytes and costs this process's CPU time.
    shared_bytes: at most, of `buffer()`s shared with a server on this host; 0 = none.
    direct_connections: for pages beside gRPC, at most; 0 = none.
    tls_ca: file of the CA that signed the server's certificate; the client talks TLS then.
    tls_cert, tls_key: the client's own certificate and its key, for a server that asks for one.
    tls_name: the name that the server's certificate must have, where it is not the address's host.
        Each of the four, where it is None, is KVSTOW_TLS_CA, KVSTOW_TLS_CERT, KVSTOW_TLS_KEY or
        KVSTOW_TLS_NAME of the environment, as for `kvstow`; "" is none.
    gpu: the index of the CUDA GPU that pages may lie on.
    calibrations: files of `kvstow codec calibrate`, for encoded pages of recipes that need them.
    traceparent: gives the W3C traceparent of the span that calls, or "". It runs in the thread that
        calls. The server's log of slow and failing calls names the trace.
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
        self.address = address
        self.timeout = timeout
        self._native = _native.Client(
            address=address,
            token=token,
            token_file=_token_file(token, token_file),
            timeout=timeout,
            attempts=attempts,
            payload=payload,
            shared_bytes=shared_bytes,
            direct_connections=direct_connections,
            tls_ca=_tls_option(tls_ca, "KVSTOW_TLS_CA"),
            tls_cert=_tls_option(tls_cert, "KVSTOW_TLS_CERT"),
            tls_key=_tls_option(tls_key, "KVSTOW_TLS_KEY"),
            tls_name=_tls_option(tls_name, "KVSTOW_TLS_NAME"),
            gpu=-1 if gpu is None else gpu,
            calibrations=[Path(file).read_bytes() for file in calibrations],
            traceparent=traceparent,
        )
        _open_clients.add(self)

    def open_space(
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
        """Opens a space: pages of one model under one recipe. Makes it where it is new.

        normed_keys: whether the model's keys pass a norm (QK-norm); `auto` goes by it. For a config
            of a hub, kvstow.models.norms_keys knows it.

        Returns it even where the server cannot be reached: its pages are misses then, and it opens
        when the server comes back. Raises SpaceMismatch where the name belongs to another model.
        """
        space = Space(self, name, spec, recipe, fidelity, private, payload, queries, normed_keys)
        space.ready()
        return space

    def find_space(self, name: str) -> Space | None:
        """The space of that name as it is; None where there is none, or no server."""
        return self._find_space(name)[0]

    def _find_space(self, name: str) -> tuple[Space | None, str]:
        """The space, and why the server could not be asked; "" where it was."""
        code, message, info = self._native.find_space(name)
        if info is None:
            return None, "" if code == "NOT_FOUND" else message
        found = info.dict()
        fields = dict(found["spec"])
        for rope in ("rope", "other_rope"):
            fields[rope] = fields[rope] and Rope(**fields[rope])
        spec = KvSpec(**fields)
        recipe = found["pipeline"]  # all that the space's recipe means
        space = Space(self, name, spec, recipe, found["fidelity"], None, None, b"", False)
        space._opened(info)
        return space, ""

    def drop_space(self, name: str) -> int | None:
        """Forgets a space and all its pages, for everyone. How many pages; None: it is not done."""
        return self._native.drop_space(name)[2]

    def send_calibration(self, calibration: bytes | str | Path) -> bytes | None:
        """Gives the server a calibration (bytes or a file). Its name; None: the server has it not."""
        blob = calibration if isinstance(calibration, bytes) else Path(calibration).read_bytes()
        code, message, name = self._native.send_calibration(blob)
        if code == "INVALID_ARGUMENT":
            raise ValueError(f"calibration: {message}")
        return name

    def release(self, lease: int) -> None:
        """Gives a lease back before it expires."""
        if lease:
            self._native.release(lease)

    def buffer(self, bytes: int) -> npt.NDArray[np.uint8]:
        """Memory for pages, shared with a server on this host: its pages do not travel at all.

        Make one large buffer and keep it. Pages in it should begin at multiples of 4 KiB. Where the
        server is elsewhere, it is plain memory and only slower.
        """
        if bytes < 1:
            raise ValueError(f"bytes: {bytes} is less than 1")
        return self._native.buffer(bytes)[0]

    @property
    def serving(self) -> Serving:
        """The server that calls go to now, and how often another one took over."""
        return Serving(*self._native.serving())

    @property
    def closed(self) -> bool:
        return self._native.closed()

    def close(self) -> None:
        """Ends open calls as misses. Calls after it raise ValueError."""
        self._native.close()
        _open_clients.discard(self)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"kvstow.Client({self.address!r}{', closed' if self.closed else ''})"


class Space:
    """Pages of one model under one recipe, on one server. Client.open_space makes it."""

    def __init__(
        self,
        client: Client,
        name: str,
        spec: KvSpec,
        recipe: str,
        fidelity: Fidelity,
        private: bool | None,
        payload: Payload | None,
        queries: bytes,
        normed_keys: bool,
    ) -> None:
        if not name:
            raise ValueError("name: a space needs one")
        self.client = client
        self.name = name
        self.spec = spec
        self.recipe = recipe
        self.fidelity = fidelity
        self.message = ""  # why the space is not open
        self.wants_statistics = False  # of its model, which nobody has sent: see send_statistics
        self._spec = spec.native()
        self._arguments = (
            name,
            self._spec,
            recipe,
            fidelity,
            private,
            payload,
            queries,
            normed_keys,
        )
        self._info: _native.SpaceInfo | None = None
        self._lock = threading.Lock()
        self._retry_at = 0.0

    def _opened(self, info: _native.SpaceInfo) -> None:
        found = info.dict()
        self.recipe = found["recipe"]
        self.fidelity = found["fidelity"]
        self.fingerprint: bytes = found["fingerprint"]
        self.pipeline: str = found["pipeline"]
        self.levels: int = found["levels"]
        self.created: bool = found["created"]
        self.wants_statistics = bool(found["wants_statistics"])
        self.message = ""
        self._info = info

    @property
    def open(self) -> bool:
        """Whether the server was asked and agreed. The client keeps it so over restarts.

        False again once this client opened another space under the name.
        """
        return self._info is not None and not self.client._native.is_stale(self._info)

    def ready(self) -> bool:
        """Opens the space if it is not open. Asks at most once a second; False: it is not open."""
        if self.open:
            return True
        if self._info is not None:
            self.message = "NOT_COMPATIBLE: this client opened another space of that name since"
            return False
        with self._lock:
            if self._info is not None:
                return True
            if time.monotonic() < self._retry_at:
                return False
            code, message, info = self.client._native.open_space(*self._arguments)
            self._retry_at = time.monotonic() + _SECONDS_BETWEEN_OPENINGS
            if info is not None:
                self._opened(info)
                return True
            self.message = f"{code}: {message}"
        if code == "INVALID_ARGUMENT":
            raise ValueError(message)
        if code in ("FAILED_PRECONDITION", "ALREADY_EXISTS"):
            raise SpaceMismatch(message)
        return False

    def lookup(self, keys: Sequence[bytes], *, lease: bool = True) -> PrefixHit:
        """How many of the leading keys are stored. A lease keeps them until it expires."""
        if not self.ready():
            return PrefixHit(message=self.message)
        pages, tokens, number, tiers, code, message = self.client._native.lookup(
            self.name, keys, lease
        )
        return PrefixHit(
            pages, tokens, number, tuple(tiers), "" if code == "OK" else f"{code}: {message}"
        )

    def send_statistics(self, statistics: bytes) -> bool:
        """Tells the server what the model feels of errors in its K and V, for a space of recipe auto.

        statistics: what kvstow.model_statistics or kvstow.hf.statistics_of gives. The server then
        finds smaller cold forms. False: it did not take them, as `message` says. Raises ValueError
        for statistics of another shape.
        """
        if not self.ready():
            return False
        code, message = self.client._native.send_statistics(self.name, statistics)
        if code == "INVALID_ARGUMENT":
            raise ValueError(f"statistics: {message}")
        if code == "OK":
            self.wants_statistics = False
            return True
        self.message = f"{code}: {message}"
        return False

    def put(self, pages: Sequence[Page]) -> list[PutResult]:
        """Stores pages. One result for each, in order."""
        call = self.start_put(pages)
        return _missed_puts(pages, self.message) if call is None else _puts_of(call)

    def get(
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
        """Fetches pages into `out`, one writable buffer for each, or into new arrays of bytes.

        A page with fewer levels than `min_levels`, or with a larger estimated error than
        `max_error`, is a miss. `layers` and `tokens` are ranges (first, count). `data` of a hit is
        its element of `out`; a page that is shorter than its buffer fills the front. On a GPU,
        `out` is written once the event `ready` has passed.
        """
        bounds = _bounds(max_levels, min_levels, max_error, layers, tokens, again, ready)
        rooms = self._rooms(keys, out, bounds)
        call = self.start_get(keys, rooms, lease, bounds)
        if call is None:
            return _missed_gets(keys, self.message)
        return _gets_of(call, rooms, out is None)

    def get_layers(
        self,
        keys: Sequence[bytes],
        out: Sequence[Buffer] | npt.NDArray[Any],
        *,
        lease: int = 0,
        layers_per_run: int = 0,
        max_levels: int = 0,
        max_error: float = float("inf"),
    ) -> Iterator[tuple[range, list[GetResult]]]:
        """Fetches pages a few layers at a time, in order: computing can begin with the first.

        Gives the layers that all pages have now, and the results so far; at last `range(0)` and the
        final results. Until then a hit rests on what has come: look at the final ones.
        """
        bounds = _bounds(max_levels, 0, max_error, None, None, False, 0)
        call = self.start_layers(keys, out, lease, bounds, layers_per_run)
        if call is None:
            yield range(0), _missed_gets(keys, self.message)
            return
        while True:
            call.wait(None, or_run=True)
            run = call.take_run()
            if run is None:
                break
            yield range(run[0], run[0] + run[1]), _to_gets(run[2], out, False)
        yield range(0), _gets_of(call, out, False)

    def put_layers(self, pages: Sequence[Page]) -> LayersPut:
        """Starts a put of pages that are still being computed: say which layers are filled."""
        return self._start_put_layers(pages) if self.ready() else self._missed_layers(pages)

    def _start_put_layers(
        self, pages: Sequence[Page], completions: _native.Completions | None = None
    ) -> LayersPut:
        """For a space that is open."""
        assert self._info is not None
        call, put = self.client._native.put_layers(self._info, pages, completions)
        return LayersPut(call, put, pages, "")

    def _missed_layers(self, pages: Sequence[Page]) -> LayersPut:
        return LayersPut(None, None, pages, self.message)

    def report_attention(self, reports: Sequence[tuple[bytes, Column]]) -> list[ReportResult]:
        """Tells what attention stored pages received: it decides which bytes go first."""
        keys = [key for key, _ in reports]
        columns = [column for _, column in reports]
        if not self.ready():
            return [ReportResult("UNAVAILABLE", self.message) for _ in reports]
        code, message, results = self.client._native.report(self.name, keys, columns)
        if results is None:
            return [ReportResult("UNAVAILABLE", f"{code}: {message}") for _ in reports]
        return [ReportResult(*result) for result in results]

    def delete(self, keys: Sequence[bytes], *, force: bool = False) -> list[Outcome]:
        """Deletes pages, also leased ones with `force`. One outcome for each key."""
        if not self.ready():
            return ["UNAVAILABLE" for _ in keys]
        outcomes = self.client._native.delete(self.name, keys, force)[2]
        return ["UNAVAILABLE" for _ in keys] if outcomes is None else outcomes

    def pin(self, keys: Sequence[bytes], pinned: bool = True) -> list[Outcome]:
        """Keeps pages from eviction, or no longer. One outcome for each key."""
        if not self.ready():
            return ["UNAVAILABLE" for _ in keys]
        outcomes = self.client._native.pin(self.name, keys, pinned)[2]
        return ["UNAVAILABLE" for _ in keys] if outcomes is None else outcomes

    # The asynchronous core, for kvstow.aio and for adapters with a loop of their own: a call that
    # runs, or None where the space is not open. Completions hears of its end.

    def start_put(
        self, pages: Sequence[Page], completions: _native.Completions | None = None
    ) -> _native.Call | None:
        if not self.ready() or self._info is None:
            return None
        return self.client._native.put(self._info, pages, completions)

    def start_get(
        self,
        keys: Sequence[bytes],
        out: Sequence[Buffer] | npt.NDArray[Any],
        lease: int,
        bounds: Bounds,
        completions: _native.Completions | None = None,
    ) -> _native.Call | None:
        _check_rooms(keys, out)
        if not self.ready() or self._info is None:
            return None
        return self.client._native.get(self._info, lease, keys, out, bounds, completions)

    def start_layers(
        self,
        keys: Sequence[bytes],
        out: Sequence[Buffer] | npt.NDArray[Any],
        lease: int,
        bounds: Bounds,
        layers_per_run: int,
        completions: _native.Completions | None = None,
    ) -> _native.Call | None:
        _check_rooms(keys, out)
        if not self.ready() or self._info is None:
            return None
        return self.client._native.get_layers(
            self._info, lease, keys, out, bounds, layers_per_run, completions
        )

    def _rooms(
        self, keys: Sequence[bytes], out: Sequence[Buffer] | npt.NDArray[Any] | None, bounds: Bounds
    ) -> Sequence[Buffer] | npt.NDArray[Any]:
        if out is not None:
            return out
        layers = bounds.layer_count or self.spec.layers - bounds.first_layer
        tokens = bounds.token_count or self.spec.page_tokens - bounds.first_token
        size = self._spec.token_bytes // self.spec.layers * max(layers, 0) * max(tokens, 0)
        return np.empty((len(keys), size), np.uint8)

    def __repr__(self) -> str:
        state = "" if self.open else ", not open"
        return f"kvstow.Space({self.name!r}, recipe={self.recipe!r}{state})"


class LayersPut:
    """A put whose pages are still being computed (Space.put_layers).

    Leaving it as a context manager waits; after an exception the put is given up instead.
    """

    def __init__(
        self,
        call: _native.Call | None,
        put: _native.LayerPut | None,
        pages: Sequence[Page],
        message: str,
    ) -> None:
        self._call = call
        self._put = put
        self._pages = pages
        self._message = message
        self._results: list[PutResult] | None = None

    def filled(self, layers: int) -> None:
        """The first `layers` layers of every page hold what is to be stored."""
        if layers < 0:
            raise ValueError(f"layers: {layers} is less than 0")
        if self._put is not None:
            self._put.filled(layers)

    def results(self) -> list[PutResult]:
        """Waits for the put to end. A put whose layers are not all filled is given up."""
        self._put = None
        if self._results is None:
            self._results = (
                _missed_puts(self._pages, self._message)
                if self._call is None
                else _puts_of(self._call)
            )
        return self._results

    def __enter__(self) -> LayersPut:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._put = None
        if kind is None:
            self.results()


# Most calls ask for nothing, and making bounds takes a quarter of Python's time.
_ANY = Bounds()
_NOTHING = (0, 0, float("inf"), None, None, False, 0)


def _bounds(
    max_levels: int,
    min_levels: int,
    max_error: float,
    layers: tuple[int, int] | None,
    tokens: tuple[int, int] | None,
    again: bool,
    ready: Event,
) -> Bounds:
    for name, span in (("layers", layers), ("tokens", tokens)):
        if span is not None and (span[0] < 0 or span[1] < 1):
            raise ValueError(f"{name}: {span} is not (first, count) with a count of 1 or more")
    for name, number in (("max_levels", max_levels), ("min_levels", min_levels)):
        if number < 0:
            raise ValueError(f"{name}: {number} is less than 0")
    if (max_levels, min_levels, max_error, layers, tokens, again, ready) == _NOTHING:
        return _ANY
    return Bounds(
        max_levels, min_levels, max_error, *(layers or (0, 0)), *(tokens or (0, 0)), again, ready
    )


def _check_rooms(keys: Sequence[bytes], out: Sequence[Buffer] | npt.NDArray[Any]) -> None:
    if len(out) != len(keys):
        raise ValueError(f"out: has {len(out)} buffers for {len(keys)} keys")


def _missed_puts(pages: Sequence[Page], message: str) -> list[PutResult]:
    return [PutResult("UNAVAILABLE", message) for _ in pages]


def _missed_gets(keys: Sequence[bytes], message: str) -> list[GetResult]:
    return [GetResult("UNAVAILABLE", message) for _ in keys]


def _puts_of(call: _native.Call) -> list[PutResult]:
    call.wait()
    return [PutResult(*result) for result in call.take_puts()]


def _gets_of(
    call: _native.Call, out: Sequence[Buffer] | npt.NDArray[Any], ours: bool
) -> list[GetResult]:
    call.wait()
    return _to_gets(call.take_gets(), out, ours)


def _to_gets(
    results: list[tuple[Any, ...]], out: Sequence[Buffer] | npt.NDArray[Any], ours: bool
) -> list[GetResult]:
    """With the data of hits; an array of ours is cut to the page."""
    return [
        GetResult._make(
            (*result, (room[: result[4]] if ours else room) if result[0] == "HIT" else None)
        )
        for result, room in zip(results, out)
    ]


@atexit.register
def _close_clients() -> None:
    # The client's threads must not outlive the interpreter.
    for client in list(_open_clients):
        client.close()
