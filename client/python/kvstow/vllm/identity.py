"""The names and the KvSpec of a model's spaces: they say which pages fit an engine.

Scheduler and workers derive the same names, each on its own. The name of a space ends in a digest
of all that changes its bytes and in the rank that they belong to.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from huggingface_hub.constants import HF_HUB_CACHE
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVQuantMode

from kvstow.models import (
    Ropes,
    config_digest,
    digest_of,
    rope_of,
    rope_version,
    ropes_of,
    short_contexts,
    weight_files,
    weights_digest,
)
from kvstow.types import KvSpec, Rope
from kvstow.vllm.settings import Settings

_ENGINE = "vllm:1"  # how the connector cuts and keys pages; a change makes new spaces
_TOKENS_OF_PAGE = 64
_MAX_TOKENS_OF_PAGE = 4096
_DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}


def unsupported(config: VllmConfig, cache: KVCacheConfig) -> str:
    """Why the connector cannot keep this engine's cache; "" where it can."""
    groups = cache.kv_cache_groups
    if len(groups) != 1:
        return f"the model has {len(groups)} KV cache groups; only one is supported"
    spec = groups[0].kv_cache_spec
    if type(spec) is not FullAttentionSpec:
        return f"the KV cache is of kind {type(spec).__name__}; only FullAttentionSpec is supported"
    if spec.kv_quant_mode != KVQuantMode.NONE or spec.dtype not in _DTYPES:
        return (
            f"the KV cache dtype {config.cache_config.cache_dtype} ({spec.dtype}) is quantised; "
            "use --kv-cache-dtype auto and a recipe of the server"
        )
    if spec.head_size_v != spec.head_size or spec.tokens_per_state != 1:
        return "K and V differ in width, or a state covers more or less than one token"
    parallel = config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) != 1:
            return f"{name} is {getattr(parallel, name)}; only 1 is supported"
    return ""


