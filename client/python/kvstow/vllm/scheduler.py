"""The scheduler's half: what the server holds of a prompt, and which pages to load and to save.

Nothing here waits. A thread asks the server; a request that is not answered in time is computed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from vllm.logger import init_logger

from kvstow.client import Client, Space
from kvstow.quiet import Quiet
from kvstow.vllm.identity import Identity
from kvstow.vllm.messages import Load, LoadedPage, SavedPage, StepMetadata
from kvstow.vllm.settings import Settings

_log = init_logger(__name__)
_SECONDS_OF_ANSWER = 5.0  # after which a request that still waits for blocks asks again
_MAX_KEY_BYTES = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """How many of the keys every rank's space has, and a lease in each space.

    trouble: why the server could not be asked; "" where it was.
    """

    pages: int
    leases: list[int]
    trouble: str = ""


class Index:
    """The server's index of all ranks' spaces, asked from threads."""

    def __init__(self, settings: Settings, names: Sequence[str]) -> None:
        self._client = Client(
            settings.address, timeout=settings.lookup_timeout, shared_bytes=0, direct_connections=0
        )
        self._names = list(names)
        self._spaces: dict[str, Space] = {}
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="kvstow_lookup")
        self._threads.submit(self._client.find_space, self._names[0])  # connects

    def ask(self, keys: Sequence[bytes]) -> Future[Answer]:
        return self._threads.submit(self._answer, keys)

    def release(self, leases: Sequence[int]) -> None:
        for lease in leases:
            if lease:
                self._threads.submit(self._release, lease)

    def close(self) -> None:
        self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _release(self, lease: int) -> None:
        if not self._client.closed:
            self._client.release(lease)

    def _answer(self, keys: Sequence[bytes]) -> Answer:
        try:
            return self._lookup(keys)
        except Exception as error:  # whoever asked waits for an answer
            return Answer(0, [], f"{type(error).__name__}: {error}")

    def _lookup(self, keys: Sequence[bytes]) -> Answer:
        pages = len(keys)
        leases: list[int] = []
        for name in self._names:
            space, trouble = self._spaces.get(name), ""
            if space is None:
                space, trouble = self._client._find_space(name)
            if space is None:
                return self._none(leases, trouble)
            hit = space.lookup(keys[:pages])
            leases.append(hit.lease)
            pages = min(pages, hit.pages)
            if hit.message:
                self._spaces.pop(name, None)
                return self._none(leases, hit.message)
            self._spaces[name] = space
            if not pages:
                break
        return Answer(pages, leases) if pages else self._none(leases)

    def _none(self, leases: Sequence[int], trouble: str = "") -> Answer:
        self.release(leases)
        return Answer(0, [], trouble)


@dataclasses.dataclass(slots=True)
class _Lookup:
    """The question for one request: the pages from `first` on."""

    first: int
    started: float
    future: Future[Answer]
    answer: Answer | None = None
    computed: int = 0  # local tokens when the answer was last used


@dataclasses.dataclass(slots=True)
class _Tracked:
    """A request that lives: `stored` pages are at the server, those after it are not."""

    request: Any
    stored: range = range(0)
    asked: bool = False
    done: int = 0  # pages that were given to the workers, or need not be


class SchedulerHalf:
    """The scheduler's half of the connector. One thread uses it, the engine core's."""

    def __init__(self, settings: Settings, identity: Identity, hash_tokens: int) -> None:
        if identity.page_tokens % hash_tokens:
            raise ValueError(
                f"page_blocks: a page of {identity.page_tokens} tokens has no whole number of "
                f"hashes of {hash_tokens} tokens"
            )
        self._settings = settings
        self._page_tokens = identity.page_tokens
        self._page_blocks = identity.page_blocks
        self._block_tokens = identity.block_tokens
        self._page_hashes = identity.page_tokens // hash_tokens
        self._index = Index(settings, [identity.space(r) for r in range(identity.world_size)])
        self._requests: dict[str, _Tracked] = {}
        self._lookups: dict[str, _Lookup] = {}
        self._failed: set[str] = set()
        self._loads: list[Load] = []
        self._loading: dict[str, Load] = {}
        self._quiet = Quiet()
        self._salt = b""

    def on_new_request(self, request: Any) -> None:
        self._requests[request.request_id] = _Tracked(request)

    # Lookup.

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """Tokens beyond the `computed` local ones that a load would bring; None: not known yet."""
        name = request.request_id
        # At least one token is computed: its logits are needed.
        last = min((request.num_tokens - 1) // self._page_tokens, self._known_pages(request))
        first = computed // self._page_tokens
        excluded = name in self._failed or request.skip_reading_prefix_cache
        if excluded or not self._settings.reads or first >= last:
            self._drop_lookup(name)
            return 0, False
        lookup = self._lookups.get(name)
        now = time.monotonic()
        if lookup is not None:
            outdated = lookup.answer is not None and now > lookup.started + _SECONDS_OF_ANSWER
            if outdated or lookup.first > first:
                self._drop_lookup(name)
                lookup = None
        if lookup is None:
            if self._quiet:
                return 0, False
            keys = self._keys(request, first, last)
            lookup = self._lookups[name] = _Lookup(first, now, self._index.ask(keys))
        if not self._answered(lookup, now):
            return None, False
        assert lookup.answer is not None
        lookup.computed = computed
        end = min(lookup.first + lookup.answer.pages, last)
        tokens = max(end * self._page_tokens - computed, 0)
        return tokens, tokens > 0

    def _answered(self, lookup: _Lookup, now: float) -> bool:
        if lookup.answer is not None:
            return True
        if lookup.future.done():
            lookup.answer = lookup.future.result()
        elif now > lookup.started + self._settings.lookup_timeout:
            lookup.answer = Answer(0, [], f"no answer in {self._settings.lookup_timeout} s")
            lookup.future.add_done_callback(self._release_late)
        else:
            return False
        if lookup.answer.trouble:
            self._quiet.begin()
            _log.warning(
                "kvstow: %s: %s; requests are computed for %.0f s",
                self._settings.address,
                lookup.answer.trouble,
                Quiet.seconds,
            )
        return True

    def _release_late(self, future: Future[Answer]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._index.release(future.result().leases)

    def _drop_lookup(self, name: str) -> None:
        lookup = self._lookups.pop(name, None)
        if lookup is None:
            return
        if lookup.answer is not None:
            self._index.release(lookup.answer.leases)
        else:
            lookup.future.add_done_callback(self._release_late)

    # Keys.

    def _known_pages(self, request: Any) -> int:
        """Pages whose tokens are all known."""
        return len(request.block_hashes) // self._page_hashes

    def _keys(self, request: Any, first: int, last: int) -> list[bytes]:
        """The keys of some pages: vLLM's hash of the last block of each."""
        hashes = request.block_hashes
        ends = [(page + 1) * self._page_hashes - 1 for page in range(first, last)]
        return [page_key(bytes(hashes[end]), self._salt) for end in ends]

    # Loads and saves.

    def allocated(self, request: Any, block_ids: Sequence[int], tokens: int) -> None:
        """The request has blocks; the pages of `tokens` external tokens are loaded into them."""
        name = request.request_id
        lookup = self._lookups.get(name)
        if lookup is None or lookup.answer is None:
            self._drop_lookup(name)
            return
        tracked = self._requests.setdefault(name, _Tracked(request))
        tracked.stored = range(lookup.first, lookup.first + lookup.answer.pages)
        tracked.asked = not lookup.answer.trouble
        if not tokens:
            self._drop_lookup(name)
            return
        del self._lookups[name]
        first = lookup.computed // self._page_tokens
        last = (lookup.computed + tokens) // self._page_tokens
        own = lookup.computed // self._block_tokens
        pages = []
        for page, key in zip(range(first, last), self._keys(request, first, last)):
            numbers = range(page * self._page_blocks, (page + 1) * self._page_blocks)
            blocks = [None if number < own else block_ids[number] for number in numbers]
            pages.append(LoadedPage(key, blocks))
        load = Load(name, pages, lookup.answer.leases)
        self._loads.append(load)
        self._loading[name] = load

    def build(self, output: Any) -> StepMetadata:
        """The work of the workers in this step."""
        metadata = StepMetadata(loads=self._loads)
        self._loads = []
        if self._settings.saves:
            for name, tokens in output.num_scheduled_tokens.items():
                tracked = self._requests.get(name)
                if tracked is not None:
                    self._add_saves(tracked, tokens, output.kv_connector_block_state, metadata)
        return metadata

    def _add_saves(self, tracked: _Tracked, tokens: int, state: Any, to: StepMetadata) -> None:
        request = tracked.request
        computed = (request.num_computed_tokens + tokens) // self._page_tokens
        complete = min(computed, self._known_pages(request))
        if complete <= tracked.done:
            return
        found = state.get_block_ids(request.request_id)
        if found is None:
            return
        first, tracked.done = tracked.done, complete
        keys = self._keys(request, first, complete)
        for page, key in zip(range(first, complete), keys):
            if page in tracked.stored:
                continue
            begin = page * self._page_blocks
            absent = tracked.asked and page >= tracked.stored.stop
            blocks = list(found[0][begin : begin + self._page_blocks])
            to.saves.append(SavedPage(key, blocks, page * self._page_tokens, absent))

    def update(self, output: Any) -> None:
        """The workers' news: loads that ended, and blocks that they could not fill."""
        invalid = output.invalid_block_ids or set()
        for name, load in self._loading.items():
            if invalid and name in self._requests and not invalid.isdisjoint(load.block_ids()):
                self._failed.add(name)
                self._requests[name].stored = range(0)
        for name in output.finished_recving or ():
            ended = self._loading.pop(name, None)
            if ended is not None:
                self._index.release(ended.leases)

    def finished(self, request: Any) -> None:
        name = request.request_id
        self._drop_lookup(name)
        self._requests.pop(name, None)
        self._failed.discard(name)

    def reset(self) -> None:
        """From now on no page that was stored before is found: its keys are others."""
        for name in list(self._lookups):
            self._drop_lookup(name)
        for tracked in self._requests.values():
            tracked.done = sys.maxsize  # what they computed may be of the time before
        self._salt = os.urandom(16)

    def close(self) -> None:
        self._index.close()


def page_key(block_hash: bytes, salt: bytes = b"") -> bytes:
    """The key of a page: its last block's hash. Long ones, and those of a salt, are digested."""
    if not salt and len(block_hash) <= _MAX_KEY_BYTES:
        return block_hash
    return hashlib.sha256(salt + block_hash).digest()
