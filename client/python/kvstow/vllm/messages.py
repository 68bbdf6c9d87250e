"""The messages of the scheduler to the workers, one a step."""

from __future__ import annotations

import dataclasses

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata


@dataclasses.dataclass(slots=True)
class LoadedPage:
    """A page and the blocks that it fills. None: the block holds these tokens already."""

    key: bytes
    blocks: list[int | None]


@dataclasses.dataclass(slots=True)
class Load:
    """The pages of one request that wait for the server. `leases` has one for each rank."""

    request_id: str
    pages: list[LoadedPage]
    leases: list[int]

    def block_ids(self) -> set[int]:
        return {block for page in self.pages for block in page.blocks if block is not None}


@dataclasses.dataclass(slots=True)
class SavedPage:
    """A page whose blocks are complete after this step.

    absent: the server has just said that it lacks the page.
    """

    key: bytes
    blocks: list[int]
    first_position: int
    absent: bool


@dataclasses.dataclass(slots=True)
class StepMetadata(KVConnectorMetadata):
    loads: list[Load] = dataclasses.field(default_factory=list)
    saves: list[SavedPage] = dataclasses.field(default_factory=list)
