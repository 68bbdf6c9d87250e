"""The pages of one host pool, in one space of a server.

Calls come on SGLang's threads, wait no longer than the settings allow, and never raise for what the
server does. A server that does not answer is left alone for some seconds.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvstow.client import Client, Space
from kvstow.quiet import Quiet
from kvstow.sglang.pools import Addresses, Bytes, PageFormat, memory
from kvstow.sglang.settings import Settings
from kvstow.types import KvSpec, Page

_log = logging.getLogger(__name__)
_ALIGNMENT = 4096  # of pages in shared memory
_DIGEST = re.compile(r"[0-9a-f]{64}")


def page_key(key: str) -> bytes:
    """SGLang's key of a page: its hash as it is. Any other text is digested."""
    if _DIGEST.fullmatch(key):
        return bytes.fromhex(key)
    return hashlib.sha256(b"text:" + key.encode()).digest()


class Link:
    """The connections to the server: one for pages, one for questions, which wait less."""

    def __init__(self, settings: Settings) -> None:
        self.pages = Client(
            settings.address,
            timeout=settings.timeout,
            attempts=1,
            shared_bytes=2 * settings.buffer_bytes + (1 << 20),
        )
        self.questions = Client(
            settings.address,
            timeout=settings.lookup_timeout,
            attempts=1,
            shared_bytes=0,
            direct_connections=0,
        )
        self.counts: Counter[str] = Counter()
        self._quiet = Quiet()

    @property
    def quiet(self) -> bool:
        """Whether to leave the server alone."""
        return self.pages.closed or bool(self._quiet)

    def failed(self, message: str) -> None:
        """The server did not answer."""
        self.counts["unavailable"] += 1
        if not self.quiet:
            _log.warning("kvstow: no answer; a miss for %g s: %s", Quiet.seconds, message)
        self._quiet.begin()

    def close(self) -> None:
        self.pages.close()
        self.questions.close()


