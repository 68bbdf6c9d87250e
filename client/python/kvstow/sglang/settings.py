"""What `--hicache-storage-backend-extra-config` says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

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

    address: HOST:PORT or unix:PATH of the server.
    recipe, fidelity: of the spaces that it makes for K and V; "" = the server's default, or `mla8`
        for MLA. Pools that kvstow does not know are kept exactly, as `lossless`.
    space: the first part of the names of its spaces.
    revision: of the weights; "" = the commit of the model, or a digest of the files.
    timeout: seconds that a load or a save may take.
    lookup_timeout: seconds to learn what the server holds.
    buffer_bytes: of shared memory for loads, and as much for saves.
    """

    address: str = "127.0.0.1:7380"
    recipe: str = ""
    fidelity: Fidelity = ""
    space: str = "sglang"
    revision: str = ""
    timeout: float = 5.0
    lookup_timeout: float = 1.0
    buffer_bytes: int = 64 << 20

    @staticmethod
    def of(options: Mapping[str, Any]) -> Settings:
        """Raises ValueError that names an option which is unknown or out of range."""
        fields = {field.name: field for field in dataclasses.fields(Settings)}
        given = {name: value for name, value in options.items() if name not in _SGLANGS}
        for name, value in given.items():
            if name not in fields:
                raise ValueError(
                    f"hicache-storage-backend-extra-config: {name!r} is no option of "
                    f"KvstowStorage; it has {', '.join(sorted(fields))}"
                )
            wanted = type(fields[name].default)
            fits = (int, float) if wanted is float else wanted
            if isinstance(value, bool) or not isinstance(value, fits):
                raise ValueError(f"{name}: {value!r} must be of type {wanted.__name__}")
        settings = Settings(**given)
        for name in ("timeout", "lookup_timeout", "buffer_bytes"):
            if not getattr(settings, name) > 0:
                raise ValueError(f"{name}: {getattr(settings, name)!r} must be more than 0")
        if settings.fidelity not in ("", "exact", "dense"):
            raise ValueError(
                f"fidelity: {settings.fidelity!r} must be 'exact' or 'dense': SGLang's attention "
                "cannot mask the tokens that a sparse page leaves out"
            )
        if not 1 <= len(settings.space) <= 40:
            raise ValueError(f"space: {settings.space!r} must have 1 to 40 characters")
        return settings
