"""Level 2 of LMCache's multiprocess server: its chunks in kvstowd, compressed and shared by nodes.

    lmcache ... --l2-adapter '{"type": "native_plugin", "module_path": "kvstow.lmcache",
        "class_name": "KvstowL2", "adapter_params": {"address": "127.0.0.1:7380"}}'

LMCache gives values of any size and does not say what is in them. A value becomes pages of up to
4 MiB, whose "tokens" are rows of values in a line. Recipes that go by a row's own values fit that:
raw, lossless, int8, int4. Each model has a space; a page's name is a digest of LMCache's whole key,
in which rank, group and salt are.

Nothing here imports LMCache. Its adapter calls the methods of KvstowL2 on its own threads, hears of
their ends through a descriptor, and never waits.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeAlias

import numpy as np

from kvstow.client import Client, Space
from kvstow.quiet import Quiet
from kvstow.types import Fidelity, KvSpec, Page, Payload, Rope, trouble_of
from kvstow.versions import check_version

Completion: TypeAlias = tuple[int, bool, str, list[bool] | None]
"""The number of a call, whether it worked, why not, and the answer for each key. A call that stores
worked if all is stored. The others worked if the server was asked, whatever it has."""

_ROW = 512  # values in what stands for a token: 8 "heads" of 64
_ROWS = 4096  # in a page
_MOST_PAGES = 256  # of a value whose size nobody has told: 1 GiB
_SEPARATOR = "@"  # between the fields of a key; the model's name comes first


class KvstowL2:
    """A connector as LMCache's `native_plugin` wants it. Thread-safe.

    address: HOST:PORT or unix:PATH of the server, or several with commas, as kvstow.Client takes.
    recipe: of the spaces that it makes; "lossless" and "raw" give the very bytes back.
    dtype: of LMCache's values, for recipes that look at them.
    space: the first part of the names of its spaces.
    timeout: seconds that a call may take, and that it may wait before. A server that did not answer
        is left alone for some seconds: calls end at once.
    payload: how pages cross the network; see kvstow.Client.
    threads: calls that run at once.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:7380",
        *,
        recipe: str = "lossless",
        dtype: Literal["float16", "bfloat16"] = "bfloat16",
        space: str = "lmcache",
        timeout: float = 10.0,
        payload: Payload = "raw",
        threads: int = 4,
    ) -> None:
        check_version("lmcache")
        if dtype not in ("float16", "bfloat16"):
            raise ValueError(f"dtype: {dtype!r} must be 'float16' or 'bfloat16'")
        if threads < 1:
            raise ValueError(f"threads: {threads} is less than 1")
        self._recipe = recipe
        self._dtype: Literal["float16", "bfloat16"] = dtype
        self._prefix = space
        self._fidelity: Fidelity = "exact" if recipe in ("raw", "lossless") else ""
        self._timeout = timeout
        self._client = Client(address, timeout=timeout, payload=payload)
        self._quiet = Quiet()
        self._trouble = ""  # why the server is left alone, or was
        self._spaces: dict[str, Space] = {}
        # How many pages values of a model, rank and group have: the least that calls told.
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._done: list[Completion] = []
        self._numbers = itertools.count(1)
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="kvstow_l2")

    # What LMCache calls.

    def event_fd(self) -> int:
        """A descriptor that is readable while drain_completions has something."""
        return self._descriptor

    def submit_batch_set(self, keys: Sequence[str], values: Sequence[memoryview]) -> int:
        """Stores values. They must not change until the call has ended."""
        _check_sizes(keys, values)
        return self._submit(self._set, keys, values)

    def submit_batch_get(self, keys: Sequence[str], values: Sequence[memoryview]) -> int:
        """Fills memory with values of exactly its sizes."""
        _check_sizes(keys, values)
        return self._submit(self._get, keys, values)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Asks which values are there, and keeps them while a lease lasts."""
        return self._submit(self._exists, keys)

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        return self._submit(self._delete, keys)

    def drain_completions(self) -> list[Completion]:
        """The calls that ended since the last time. None after close()."""
        with self._lock:
            if self._descriptor < 0:
                return []
            try:
                os.eventfd_read(self._descriptor)
            except BlockingIOError:
                pass
            done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Ends open calls; nobody hears of them."""
        self._client.close()
        self._threads.shutdown(cancel_futures=True)
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = -1

    # Calls.

    def _submit(
        self,
        run: Callable[..., tuple[list[bool], str]],
        keys: Sequence[str],
        *arguments: object,
    ) -> int:
        number, end = next(self._numbers), time.monotonic() + self._timeout
        self._threads.submit(self._run, number, end, run, keys, *arguments)
        return number

    def _run(
        self,
        number: int,
        end: float,
        run: Callable[..., tuple[list[bool], str]],
        keys: Sequence[str],
        *arguments: object,
    ) -> None:
        try:
            each, why = [False] * len(keys), self._why_not()
            if not why and time.monotonic() >= end:
                why = f"UNAVAILABLE: the call waited {self._timeout:g} s behind others"
            if not why:
                each, why = run(keys, *arguments)
            completion: Completion = (number, not why, why, each)
        except Exception as error:  # LMCache must hear of the end of every call
            completion = (number, False, str(error), None)
        with self._lock:
            self._done.append(completion)
            os.eventfd_write(self._descriptor, 1)

    def _why_not(self) -> str:
        """Why the server is not asked now; "" where it is."""
        if not self._quiet:
            return ""
        return f"UNAVAILABLE: the server is left alone, as it did not answer: {self._trouble}"

    def _leave_alone(self, why: str) -> None:
        self._trouble = why
        self._quiet.begin()

    def _look_for_trouble(self, results: Sequence[Any]) -> None:
        if why := trouble_of(results):
            self._leave_alone(why)

    def _set(self, keys: Sequence[str], values: Sequence[memoryview]) -> tuple[list[bool], str]:
        good = [False] * len(keys)
        why = ""
        for space, numbers in self._by_space(keys):
            if left_alone := self._why_not():
                return good, left_alone
            pages = [
                [Page(name, _padded(part), at * _ROWS) for at, name, part in self._pages(keys[i], values[i])]
                for i in numbers
            ]
            puts = space.put([page for value in pages for page in value])
            self._look_for_trouble(puts)
            results = iter(puts)
            for i, value in zip(numbers, pages):
                ended = [next(results) for _ in value]
                good[i] = all(result.stored for result in ended)
                why = why or next((r.message or r.outcome for r in ended if not r.stored), "")
        return good, why

    def _get(self, keys: Sequence[str], values: Sequence[memoryview]) -> tuple[list[bool], str]:
        good = [False] * len(keys)
        for space, numbers in self._by_space(keys):
            if left_alone := self._why_not():
                return good, left_alone
            pages = [(i, *page) for i in numbers for page in self._pages(keys[i], values[i])]
            rooms = [_padded(part) for _, _, _, part in pages]
            for i in numbers:
                good[i] = True
            results = space.get([name for _, _, name, _ in pages], rooms)
            self._look_for_trouble(results)
            for (i, at, _, part), room, result in zip(pages, rooms, results):
                rows = len(room) // (2 * _ROW)
                if not result.hit or (result.tokens, result.first_position) != (rows, at * _ROWS):
                    good[i] = False
                elif room is not part:
                    part[:] = room[: len(part)]
        return good, ""

    def _exists(self, keys: Sequence[str]) -> tuple[list[bool], str]:
        there = [False] * len(keys)
        for space, numbers in self._by_space(keys):
            if left_alone := self._why_not():
                return there, left_alone
            counts = self._page_counts(space, [keys[i] for i in numbers])
            if left_alone := self._why_not():
                return there, left_alone
            values = [
                [_page_name(keys[i], at) for at in range(count)]
                for i, count in zip(numbers, counts)
            ]
            hit = space.lookup([name for names in values for name in names])
            if hit.message:
                self._leave_alone(hit.message)
                return there, hit.message
            leading = _whole(values, hit.pages)
            for i in numbers[:leading]:
                there[i] = True
            # A lookup ends at the first that is not there. Others may follow; it is rare.
            rest = numbers[leading + 1 :]
            for i, found in zip(rest, self._found(space, values[leading + 1 :])):
                there[i] = found
        return there, ""

    def _found(self, space: Space, values: Sequence[Sequence[bytes]]) -> list[bool]:
        """Asks which values are there, by one fetch of their pages' first rows. Leases these."""
        if not values:
            return []
        results = space.get([name for names in values for name in names], tokens=(0, 1))
        self._look_for_trouble(results)
        hits = iter([result.hit for result in results])
        found = [all([next(hits) for _ in names]) for names in values]
        at = 0
        for hit, run in itertools.groupby(found):
            end = at + len(list(run))
            if hit:
                space.lookup([name for names in values[at:end] for name in names])
            at = end
        return found

    def _page_counts(self, space: Space, keys: Sequence[str]) -> list[int]:
        """How many pages the value of each key has.

        LMCache does not say how large a value is that it asks for. Those of a model, rank and group
        are alike, so calls that store and fetch tell it. Before these, the pages of the first one
        that the server has tell.
        """
        with self._lock:
            counts = dict(self._counts)
        for key in keys:
            if _kind(key) not in counts:
                hit = space.lookup([_page_name(key, at) for at in range(_MOST_PAGES)], lease=False)
                if hit.message:
                    self._leave_alone(hit.message)
                    break
                counts[_kind(key)] = max(1, hit.pages)
        return [counts.get(_kind(key), 1) for key in keys]

    def _delete(self, keys: Sequence[str]) -> tuple[list[bool], str]:
        gone = [False] * len(keys)
        for space, numbers in self._by_space(keys):
            left = list(numbers)
            for at in itertools.count():  # nobody says how many pages a value has
                if left_alone := self._why_not():
                    return gone, left_alone
                outcomes = space.delete([_page_name(keys[i], at) for i in left], force=True)
                if "UNAVAILABLE" in outcomes:
                    self._leave_alone(space.message or "no answer to a deletion")
                    return gone, self._trouble
                left = [i for i, outcome in zip(left, outcomes) if outcome == "HIT"]
                for i in left:
                    gone[i] = True
                if not left:
                    break
        return gone, ""

    # Names.

    def _by_space(self, keys: Sequence[str]) -> list[tuple[Space, list[int]]]:
        """The keys' numbers, by the space that they belong to."""
        found: dict[str, list[int]] = {}
        for number, key in enumerate(keys):
            found.setdefault(key.partition(_SEPARATOR)[0], []).append(number)
        return [(self._space(model), numbers) for model, numbers in found.items()]

    def _space(self, model: str) -> Space:
        with self._lock:
            space = self._spaces.get(model)
        if space is None:
            digest = hashlib.sha256(f"{model}@{self._recipe}@{self._dtype}".encode()).hexdigest()
            short = re.sub(r"[^A-Za-z0-9._-]", "-", model)[-40:]
            spec = KvSpec(
                model=model,
                layers=1,
                kv_heads=8,
                head_dim=64,
                head_dim_v=0,
                dtype=self._dtype,
                page_tokens=_ROWS,
                rope=Rope(layout="none"),
                engine="lmcache:1",
            )
            name = f"{self._prefix}/{short}/{digest[:16]}"
            space = self._client.open_space(
                name, spec, recipe=self._recipe, fidelity=self._fidelity
            )
            with self._lock:
                space = self._spaces.setdefault(model, space)
        return space

    def _pages(self, key: str, value: memoryview) -> list[tuple[int, bytes, memoryview]]:
        """A value's pages: number, name, and their parts of its memory."""
        # LMCache's views may have a format that memoryview cannot cast, such as "<B".
        data = np.frombuffer(value, np.uint8).data if value.nbytes else value
        step = _ROWS * _ROW * 2
        count, kind = max(1, -(-len(data) // step)), _kind(key)
        with self._lock:
            self._counts[kind] = min(count, self._counts.get(kind, count))
        return [
            (at, _page_name(key, at), data[at * step : (at + 1) * step]) for at in range(count)
        ]


def _check_sizes(keys: Sequence[str], values: Sequence[memoryview]) -> None:
    if len(keys) != len(values):
        raise ValueError(f"values: length mismatch, {len(values)} for {len(keys)} keys")


def _kind(key: str) -> str:
    """The first fields of a key: model, rank and group."""
    return _SEPARATOR.join(key.split(_SEPARATOR)[:3])


def _whole(values: Sequence[Sequence[bytes]], pages: int) -> int:
    """How many of the leading values the leading pages are."""
    ends = itertools.accumulate(len(names) for names in values)
    return sum(end <= pages for end in ends)


def _page_name(key: str, page: int) -> bytes:
    return hashlib.sha256(f"{page}@{key}".encode()).digest()


def _padded(part: memoryview) -> memoryview:
    """Whole rows: the part itself, or memory of its own with a copy of the part."""
    row = _ROW * 2
    if len(part) % row == 0 and len(part) > 0:
        return part
    room = memoryview(bytearray(max(1, -(-len(part) // row)) * row))
    room[: len(part)] = part
    return room