class Staging:
    """Memory for pages on their way, which a server on this host reads and writes in place."""

    def __init__(self, link: Link, size: int) -> None:
        self.lock = threading.Lock()  # whoever uses the slots holds it
        self._link = link
        self._size = size
        self._bytes: Bytes | None = None

    def slots(self, page_bytes: int) -> Bytes:
        """`[slots, page_bytes]`, at least one slot."""
        step = -(-page_bytes // _ALIGNMENT) * _ALIGNMENT
        if self._bytes is None or len(self._bytes) < step:
            self._bytes = self._link.pages.buffer(max(self._size, step))
        count = len(self._bytes) // step
        return self._bytes[: count * step].reshape(count, step)[:, :page_bytes]


class PoolStore:
    """Loads and saves pages of a pool. Thread-safe."""

    def __init__(
        self,
        link: Link,
        name: str,
        spec: KvSpec,
        pages: PageFormat,
        recipe: str,
        fidelity: Any,
        normed_keys: bool,
        loads: Staging,
        saves: Staging,
        statistics: Callable[[Space], str],
    ) -> None:
        """Raises ValueError that names a wrong recipe, SpaceMismatch for another model's space.

        statistics: sends what the server wants to know of the model; returns why it could not.
        """
        self.pages = pages
        self._link = link
        self._loads = loads
        self._saves = saves
        self._statistics = statistics
        self._name, self._spec = name, spec
        self._options = {"recipe": recipe, "fidelity": fidelity, "normed_keys": normed_keys}
        self._space, self._index = self._open()
        self._forgotten = False  # the space is to be dropped, and the server has not done it
        self._dropping = threading.Lock()

    def _open(self) -> tuple[Space, Space]:
        """The space by both connections. Asks a server that is there; else they open later."""
        clients = self._link.pages, self._link.questions
        pages, index = (c.open_space(self._name, self._spec, **self._options) for c in clients)
        return pages, index

    @property
    def _usable(self) -> bool:
        """Whether to ask the server. Pages that were to be forgotten go first."""
        if self._forgotten:
            with self._dropping:
                if not self._link.quiet:
                    self._drop()
        return not self._link.quiet and not self._forgotten

    def leading(self, keys: Sequence[bytes]) -> int:
        """How many of the leading keys are stored."""
        if not keys or not self._usable:
            return 0
        hit = self._index.lookup(keys, lease=False)
        if hit.message:
            self._link.failed(hit.message)
        return hit.pages

    def present(self, keys: Sequence[bytes], deadline: float) -> list[bool]:
        """Asks which keys are stored. A key that is not known by the deadline counts as absent."""
        there = [False] * len(keys)
        at = 0
        while at < len(keys) and time.monotonic() < deadline and not self._link.quiet:
            found = self.leading(keys[at:])  # ends at the first that is absent
            there[at : at + found] = [True] * found
            at += found + 1
        return there

    def load(self, keys: Sequence[bytes], addresses: Addresses, deadline: float) -> list[bool]:
        """Fills SGLang's memory with pages. Memory of a page that is missed may be overwritten.

        Asks for no page after the deadline.
        """
        good: list[bool] = []
        with self._loads.lock:
            slots = None if self.pages.whole else self._loads.slots(self.pages.page_bytes)
            step = len(keys) if slots is None else len(slots)
            for first in range(0, len(keys), max(1, step)):
                if not self._usable or time.monotonic() >= deadline:
                    break
                some = addresses[first : first + step]
                rooms = self._rooms(slots, some)
                results = self._space.get(keys[first : first + step], rooms)
                for result, room, places in zip(results, rooms, some):
                    whole = result.tokens == self.pages.page_tokens and result.keep_bytes is None
                    good.append(result.hit and whole)
                    if good[-1] and slots is not None:
                        self.pages.scatter(places, room)
                self._note([(result.outcome, result.message) for result in results])
                if not all(good):
                    break  # SGLang takes leading pages only
        good += [False] * (len(keys) - len(good))
        self._link.counts["loaded"] += sum(good)
        self._link.counts["missed"] += len(good) - sum(good)
        return good

    def save(self, keys: Sequence[bytes], addresses: Addresses, deadline: float) -> list[bool]:
        """Stores pages that are not there yet. True: the server has one of that key.

        Sends no page after the deadline.
        """
        stored = self.leading(keys)
        good = [True] * stored
        with self._saves.lock:
            slots = None if self.pages.whole else self._saves.slots(self.pages.page_bytes)
            step = len(keys) if slots is None else len(slots)
            for first in range(stored, len(keys), max(1, step)):
                if not self._usable or time.monotonic() >= deadline:
                    break
                some = addresses[first : first + step]
                rooms = self._rooms(slots, some)
                if slots is not None:
                    for room, places in zip(rooms, some):
                        self.pages.gather(places, room)
                pages = [Page(key, room) for key, room in zip(keys[first : first + step], rooms)]
                results = self._space.put(pages)
                # A conflict: the page of this key that another engine computed, to other last bits.
                good += [r.stored or r.outcome == "CONFLICT" for r in results]
                self._note([(result.outcome, result.message) for result in results])
        good += [False] * (len(keys) - len(good))
        self._link.counts["saved"] += sum(good) - stored
        self._link.counts["not_saved"] += len(good) - sum(good)
        self._tell_statistics()
        return good

    def _tell_statistics(self) -> None:
        why = "" if self._link.quiet else self._statistics(self._space)
        if why and self._space.wants_statistics:
            self._link.failed(why)  # a later save tries again
        elif why:
            _log.warning("kvstow: %s", why)

    def forget(self) -> str:
        """Drops the space, for everyone, and begins a new one. Why the server has not done it yet.

        Until it has, all is a miss, and each call tries again.
        """
        self._forgotten = True
        with self._dropping:
            return self._drop()

    def _drop(self) -> str:
        """For whoever holds the lock."""
        if not self._forgotten:
            return ""
        code, message, _ = self._link.questions._native.drop_space(self._name)
        if code not in ("OK", "NOT_FOUND"):
            self._link.failed(message)
            return f"{code}: {message}"
        self._forgotten = False
        self._space, self._index = self._open()
        return ""

    def _rooms(self, slots: Bytes | None, addresses: Addresses) -> list[Bytes]:
        """Where the pages are for the client: SGLang's own memory, or slots."""
        if slots is None:
            return [memory(int(places[0]), self.pages.page_bytes) for places in addresses]
        rooms = list(slots[: len(addresses)])
        for room in rooms:
            room[self.pages.data_bytes :] = 0
        return rooms

    def _note(self, outcomes: Sequence[tuple[str, str]]) -> None:
        for outcome, message in outcomes:
            if outcome == "UNAVAILABLE":
                self._link.failed(message)
                return
            if outcome in ("CORRUPT", "REFUSED", "NOT_COMPATIBLE"):
                self._link.counts[outcome.lower()] += 1
                _log.warning("kvstow: a page is %s: %s", outcome, message)
