"""The settings in `--hicache-storage-backend-extra-config`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kvstow.settings import read_settings
from kvstow.types import Fidelity

EXACT_RECIPES = ("raw", "lossless")
_SGLANGS = (
    "backend_name",
    "module_path",
    "class_name",
    "interface_v1",
    "allocator",
    "tp_lcm_size",
    "prefetch_threshold",
    "prefetch_timeout_base",
    "prefetch_timeout_per_ki_token",
    "hicache_storage_pass_prefix_keys",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of the backend. `Settings.of` reads and checks them.

    address: HOST:PORT or unix:PATH of the server, or several with commas, as kvstow.Client takes.
    recipe, fidelity: of the spaces that it makes for K and V; "" = the server's default, or `mla8`
        for MLA. Pools that kvstow does not know are kept exactly, as `lossless`.
    space: the first part of the names of its spaces.
    revision: of the weights; "" = the commit of the model, or a digest of the files.
    timeout: seconds that a load or a save may take.
    lookup_timeout: seconds to learn what the server holds.
    buffer_bytes: of shared memory for loads, and as much for saves.
    statistics: a file that `kvstow-calibrate --statistics` wrote for the model; "" = none. A server
        whose recipe is `auto` gets it, once a space, and then finds smaller cold forms.
    """

    address: str = "127.0.0.1:7380"
    recipe: str = ""
    fidelity: Fidelity = ""
    space: str = "sglang"
    revision: str = ""
    timeout: float = 5.0
    lookup_timeout: float = 1.0
    buffer_bytes: int = 64 << 20
    statistics: str = ""

    @staticmethod
    def of(options: Mapping[str, Any]) -> Settings:
        """Raises ValueError that names an option which is unknown or out of range."""
        return read_settings(
            Settings,
            {name: value for name, value in options.items() if name not in _SGLANGS},
            where="hicache-storage-backend-extra-config",
            adapter="KvstowStorage",
            engine="SGLang",
            positive=("timeout", "lookup_timeout", "buffer_bytes"),
        )
