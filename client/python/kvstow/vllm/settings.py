"""The settings in `kv_connector_extra_config`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from kvstow.settings import read_settings
from kvstow.types import Fidelity

Mode: TypeAlias = Literal["read_write", "read_only", "save_only"]
_MODES = ("read_write", "read_only", "save_only")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of the connector. `Settings.of` reads and checks them.

    address: HOST:PORT or unix:PATH of the server, or several with commas, as kvstow.Client takes.
    recipe, fidelity: of the space that the connector makes; "" = the server's default.
    space: the first part of the names of its spaces.
    revision: of the weights; "" = the commit of the model, or a digest of the files.
    page_blocks: blocks of vLLM in one page; 0 = as many as make 64 tokens, at least one.
    timeout: seconds that a load or a save may take.
    lookup_timeout: seconds that a request waits to learn what the server holds.
    max_pending_bytes: of pages that wait to be saved; beyond it pages are dropped and counted.
    max_loading_bytes: of pages on their way from the server to the blocks.
    statistics: a file that `kvstow-calibrate --statistics` wrote for the model; "" = none. A server
        whose recipe is `auto` gets it, once a space, and then finds smaller cold forms.
    mode: "read_write", "read_only" or "save_only".
    """

    address: str = "127.0.0.1:7380"
    recipe: str = ""
    fidelity: Fidelity = ""
    space: str = "vllm"
    revision: str = ""
    page_blocks: int = 0
    timeout: float = 10.0
    lookup_timeout: float = 1.0
    max_pending_bytes: int = 256 << 20
    max_loading_bytes: int = 256 << 20
    statistics: str = ""
    mode: Mode = "read_write"

    @staticmethod
    def of(options: Mapping[str, Any]) -> Settings:
        """Raises ValueError that names an option which is unknown or out of range."""
        settings = read_settings(
            Settings,
            options,
            where="kv_connector_extra_config",
            adapter="KvstowConnector",
            engine="vLLM",
            positive=("timeout", "lookup_timeout", "max_pending_bytes", "max_loading_bytes"),
        )
        if settings.page_blocks < 0:
            raise ValueError(f"page_blocks: {settings.page_blocks} is less than 0")
        if settings.mode not in _MODES:
            raise ValueError(f"mode: {settings.mode!r} must be one of {', '.join(_MODES)}")
        return settings

    def with_role(self, reads: bool, saves: bool) -> Settings:
        """The settings where `kv_role` allows only some of the work."""
        mode: Mode = self.mode
        if not saves and mode != "save_only":
            mode = "read_only"
        if not reads and mode != "read_only":
            mode = "save_only"
        return dataclasses.replace(self, mode=mode)

    @property
    def reads(self) -> bool:
        return self.mode != "save_only"

    @property
    def saves(self) -> bool:
        return self.mode != "read_only"