def unversioned(settings: Settings, config: VllmConfig) -> str:
    """Why other weights could not be told from this engine's; "" where they can."""
    model = config.model_config
    path = Path(model.model)
    if settings.revision:
        return ""
    if path.exists():
        known, lacks = bool(weight_files(path)), "no files of weights"
    else:
        known, lacks = bool(_revision(model)), "no commit that this host knows"
    if known:
        return ""
    return (
        f"{model.model} has {lacks}, so other weights could not be told from these; name a "
        "'revision' in kv_connector_extra_config"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """The pages of one engine: how they are cut, and the spaces that hold them."""

    block_tokens: int
    page_blocks: int
    model: str
    revision: str
    prefix: str  # of the names of all ranks
    world_size: int

    @property
    def page_tokens(self) -> int:
        return self.block_tokens * self.page_blocks

    def space(self, rank: int) -> str:
        """The name of a rank's space."""
        return f"{self.prefix}/{rank}of{self.world_size}"

    @staticmethod
    def of(settings: Settings, config: VllmConfig, cache: KVCacheConfig) -> Identity:
        """Raises ValueError where a page would be too large."""
        block_tokens = cache.kv_cache_groups[0].kv_cache_spec.block_size
        blocks = settings.page_blocks or max(1, _TOKENS_OF_PAGE // block_tokens)
        if blocks * block_tokens > _MAX_TOKENS_OF_PAGE:
            raise ValueError(
                f"page_blocks: {blocks} blocks of {block_tokens} tokens are more than "
                f"{_MAX_TOKENS_OF_PAGE} tokens; choose fewer"
            )
        model = config.model_config
        local = Path(model.model)
        name = local.resolve().name if local.exists() else model.model
        configured = config_digest(model.hf_config.to_dict())
        revision = settings.revision or _revision(model)
        world = config.parallel_config.world_size
        parts: dict[str, object] = {
            "engine": _ENGINE,
            "model": name,
            "revision": revision,
            "config": configured,
            "recipe": settings.recipe,
            "fidelity": settings.fidelity,
            "page_tokens": blocks * block_tokens,
            "quantization": str(model.quantization or ""),
            "dtype": str(model.dtype),
            "cache_dtype": config.cache_config.cache_dtype,
            "tensor_parallel": config.parallel_config.tensor_parallel_size,
            "pipeline_parallel": config.parallel_config.pipeline_parallel_size,
            "draft": str(getattr(config.speculative_config, "model", None) or ""),
            **rope_version(model.hf_text_config),
            **_long_rope(model),
        }
        short = re.sub(r"[^A-Za-z0-9._-]", "-", name)[-40:]
        prefix = f"{settings.space}/{short}/{digest_of(parts)[:16]}"
        revision = f"{revision}+{configured[:16]}"
        return Identity(block_tokens, blocks, name, revision, prefix, world)

    def kv_spec(self, config: VllmConfig, cache: KVCacheConfig, rank: int) -> KvSpec:
        """The spec of this rank's pages."""
        group = cache.kv_cache_groups[0]
        spec = cast(FullAttentionSpec, group.kv_cache_spec)
        hf = config.model_config.hf_text_config
        result = KvSpec(
            model=self.model,
            revision=self.revision,
            layers=len(group.layer_names),
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_size,
            dtype=cast(Any, _DTYPES[spec.dtype]),
            page_tokens=self.page_tokens,
            rope=Rope(layout="none"),
            rank=rank,
            world_size=self.world_size,
            engine=_ENGINE,
            weight_quantization=str(config.model_config.quantization or ""),
            sliding_window=spec.sliding_window or 0,
        )
        result.native()
        try:
            ropes = _ropes(hf, spec.head_size, group.layer_names)
            turned = dataclasses.replace(result, **ropes.as_codecs_read().fields())
            turned.native()
        except ValueError:
            return result
        return turned


def _ropes(hf: Any, head_dim: int, names: Sequence[str]) -> Ropes:
    """The rotations of the layers that these modules have."""
    found = [re.search(r"\.layers\.(\d+)\.", name) for name in names]
    if None in found:
        return Ropes(rope_of(hf, head_dim), None, ())
    return ropes_of(hf, head_dim, [int(match[1]) for match in found if match])


def _long_rope(model: Any) -> dict[str, object]:
    """Whether vLLM turns K of LongRoPE as for long contexts, which --max-model-len decides.

    {} for other models, so that their spaces keep their names.
    """
    contexts = short_contexts(model.hf_text_config)
    if not contexts:
        return {}
    if getattr(model, "original_max_model_len", None) == -1:
        return {"long_rope": "as the config says"}  # vLLM fits the length after it made its RoPE
    return {"long_rope": [model.max_model_len > context for context in contexts]}


def _revision(model: Any) -> str:
    """The commit of a model of a hub, or a digest of samples of its files. "": it has neither."""
    if Path(model.model).exists():
        return weights_digest(Path(model.model))
    commit = getattr(model.hf_config, "_commit_hash", None)
    return str(commit or model.revision or revision_of(model.model))


def revision_of(name: str) -> str:
    """A digest of a local model's files, or the only commit that this host has of a hub's model.

    "": the host has several, or none, or the folder has no files of weights.
    """
    path = Path(name)
    if path.exists():
        return weights_digest(path)
    commits = [snapshot.name for snapshot in _snapshots(name)]
    return commits[0] if len(commits) == 1 else ""


def has_long_rope(name: str) -> bool:
    """Whether a config that this host has of a model, by path or by name of a hub, has LongRoPE."""
    folders = [Path(name)] if Path(name).exists() else _snapshots(name)
    for file in (folder / "config.json" for folder in folders):
        try:
            config = json.loads(file.read_text())
        except (OSError, ValueError):
            continue
        parts = [config, config.get("text_config")] if isinstance(config, dict) else []
        if any(short_contexts(SimpleNamespace(**part)) for part in parts if isinstance(part, dict)):
            return True
    return False


def _snapshots(name: str) -> list[Path]:
    """The folders of a hub's model on this host."""
    folder = Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "snapshots"
    return list(folder.glob("*"))
