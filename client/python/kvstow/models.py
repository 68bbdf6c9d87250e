"""Tells one model's pages from another's, for adapters: digests of a config and of weights.

Engines describe a model by the config of its hub and a folder of files. Nothing here imports one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from kvstow.types import Rope

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_SAMPLES = 64
_SAMPLE_BYTES = 4096
_NOT_IDENTITY = ("transformers_version", "_name_or_path", "_model_name_or_path", "_commit_hash")
_INTERLEAVED = ("chatglm", "codegen", "cohere", "cohere2", "glm", "glm4", "gptj")
# Types whose keys pass a norm. Other ones say so in their config.
_NORMED_KEYS = (
    "apertus",
    "exaone4",
    "exaone_moe",
    "flex_olmo",
    "gemma3",
    "gemma4",
    "hunyuan_v1",
    "lfm2",
    "minimax_m2",
    "olmo2",
    "olmo3",
    "olmoe",
    "qwen3",
)
_SCALINGS = {"default": "none", "linear": "linear", "yarn": "yarn", "llama3": "llama3"}

# The fields of Rope that no codec reads, with their defaults.
_UNREAD: Mapping[str, Any] = {
    name: getattr(Rope(), name)
    for name in (
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "short_factors",
        "long_factors",
        "mrope_sections",
    )
}


def digest_of(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def config_digest(config: Mapping[str, Any]) -> str:
    """A digest of all of a model's config that can change its pages."""
    return digest_of({k: v for k, v in config.items() if k not in _NOT_IDENTITY})


def weight_files(path: Path) -> list[Path]:
    """The files of weights: a file itself, or those of a folder. None: the weights are elsewhere."""
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.suffix in _WEIGHTS)
    return [path] if path.is_file() else []


