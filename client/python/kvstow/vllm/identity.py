"""The names and the KvSpec of a model's spaces: they say which pages fit an engine.

Scheduler and workers derive the same names, each on its own. The name of a space ends in a digest
of all that changes its bytes and in the rank that they belong to.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
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
    path = Path(config.model_config.model)
    if settings.revision or not path.exists() or weight_files(path):
        return ""
    return (
        f"{path} has no files of weights, so other weights could not be told from these; name a "
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


def _revision(model: Any) -> str:
    """The commit of a model of a hub, or a digest of samples of its files."""
    commit = getattr(model.hf_config, "_commit_hash", None)
    path = Path(model.model)
    found = weights_digest(path) if path.exists() else commit or model.revision
    return str(found or "unversioned")


def revision_of(name: str) -> str:
    """A digest of a local model's files, or the only commit that this host has of a hub's model.

    "": the host has several, or none, or the folder has no files of weights.
    """
    path = Path(name)
    if path.exists():
        return weights_digest(path)
    snapshots = Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "snapshots"
    commits = [found.name for found in snapshots.glob("*")]
    return commits[0] if len(commits) == 1 else ""
