"""The names and the KvSpec of the spaces of an engine's pools: they say which pages fit it.

The name of a space ends in a digest of all that changes its bytes, and in the rank that they belong
to. Pages of K and V are the same for all layouts of the host pool, so the layout is no part of it.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvstow.models import (
    config_digest,
    digest_of,
    rope_of,
    rope_version,
    short_contexts,
    weights_digest,
)
from kvstow.sglang.pools import PageFormat
from kvstow.sglang.settings import Settings
from kvstow.types import KvSpec, Rope

_ENGINE = "sglang:1"  # how the backend cuts and keys pages; a change makes new spaces
_OF_MODEL = (
    "model_path",
    "revision",
    "quantization",
    "dtype",
    "kv_cache_dtype",
    "json_model_override_args",
)
_OF_DRAFT = ("speculative_draft_model_path", "speculative_draft_model_revision")
# Types whose rotation their config tells in full: all channels, and of all layers alike.
_ROTATIONS = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """The model that an engine runs, as far as SGLang tells.

    revision: "" where other weights could not be told from these.
    facts: what else changes its pages. config: of the hub, where its file is found.
    """

    name: str
    revision: str
    facts: dict[str, str]
    config: dict[str, Any]

    @property
    def hf(self) -> SimpleNamespace:
        """The config as kvstow.models reads it."""
        return SimpleNamespace(**self.config)

    @staticmethod
    def of(settings: Settings, storage_config: Any) -> Model:
        """Raises ValueError where SGLang does not say which model it runs, and for LongRoPE."""
        facts = _published()
        path = facts.pop("model_path", "") or str(storage_config.model_name or "")
        if not path:
            raise ValueError(
                "model_name: SGLang does not say which model it runs, so that pages of other "
                "models could be taken for its own; start it with --served-model-name"
            )
        asked = facts.pop("revision", "")
        folder = _folder(path, asked)
        found = folder.name if folder is not None and folder.parent.name == "snapshots" else ""
        if folder is not None and not found:
            found = weights_digest(folder)
        config = _config(folder)
        if _has_long_rope(config, facts.get("json_model_override_args", "")):
            raise ValueError(
                f"{path} has LongRoPE, whose K depends on the other prompts that SGLang computes "
                "at the same time, so that no page of it can be kept; start without this backend"
            )
        local = Path(path)
        known = not local.exists() and "://" not in path  # by a name, of a hub
        return Model(
            name=local.resolve().name if local.exists() else path,
            revision=settings.revision or found or (asked if known else ""),
            facts=facts,
            config=config,
        )


def space_of(
    settings: Settings,
    model: Model,
    storage_config: Any,
    pool_name: str,
    pool: Any,
    pages: PageFormat,
    recipe: str,
) -> tuple[str, KvSpec]:
    """The name and the spec of the space of a pool's pages."""
    config = storage_config
    tp_rank, tp_size = config.tp_rank, config.tp_size
    if config.is_mla_model and not _sharded(pool_name, pool):
        tp_rank, tp_size = 0, 1  # every rank has the same pages, and one of them writes
    rank = (config.pp_rank * config.attn_cp_size + config.attn_cp_rank) * tp_size + tp_rank
    size = config.pp_size * config.attn_cp_size * tp_size
    rope = _rope(model, pages)
    parts = {
        "engine": _ENGINE,
        "model": model.name,
        "revision": model.revision,
        "config": config_digest(model.config),
        "facts": model.facts,
        "format": getattr(pool, "storage_format_tag", None),
        "recipe": recipe,
        "fidelity": settings.fidelity,
        "pool": pool_name,
        "pages": [
            pages.layers,
            pages.kv_heads,
            pages.head_dim,
            pages.head_dim_v,
            pages.dtype,
            pages.page_tokens,
            pages.layout,
        ],
        "tokens": pool.page_size,
        "layers": [getattr(pool, "start_layer", 0), getattr(pool, "target_layer_num", 0)],
        "parallel": [config.pp_size, config.attn_cp_size, tp_size],
        **(rope_version(model.hf) if rope.layout != "none" else {}),
    }
    short = re.sub(r"[^A-Za-z0-9._-]", "-", model.name)[-40:]
    name = f"{settings.space}/{short}/{digest_of(parts)[:16]}/{pool_name}/{rank}of{size}"
    spec = KvSpec(
        model=model.name,
        revision=f"{model.revision}+{digest_of(parts)[:16]}",
        layers=pages.layers,
        kv_heads=pages.kv_heads,
        head_dim=pages.head_dim,
        head_dim_v=pages.head_dim_v,
        dtype=pages.dtype,
        page_tokens=pages.page_tokens,
        rope=rope,
        rank=rank,
        world_size=size,
        engine=_ENGINE,
        weight_quantization=model.facts.get("quantization", ""),
    )
    return name, spec


def _published() -> dict[str, str]:
    """The weights as SGLang's own configuration names them; {} in a process that has none."""
    try:
        from sglang.srt.runtime_context import get_model, get_spec

        bags = ((get_model(), _OF_MODEL), (get_spec(), _OF_DRAFT))
    except (ImportError, ValueError):
        return {}
    found = {name: getattr(bag, name, None) for bag, names in bags for name in names}
    return {name: str(value) for name, value in found.items() if value}


def _folder(path: str, revision: str) -> Path | None:
    """The folder of a model's files: a path of this machine, or a snapshot of a hub's model."""
    if Path(path).exists():
        return Path(path)
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(path, "config.json", revision=revision or None)
    except Exception:  # names that are none of the hub
        return None
    return Path(found).parent if isinstance(found, str) else None


def _config(folder: Path | None) -> dict[str, Any]:
    try:
        found = json.loads((folder / "config.json").read_text()) if folder is not None else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _has_long_rope(config: dict[str, Any], overrides: str) -> bool:
    """Whether a config has LongRoPE, with what --json-model-override-args changes."""
    try:
        changes = json.loads(overrides or "{}")
    except ValueError:
        changes = {}
    changed = config | (changes if isinstance(changes, dict) else {})
    parts = [part for part in (changed, changed.get("text_config")) if isinstance(part, dict)]
    return any(short_contexts(SimpleNamespace(**part)) for part in parts)


def _rope(model: Model, pages: PageFormat) -> Rope:
    if not pages.known or not pages.head_dim_v or model.config.get("model_type") not in _ROTATIONS:
        return Rope(layout="none")
    return rope_of(model.hf, pages.head_dim)


def _sharded(pool_name: str, pool: Any) -> bool:
    """Whether each tensor-parallel rank of an MLA model has pages of its own in this pool."""
    kinds = [kind.__name__ for kind in type(pool).__mro__]
    return pool_name == "mamba" or "MHATokenToKVPoolHost" in kinds