def weights_digest(path: Path) -> str:
    """A digest of the sizes of files of weights, and of samples all over them. "": there are none."""
    files = weight_files(path)
    if not files:
        return ""
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size};".encode())
        with open(file, "rb") as data:
            for sample in range(_SAMPLES):
                data.seek((size * sample // _SAMPLES) & ~7, os.SEEK_SET)
                digest.update(data.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


@dataclasses.dataclass(frozen=True, slots=True)
class Ropes:
    """The rotations of layers, as KvSpec has them."""

    rope: Rope  # of most layers
    other_rope: Rope | None  # of the layers below; None: all layers have `rope`
    other_rope_layers: tuple[int, ...]

    @staticmethod
    def of(each: Sequence[Rope]) -> Ropes:
        """Of the rotation of each layer. Raises ValueError where layers have more than two."""
        kinds = Counter(each).most_common()
        usual = kinds[0][0]
        if len(kinds) > 2:
            raise ValueError(f"layers have {len(kinds)} kinds of RoPE; at most 2 are supported")
        others = tuple(layer for layer, rope in enumerate(each) if rope != usual)
        return Ropes(usual, kinds[1][0] if others else None, others)

    def as_codecs_read(self) -> Ropes:
        """The same with no more of the other RoPE than codecs read, as KvSpec takes it."""
        if self.other_rope is None:
            return self
        other = dataclasses.replace(self.other_rope, **_UNREAD)
        if other == dataclasses.replace(self.rope, **_UNREAD):
            return Ropes(self.rope, None, ())
        return dataclasses.replace(self, other_rope=other)

    def fields(self) -> dict[str, Any]:
        """Arguments of KvSpec."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def norms_keys(hf: Any) -> bool:
    """Whether a model's config says that its keys pass a norm (QK-norm)."""
    said = (getattr(hf, name, False) for name in ("use_qk_norm", "qk_layernorm"))
    return any(said) or str(getattr(hf, "model_type", "")).startswith(_NORMED_KEYS)


def is_auto(recipe: str) -> bool:
    """Whether a server fits the cold form by itself."""
    return re.match(r"\s*auto\s*($|[(,])", recipe) is not None


def ropes_of(hf: Any, head_dim: int, layers: Sequence[int]) -> Ropes:
    """The rotations that a model's config describes, of these layers of the model.

    Rotations that kvstow does not know are Rope(layout="none"): codecs then leave K as it is. The
    digest of the config tells such models apart.
    """
    kinds = getattr(hf, "layer_types", None) or []
    if not kinds or max(layers) >= len(kinds):
        return Ropes(rope_of(hf, head_dim), None, ())
    ropes = {kind: rope_of(hf, head_dim, kind) for kind in set(kinds)}
    return Ropes.of([ropes[kinds[layer]] for layer in layers])


def rope_version(hf: Any) -> dict[str, str]:
    """What names of spaces hold beside the config, where kvstow reads its RoPE otherwise than before.

    {} for all but YaRN, so that spaces of other models keep their names.
    """
    kinds = {"full_attention", *(getattr(hf, "layer_types", None) or [])}
    yarn = any(rope_of(hf, 64, kind).scaling == "yarn" for kind in kinds)
    return {"rope": "yarn:2"} if yarn else {}


def short_contexts(hf: Any) -> list[int]:
    """The contexts up to which LongRoPE turns K as for short ones; []: the model has no LongRoPE.

    One for each kind of layer that has it; 0: the config does not say. What an engine takes for
    long, a prompt or what it could take at most, changes K from the first token on.
    """
    kinds = sorted({"full_attention", *map(str, getattr(hf, "layer_types", None) or [])})
    name = "original_max_position_embeddings"
    found = [_parameters(hf, kind) for kind in kinds]
    return [
        int(parameters.get(name) or getattr(hf, name, None) or 0)
        for parameters in found
        if (parameters.get("rope_type") or parameters.get("type")) in ("longrope", "su")
    ]


def _parameters(hf: Any, kind: str) -> Mapping[str, Any]:
    """What a config says of RoPE in layers of a kind. Reads those of transformers 5 and 4."""
    found = getattr(hf, "rope_parameters", None) or getattr(hf, "rope_scaling", None) or {}
    if isinstance(found.get(kind), Mapping):
        return cast(Mapping[str, Any], found[kind])
    local = getattr(hf, "rope_local_base_freq", None)
    return {"rope_theta": local} if local and kind == "sliding_attention" else found


def rope_of(hf: Any, head_dim: int, kind: str = "full_attention") -> Rope:
    """The rotation that a model's config describes, of layers of a kind.

    A rotation that kvstow does not know is Rope(layout="none"): codecs then leave K as it is. The
    digest of the config tells such models apart.
    """
    found = _parameters(hf, kind)
    theta = found.get("rope_theta") or getattr(hf, "rope_theta", None)
    kind = found.get("rope_type") or found.get("type") or "default"
    if theta is None or kind not in _SCALINGS or "mrope_section" in found:
        return Rope(layout="none")
    layout: Literal["half", "interleaved"] = "half"
    if getattr(hf, "model_type", "") in _INTERLEAVED:
        layout = "interleaved"
    share = found.get("partial_rotary_factor") or getattr(hf, "partial_rotary_factor", None) or 1.0
    factor, context = found.get("factor"), found.get("original_max_position_embeddings")
    low, high = found.get("low_freq_factor"), found.get("high_freq_factor")
    if kind == "yarn":
        low, high = found.get("beta_slow"), found.get("beta_fast") or 32.0
        most = getattr(hf, "max_position_embeddings", None)
        context = context or getattr(hf, "original_max_position_embeddings", None) or most
        if not context:
            return Rope(layout="none")
        factor = factor or (most or context) / context
    return Rope(
        layout=layout,
        theta=float(theta),
        scaling=cast(Any, _SCALINGS[kind]),
        rotary_dims=0 if share == 1.0 else int(head_dim * share),
        factor=float(factor or 1.0),
        low_freq_factor=float(low or 1.0),
        high_freq_factor=float(high or 1.0),
        original_context=int(context or 0),
        attention_factor=float(found.get("attention_factor") or 0.0),
        mscale=float(found.get("mscale") or 0.0),
        mscale_all_dim=float(found.get("mscale_all_dim") or 0.0),
    )
