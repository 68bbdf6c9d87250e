"""Which pages fit which engine: the names and the KvSpec of a model's spaces.

Scheduler and workers derive the same names, each on its own. The name of a space ends in a digest
of all that changes its bytes and in the rank that they belong to.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, Literal, cast

import torch
from huggingface_hub.constants import HF_HUB_CACHE
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVQuantMode

from kvstow.types import KvSpec, Rope
from kvstow.vllm.settings import Settings

_ENGINE = "vllm:1"  # how the connector cuts and keys pages; a change makes new spaces
_TOKENS_OF_PAGE = 64
_MAX_TOKENS_OF_PAGE = 4096
_DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_SAMPLES = 64
_SAMPLE_BYTES = 4096
_NOT_IDENTITY = ("transformers_version", "_name_or_path", "_model_name_or_path", "_commit_hash")
_INTERLEAVED = ("chatglm", "codegen", "cohere", "cohere2", "glm", "glm4", "gptj")
_SCALINGS = {"default": "none", "linear": "linear", "yarn": "yarn", "llama3": "llama3"}


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
        configured = _config_digest(model.hf_config)
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
        }
        short = re.sub(r"[^A-Za-z0-9._-]", "-", name)[-40:]
        prefix = f"{settings.space}/{short}/{_digest(parts)[:16]}"
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
            rope=rope_of(hf, spec.head_size),
            rank=rank,
            world_size=self.world_size,
            engine=_ENGINE,
            weight_quantization=str(config.model_config.quantization or ""),
            sliding_window=spec.sliding_window or 0,
        )
        try:
            result.native()
        except ValueError:
            result = dataclasses.replace(result, rope=Rope(layout="none"))
            result.native()
        return result


def rope_of(hf: Any, head_dim: int) -> Rope:
    """The rotation that a model's config describes.

    A rotation that kvstow does not know is Rope(layout="none"): recipes that undo rotations refuse
    it then. The digest of the config tells such models apart.
    """
    found = getattr(hf, "rope_parameters", None) or getattr(hf, "rope_scaling", None) or {}
    theta = found.get("rope_theta") or getattr(hf, "rope_theta", None)
    kind = found.get("rope_type") or found.get("type") or "default"
    if theta is None or kind not in _SCALINGS or "mrope_section" in found:
        return Rope(layout="none")
    layout: Literal["half", "interleaved"] = "half"
    if getattr(hf, "model_type", "") in _INTERLEAVED:
        layout = "interleaved"
    share = found.get("partial_rotary_factor") or getattr(hf, "partial_rotary_factor", None) or 1.0
    return Rope(
        layout=layout,
        theta=float(theta),
        scaling=cast(Any, _SCALINGS[kind]),
        rotary_dims=0 if share == 1.0 else int(head_dim * share),
        factor=float(found.get("factor") or 1.0),
        low_freq_factor=float(found.get("low_freq_factor") or 1.0),
        high_freq_factor=float(found.get("high_freq_factor") or 1.0),
        original_context=int(found.get("original_max_position_embeddings") or 0),
        attention_factor=float(found.get("attention_factor") or 0.0),
        mscale=float(found.get("mscale") or 0.0),
        mscale_all_dim=float(found.get("mscale_all_dim") or 0.0),
    )


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _config_digest(hf: Any) -> str:
    fields = {k: v for k, v in hf.to_dict().items() if k not in _NOT_IDENTITY}
    return _digest(fields)


def _revision(model: Any) -> str:
    """The commit of a model of a hub, or a digest of samples of its files."""
    commit = getattr(model.hf_config, "_commit_hash", None)
    local = Path(model.model).exists()
    found = revision_of(model.model) if local else commit or model.revision
    return str(found or "unversioned")


def revision_of(name: str) -> str:
    """A digest of a local model's files, or the only commit that this host has of a hub's model.

    "": the host has several, or none.
    """
    path = Path(name)
    if path.is_file():
        return _weights_digest([path])
    if path.is_dir():
        return _weights_digest([file for file in path.iterdir() if file.suffix in _WEIGHTS])
    snapshots = Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "snapshots"
    commits = [found.name for found in snapshots.glob("*")]
    return commits[0] if len(commits) == 1 else ""


def _weights_digest(files: list[Path]) -> str:
    """A digest of the sizes of files and of samples all over them."""
    digest = hashlib.sha256()
    for file in sorted(files):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size};".encode())
        with open(file, "rb") as data:
            for sample in range(_SAMPLES):
                data.seek((size * sample // _SAMPLES) & ~7, os.SEEK_SET)
                digest.update(data.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]
