"""A worker for Hugging Face transformers: prompts start from the pages that kvstowd holds.

    with kvstow.Client("127.0.0.1:7380") as client:
        said = kvstow.hf.generate(model, tokenizer, prompt, client=client, space="tales")
        print(said.text, said.cached_tokens, "of", said.prompt_tokens, "tokens were cached")

A loop of your own takes a PrefixCache:

    prefix = kvstow.hf.PrefixCache(model, client, space="tales")
    cache, cached = prefix.load(tokens)  # a tensor [1, count], or a list
    with torch.no_grad():
        model(tokens[:, cached:], past_key_values=cache)  # computes what the server lacks
    prefix.store(tokens, cache, cached)

A server that is dead or slow costs time, once for each load, and never raises. Another model, or
other weights, under the name of a space raises kvstow.SpaceMismatch.

This module needs torch and transformers, which the extra `hf` brings (docs/ENGINES.md).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from kvstow.versions import check_version

check_version("transformers")  # names one that lacks what is imported here

import torch
from transformers import AttentionInterface, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from kvstow import _native
from kvstow.client import Client, Space
from kvstow.models import Ropes, norms_keys
from kvstow.quiet import Quiet
from kvstow.statistics import ENOUGH, margin_of, model_statistics, with_power
from kvstow.types import (
    Column,
    Fidelity,
    GetResult,
    KvSpec,
    Page,
    Rope,
    SpaceMismatch,
    page_keys,
)

if TYPE_CHECKING:
    from kvstow.calibrate.forward import Felt, Gathered

# The channels that RoPE pairs, for each model_type whose cache is plain K and V in every layer.
_LAYOUTS: Mapping[str, Literal["half", "interleaved"]] = {
    "llama": "half",
    "mistral": "half",
    "mixtral": "half",
    "qwen2": "half",
    "qwen3": "half",
    "qwen3_moe": "half",
    "phi3": "half",
    "gemma2": "half",
    "gemma3_text": "half",
}
_SCALINGS: Mapping[str, Literal["none", "linear", "ntk", "yarn", "llama3", "longrope"]] = {
    "default": "none",
    "linear": "linear",
    "dynamic": "ntk",
    "yarn": "yarn",
    "llama3": "llama3",
    "longrope": "longrope",
    "su": "longrope",
}
# Fields of a config that change no K and V, or that are fields of KvSpec.
_NOT_IN_REVISION = {
    "_name_or_path",
    "architectures",
    "chunk_size_feed_forward",
    "dtype",
    "id2label",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "quantization_config",
    "return_dict",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}
_SAMPLED_VALUES = 64
_MASKED = "kvstow_masked"
_WINDOW_QUERIES = 32  # that the column attn_window sums over
_STATISTICS_TOKENS = 512  # of a prompt that is long enough to tell what the model feels
_QUERIES_AT_ONCE = 256  # whose probabilities are in memory together

_watching = threading.local()  # .watch: what is called with the attention of this thread's models

# What prompts told, until they are enough to be sent: of each client, by space.
_felt: weakref.WeakKeyDictionary[Client, dict[str, Gathered]] = weakref.WeakKeyDictionary()
_felt_lock = threading.Lock()
# The servers of these clients did not answer.
_quiet: weakref.WeakKeyDictionary[Client, Quiet] = weakref.WeakKeyDictionary()
_masked_lock = threading.Lock()
_masked_uses: weakref.WeakKeyDictionary[Any, tuple[int, str]] = weakref.WeakKeyDictionary()


# The model's identity.


def spec_of(model: Any, page_tokens: int = 64) -> KvSpec:
    """The shape of a model's KV cache, told from its config and its weights.

    Raises ValueError for a model_type that this module does not know.
    """
    config = _text_config(model)
    head_dim = _head_dim(config)
    kinds = _layer_kinds(config)
    settings = _rope_parameters(config, kinds)
    ropes = {kind: _rope_of(values, config, head_dim) for kind, values in settings.items()}
    each = Ropes.of([ropes[kind] for kind in kinds])
    sliding = "sliding_attention" in kinds
    dtype: Any = str(model.dtype).removeprefix("torch.")
    if dtype not in ("float16", "bfloat16", "float32"):
        raise ValueError(f"model: its dtype is {dtype}; load it with dtype bfloat16 or float16")
    return KvSpec(
        model=f"{config.model_type}-{config.num_hidden_layers}x{config.hidden_size}",
        revision=_revision(model, config),
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        head_dim=head_dim,
        dtype=dtype,
        page_tokens=page_tokens,
        engine="transformers",
        weight_quantization=_weight_quantization(config),
        adapter=_adapter(model),
        sliding_window=(config.sliding_window or 0) if sliding else 0,
        layer_layout=_layer_layout(kinds, each) if sliding or each.other_rope else "",
        **each.as_codecs_read().fields(),
    )


def _text_config(model: Any) -> Any:
    """The config of the language model. Raises ValueError for a model that is not supported."""
    config = model.config.get_text_config(decoder=True)
    if config.model_type not in _LAYOUTS:
        raise ValueError(
            f"model: model_type {config.model_type!r} is not supported; it is one of "
            + ", ".join(sorted(_LAYOUTS))
        )
    if getattr(config, "use_bidirectional_attention", False):
        raise ValueError("model: it attends to later tokens, so that a prefix has no K and V")
    return config


def _head_dim(config: Any) -> int:
    head_dim: int = getattr(config, "head_dim", None) or (
        config.hidden_size // config.num_attention_heads
    )
    return head_dim


def _layer_kinds(config: Any) -> list[str]:
    """The view of each layer: "full_attention" or "sliding_attention"."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        # A config without the list has layers that are alike.
        window = getattr(config, "sliding_window", None)
        windowed = window and getattr(config, "use_sliding_window", True)
        kinds = ["sliding_attention" if windowed else "full_attention"] * config.num_hidden_layers
    other = set(kinds) - {"full_attention", "sliding_attention"}
    if other:
        raise ValueError(f"model: layers of the kind {sorted(other)[0]!r} are not supported")
    return list(kinds)


def _layer_layout(kinds: Sequence[str], ropes: Ropes) -> str:
    """The kinds of the layers in order, S or F, and their other RoPE where codecs read less."""
    layout = "".join("S" if kind == "sliding_attention" else "F" for kind in kinds)
    if ropes.other_rope in (None, ropes.as_codecs_read().other_rope):
        return layout
    rope = dataclasses.asdict(ropes.other_rope)
    return f"{layout} {json.dumps(rope, sort_keys=True, separators=(',', ':'))}"


def _rope_parameters(config: Any, kinds: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """The settings of RoPE for each kind of layer. Reads configs of transformers 5 and 4."""
    found = getattr(config, "rope_parameters", None)
    if not found:
        found = {"rope_theta": config.rope_theta, **(getattr(config, "rope_scaling", None) or {})}
        local_theta = getattr(config, "rope_local_base_freq", None)
        if local_theta:
            found = {"full_attention": found, "sliding_attention": {"rope_theta": local_theta}}
    if any(isinstance(values, Mapping) for values in found.values()):
        return {kind: found[kind] for kind in sorted(set(kinds))}
    return {kind: found for kind in sorted(set(kinds))}


def _rope_kind(parameters: Mapping[str, Any]) -> str:
    kind: str = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in _SCALINGS:
        raise ValueError(f"model: rope_type {kind!r} is not supported")
    return kind


def _original_context(parameters: Mapping[str, Any], config: Any) -> int:
    context: int = (
        parameters.get("original_max_position_embeddings")
        or getattr(config, "original_max_position_embeddings", None)
        or config.max_position_embeddings
    )
    return context


def _rope_of(parameters: Mapping[str, Any], config: Any, head_dim: int) -> Rope:
    kind = _rope_kind(parameters)
    share: float = (
        parameters.get("partial_rotary_factor")
        or getattr(config, "partial_rotary_factor", None)
        or 1.0
    )
    theta: float = parameters.get("rope_theta") or getattr(config, "rope_theta", None) or 1e4
    context = _original_context(parameters, config)
    factor = parameters.get("factor") or config.max_position_embeddings / context
    low, high = "low_freq_factor", "high_freq_factor"
    if kind == "yarn":
        low, high = "beta_slow", "beta_fast"
    usual_high = 32.0 if kind == "yarn" else 1.0
    if kind in ("default", "dynamic"):
        # Pages hold K of short contexts only (PrefixCache), which dynamic scaling leaves plain.
        factor = 1.0
    return Rope(
        layout=_LAYOUTS[config.model_type],
        theta=float(theta),
        scaling=_SCALINGS[kind],
        k_after_rope=True,
        rotary_dims=0 if share == 1.0 else int(head_dim * share),
        factor=float(factor),
        low_freq_factor=float(parameters.get(low) or 1.0),
        high_freq_factor=float(parameters.get(high) or usual_high),
        original_context=0 if kind in ("default", "linear") else context,
        attention_factor=float(parameters.get("attention_factor") or 0.0),
        mscale=float(parameters.get("mscale") or 0.0),
        mscale_all_dim=float(parameters.get("mscale_all_dim") or 0.0),
        short_factors=tuple(float(x) for x in parameters.get("short_factor") or ()),
        long_factors=tuple(float(x) for x in parameters.get("long_factor") or ()),
        mrope_sections=tuple(parameters.get("mrope_section") or ()),
    )


def _fixed_context(config: Any) -> int | None:
    """Up to which context K does not depend on the prompt's length; None: always."""
    contexts = [
        _original_context(parameters, config)
        for parameters in _rope_parameters(config, _layer_kinds(config)).values()
        if _rope_kind(parameters) in ("dynamic", "longrope", "su")
    ]
    return min(contexts) if contexts else None


def _weight_quantization(config: Any) -> str:
    found = getattr(config, "quantization_config", None)
    if not found:
        return ""
    settings = found if isinstance(found, Mapping) else found.to_dict()
    return json.dumps(settings, sort_keys=True, separators=(",", ":"), default=str)


def _adapter(model: Any) -> str:
    """The names of the active adapters (LoRA); "" where there are none."""
    if not getattr(model, "peft_config", None):
        return ""
    if any(getattr(one, "is_prompt_learning", False) for one in model.peft_config.values()):
        raise ValueError("model: an adapter adds tokens of its own to the cache; merge or drop it")
    active = model.active_adapters
    names: str | Sequence[str] = active() if callable(active) else active
    # Layers of adapters say whether they are switched off (PeftModel.disable_adapter).
    off = [vars(module).get("_disable_adapters") for module in model.modules()]
    if True in off:
        return ""
    return names if isinstance(names, str) else ",".join(names)


def _revision(model: Any, config: Any) -> str:
    """A digest of the config and of a sample of the weights."""
    settings = {k: v for k, v in config.to_dict().items() if k not in _NOT_IN_REVISION}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    samples = _samples(model)
    for name, value in _values(model):
        kind, size = (value.device, value.dtype), 2 * min(value.numel(), _SAMPLED_VALUES)
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        digest.update(samples[kind][:size].view(torch.uint8).numpy().tobytes())
        samples[kind] = samples[kind][size:]
    return digest.hexdigest()[:16]


def _values(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters, and the buffers that are saved with them: GPTQ and AWQ keep weights there."""
    yield from model.named_parameters()
    for prefix, module in model.named_modules():
        for name, value in module.named_buffers(prefix, recurse=False):
            if name.rpartition(".")[2] not in module._non_persistent_buffers_set:
                yield name, value


@torch.no_grad()
def _samples(model: Any) -> dict[tuple[torch.device, torch.dtype], torch.Tensor]:
    """The first and the last of each of a model's values, one after the other, on the CPU.

    Nothing but values tells that weights were replaced: `p.data.copy_()` leaves no other trace. So
    this is done for every prompt, with one copy from each device.
    """
    alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for name, value in _values(model):
        if value.is_meta:
            raise ValueError(f"model: {name} is not in memory; load the model without offload")
        flat = value.reshape(-1)
        some = alike.setdefault((value.device, value.dtype), [])
        some += [flat[:_SAMPLED_VALUES], flat[-_SAMPLED_VALUES:]]
    return {kind: torch.cat(some).cpu() for kind, some in alike.items()}


def _weights(model: Any) -> object:
    """What the weights that a model computes with now are compared by: adapters, and samples."""
    samples = _samples(model).items()
    return _adapter(model), [(k, x.view(torch.uint8).numpy().tobytes()) for k, x in samples]


def statistics_of(model: Any, texts: Sequence[Sequence[int]]) -> bytes:
    """What a model feels of errors in its K and V, for Space.send_statistics.

    texts: token ids of texts like those that will be stored: four or more, as one tells little of
    others (docs/decisions/0098-statistics-of-several-prompts.md). Each costs two forward passes
    over at most 1,024 of its tokens. Raises ValueError for a model that this module does not know,
    for quantized weights, and where no text has 64 tokens.
    """
    from kvstow.calibrate import forward  # imports this module

    felt = forward.measure(model, texts)
    return _statistics(model, felt, sum(forward.counted(len(text)) for text in texts))


def _statistics(model: Any, felt: Felt, tokens: int) -> bytes:
    """What was felt in so many tokens, as Space.send_statistics takes it."""
    from kvstow.calibrate import forward, queries

    cost, slope = felt.cost.numpy(), felt.slope.numpy()
    parts = (cost[:, 0], cost[:, 1], slope[:, 0], slope[:, 1])
    entropy, spec = forward.over_its_mean(felt.entropy).numpy(), spec_of(model)
    asked = dict(zip(queries.asking_layers(spec.layers), felt.asked.numpy(), strict=True))
    margin = margin_of(tokens, norms_keys(_text_config(model)))
    return with_power(model_statistics(spec, *parts, entropy, asked), margin)


# Attention that leaves out absent tokens, and that watches what tokens receive.


class _WatchedLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A layer whose tokens may be absent, and which sums what attention they receive."""

    def __init__(self, config: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._config = config
        self.keep: torch.Tensor | None = None  # bool [kv_heads, tokens] of the cached prefix
        self.watching = False
        self.queries = 0  # that were watched
        self.sums = torch.zeros(1, 0)  # [kv_heads, tokens], over all of them
        self.window_queries = 0
        self.window = torch.zeros(1, 0)  # likewise, over the last ones of the last forward

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds tokens. Refuses attention that would not mask the absent ones."""
        heeded = self._config._attn_implementation == _MASKED
        if not heeded and (self.keep is not None or self.watching):
            raise RuntimeError(
                "past_key_values: its tokens are absent or watched; call the model inside "
                "`with prefix_cache.masked():`"
            )
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        shown = keys[:]  # a tensor of its own: the layer must not hold what refers to it
        shown._kvstow_layer = self  # type: ignore[attr-defined]
        return shown, values

    def mask(self, allowed: torch.Tensor, groups: int) -> torch.Tensor:
        """Takes absent tokens out of a mask `[1, 1, queries, tokens]`: `[1, heads, ...]`."""
        if self.keep is None:
            return allowed
        present = self.keep.new_ones(self.keep.shape[0], allowed.shape[-1])
        present[:, : self.keep.shape[1]] = self.keep
        return allowed & present.repeat_interleave(groups, 0)[None, :, None, :].to(allowed.device)

    def note(self, probabilities: torch.Tensor, first_query: int, queries: int) -> None:
        """Adds the probabilities `[1, heads, some, tokens]` of some of a forward's queries."""
        if not self.watching or self.keys is None:
            return
        heads, tokens = self.keys.shape[1], self.keys.shape[2]
        mean = (
            probabilities.detach().float().view(heads, -1, probabilities.shape[2], tokens).mean(1)
        )
        if first_query == 0:
            more = mean.new_zeros(heads, tokens - self.sums.shape[1])
            self.sums = torch.cat([self.sums.to(mean.device).expand(heads, -1), more], 1)
            self.window = torch.zeros_like(self.sums)
            self.queries += queries
            self.window_queries = min(queries, _WINDOW_QUERIES)
        self.sums += mean.sum(1)
        last = max(queries - _WINDOW_QUERIES - first_query, 0)
        self.window += mean[:, last:].sum(1)


class _WatchedCache(DynamicCache):
    """A DynamicCache of watched layers."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layers = [_WatchedLayer(config) for _ in range(config.num_hidden_layers)]

    @property
    def watched(self) -> list[_WatchedLayer]:
        return [layer for layer in self.layers if isinstance(layer, _WatchedLayer)]

    def watch(self, watching: bool) -> None:
        """Whether the layers sum the attention of the queries that follow."""
        for layer in self.watched:
            layer.watching = watching

    def set_keep(self, pages: Sequence[npt.NDArray[np.bool_]]) -> None:
        """The tokens of the prefix that are there: `[layers, tokens, kv_heads]` for each page."""
        keep = torch.from_numpy(np.concatenate(pages, axis=1))
        for number, layer in enumerate(self.watched):
            layer.keep = keep[number].T.contiguous()
            if layer.keys is not None:
                layer.keep = layer.keep.to(layer.keys.device)


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a layer's attention sees: query, key and value after RoPE, `[1, heads, tokens, d]`."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scale: float
    softcap: float | None
    mask: torch.Tensor | None

    @property
    def allowed(self) -> torch.Tensor:
        """The tokens that each query may see, as bool `[1, heads or 1, queries, tokens]`."""
        return _allowed(self.query, self.key, self.mask)


def _masked_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """SDPA that leaves out the absent tokens of a watched layer, head by head.

    Shows what it sees to whoever watches in this thread.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    watch = getattr(_watching, "watch", None)
    if watch is not None:
        watch(module.layer_idx, Seen(query, key, value, scale, softcap, attention_mask))
    layer: _WatchedLayer | None = getattr(key, "_kvstow_layer", None)
    groups = query.shape[1] // key.shape[1]
    mask = attention_mask
    if layer is not None and layer.keep is not None:
        mask = layer.mask(_allowed(query, key, mask), groups)
    if softcap is None and (layer is None or not layer.watching):
        result: tuple[torch.Tensor, torch.Tensor | None] = sdpa_attention_forward(
            module, query, key, value, mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return result
    allowed = _allowed(query, key, mask)
    keys, values = repeat_kv(key, groups), repeat_kv(value, groups)
    queries = query.shape[2]
    outputs = []
    for first in range(0, queries, _QUERIES_AT_ONCE):
        some = slice(first, first + _QUERIES_AT_ONCE)
        scores = torch.matmul(query[:, :, some], keys.transpose(2, 3)) * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores.masked_fill(~allowed[:, :, some], float("-inf"))
        probabilities = torch.softmax(scores, -1, dtype=torch.float32)
        if layer is not None:
            layer.note(probabilities, first, queries)
        outputs.append(torch.matmul(probabilities.to(query.dtype), values))
    return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None


def _allowed(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The tokens that each query may see, as bool `[1, heads or 1, queries, tokens]`."""
    if mask is None:
        queries, tokens = query.shape[2], key.shape[2]
        last = torch.arange(tokens - queries, tokens, device=query.device)
        return (torch.arange(tokens, device=query.device)[None] <= last[:, None])[None, None]
    if mask.dtype == torch.bool:
        return mask
    return mask > torch.finfo(mask.dtype).min / 2


AttentionInterface.register(_MASKED, _masked_attention)
AttentionMaskInterface.register(_MASKED, sdpa_mask)


@contextlib.contextmanager
def _masked(model: Any) -> Iterator[None]:
    """Switches a model to masked attention, until the last thread that needs it leaves."""
    with _masked_lock:
        uses, usual = _masked_uses.get(model, (0, ""))
        if uses == 0:
            usual = _text_config(model)._attn_implementation
            if usual not in ("sdpa", "eager"):
                raise ValueError(
                    f"model: attention {usual!r} cannot mask absent tokens; load the model with "
                    "attn_implementation='sdpa'"
                )
            model.set_attn_implementation(_MASKED)
        _masked_uses[model] = (uses + 1, usual)
    try:
        yield
    finally:
        with _masked_lock:
            uses, usual = _masked_uses[model]
            if uses == 1:
                model.set_attn_implementation(usual)
            _masked_uses[model] = (uses - 1, usual)


@contextlib.contextmanager
def _watched(model: Any, watch: Callable[[int, Seen], None]) -> Iterator[None]:
    """Inside it this thread's forward passes call `watch` with each layer and what it sees."""
    with _masked(model):
        _watching.watch = watch
        try:
            yield
        finally:
            _watching.watch = None


# The prefix cache.


class Storing:
    """Pages that travel to the server (PrefixCache.start_store)."""

    def __init__(self, client: Client, call: _native.Call | None) -> None:
        self._client = client
        self._call = call
        self._pages: int | None = None

    def wait(self) -> int:
        """Waits for the end. How many pages the server has stored that it did not have before."""
        if self._pages is None:
            self._pages = 0
            if self._call is not None:
                self._call.wait()
                outcomes = [result[0] for result in self._call.take_puts()]
                _note(self._client, answered="UNAVAILABLE" not in outcomes)
                self._pages = outcomes.count("STORED")
        return self._pages


def _note(client: Client, answered: bool) -> None:
    """Remembers that a server did not answer. It is asked what it has, and little else, then."""
    if answered:
        _quiet.pop(client, None)
    else:
        _quiet.setdefault(client, Quiet()).begin()


def _is_quiet(client: Client) -> bool:
    return bool(_quiet.get(client))


class PrefixCache:
    """The pages of one model in one space, as caches of transformers.

    model: a causal language model of transformers.
    space: the name of the space; it belongs to this model from then on.
    recipe: how the server codes pages; "raw" and "lossless" give the very same tokens back.
    page_tokens: tokens in a page; a prefix is found in whole pages.
    fidelity: "sparse" for recipes that drop tokens, such as "keydiff(keep=0.5)|int8".
    private: True for recipes that go by attention, such as "snapkv(keep=0.25)|int8".

    A prompt beyond the context up to which dynamic scaling or LongRoPE leave K alone is neither
    loaded nor stored: its K would depend on its length.

    `load` and `store` raise SpaceMismatch once the model has other weights or adapters than at
    first.
    """

    def __init__(
        self,
        model: Any,
        client: Client,
        space: str = "transformers",
        recipe: str = "int8",
        page_tokens: int = 64,
        fidelity: Fidelity = "",
        private: bool | None = None,
    ) -> None:
        self._weights = _weights(model)
        self.spec: KvSpec = spec_of(model, page_tokens)
        self.model = model
        self._config = _text_config(model)
        self.space: Space = client.open_space(
            space,
            self.spec,
            recipe=recipe,
            fidelity=fidelity,
            private=private,
            normed_keys=norms_keys(self._config),
        )
        self._fixed_context = _fixed_context(self._config)
        self._dtype: torch.dtype = getattr(torch, self.spec.dtype)
        self._all_kept = np.ones((self.spec.layers, page_tokens, self.spec.kv_heads), np.bool_)

    def load(
        self, token_ids: Sequence[int] | torch.Tensor, *, watch: bool = False
    ) -> tuple[DynamicCache, int]:
        """A cache with the leading tokens that the server has, and how many they are.

        At least one token is left to compute. Where the space is sparse, or `watch` asks for the
        attention that tokens receive, call the model inside `with prefix_cache.masked():`.
        """
        tokens = _token_list(token_ids)
        self._check_weights()
        size = self.spec.page_tokens
        keys = page_keys(tokens, size)[: (len(tokens) - 1) // size]
        if self._fixed_context is not None and len(tokens) > self._fixed_context:
            keys = []
        pages, results = self._get(keys)
        keeps = [result.keep(self.spec.layers) for result in results]
        sparse = any(keep is not None for keep in keeps)
        cache = _WatchedCache(self._config) if sparse or watch else DynamicCache()
        self._fill(cache, pages[: len(results)])
        if isinstance(cache, _WatchedCache):
            cache.watch(watch)
            if sparse:
                cache.set_keep([self._all_kept if keep is None else keep for keep in keeps])
        return cache, len(results) * size

    def store(
        self, token_ids: Sequence[int] | torch.Tensor, cache: DynamicCache, cached_tokens: int = 0
    ) -> int:
        """Stores the full pages of `token_ids`, whose K and V `cache` begins with.

        Leaves out those of the first `cached_tokens`. Returns how many the server did not have.
        """
        return self.start_store(token_ids, cache, cached_tokens).wait()

    def start_store(
        self, token_ids: Sequence[int] | torch.Tensor, cache: DynamicCache, cached_tokens: int = 0
    ) -> Storing:
        """As `store`, but does not wait: the pages are copied, and travel."""
        tokens = _token_list(token_ids)
        self._check(cache, len(tokens))
        size = self.spec.page_tokens
        first, last = cached_tokens // size, len(tokens) // size
        if self._fixed_context is not None and len(tokens) > self._fixed_context:
            last = first
        client = self.space.client
        if first >= last or not self.space.open or _is_quiet(client):
            return Storing(client, None)  # load() asks the server; this does not wait for it again
        self._check_weights()
        keys = page_keys(tokens, size)
        data = self._empty(last - first)
        for number, states_of_layer in enumerate(_states(cache)):
            for part, states in enumerate(states_of_layer):
                some = states[0, :, first * size : last * size].transpose(0, 1)
                data[:, number, part].copy_(some.reshape(last - first, size, *some.shape[1:]))
        pages = [
            Page(keys[at], data[at - first], at * size, columns=self._columns(cache, at, tokens))
            for at in range(first, last)
        ]
        return Storing(client, self.space.start_put(pages))

    def send_statistics(self, texts: Sequence[Sequence[int]]) -> bool:
        """Tells the server what the model feels of errors, where the space's recipe is auto.

        texts: as for `statistics_of`. Does nothing where somebody has told it already. False: the
        server does not know it now. `gather_statistics` does this as prompts come.
        """
        if not self.space.ready():
            return False
        return not self.space.wants_statistics or self.space.send_statistics(
            statistics_of(self.model, texts)
        )

    def gather_statistics(
        self, token_ids: Sequence[int] | torch.Tensor, cached_tokens: int = 0
    ) -> None:
        """Looks at what the model feels of errors in this prompt, where the space's recipe is auto.

        The server is told once prompts of 4,096 tokens were looked at, by all caches of this client
        and space. A prompt counts if 512 of its tokens or more are not among the first
        `cached_tokens`, which others had; up to 1,024 of its tokens do. It costs two passes of the
        model over these. Does nothing once the server knows. Raises ValueError for quantized
        weights.
        """
        tokens = _token_list(token_ids)
        if not self.space.wants_statistics or len(tokens) - cached_tokens < _STATISTICS_TOKENS:
            return
        if _is_quiet(self.space.client):
            return
        from kvstow.calibrate import forward

        felt = forward.measure(self.model, [tokens])
        with _felt_lock:
            of_client = _felt.setdefault(self.space.client, {})
            gathered = of_client.setdefault(self.space.name, forward.Gathered())
            gathered.add(felt, forward.counted(len(tokens)))
            if gathered.tokens < ENOUGH:
                return
            del of_client[self.space.name]
        self.space.send_statistics(_statistics(self.model, gathered.mean(), gathered.tokens))

    def report(
        self, token_ids: Sequence[int] | torch.Tensor, cache: DynamicCache, cached_tokens: int
    ) -> None:
        """Tells the server what attention the loaded pages received (`load(..., watch=True)`).

        `store` tells it of the new pages.
        """
        tokens = _token_list(token_ids)
        keys = page_keys(tokens, self.spec.page_tokens)[: cached_tokens // self.spec.page_tokens]
        reports = [
            (key, column)
            for at, key in enumerate(keys)
            for column in self._columns(cache, at, tokens)
        ]
        if reports and not _is_quiet(self.space.client):
            results = self.space.report_attention(reports)
            outcomes = [result.outcome for result in results]
            _note(self.space.client, answered="UNAVAILABLE" not in outcomes)

    def generate(
        self,
        tokenizer: Any,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int = 32,
        report: bool = False,
    ) -> Generated:
        """Continues a prompt, as the function of this name does."""
        begin = time.perf_counter()
        tokens = _prompt_tokens(tokenizer, prompt, max_new_tokens)
        return _generate(self, tokenizer, tokens, max_new_tokens, report, begin)

    @contextlib.contextmanager
    def masked(self) -> Iterator[None]:
        """Inside it the model's attention leaves out absent tokens. Other caches see no change."""
        with _masked(self.model):
            yield

    def _check_weights(self) -> None:
        """Raises SpaceMismatch where the model has other weights than the space's."""
        if _weights(self.model) != self._weights:
            raise SpaceMismatch(
                f"model: its weights or adapters changed since this PrefixCache of space "
                f"{self.space.name!r} was made; make a PrefixCache with another space"
            )

    def _empty(self, pages: int) -> torch.Tensor:
        return torch.empty((pages, *self.spec.page_shape()), dtype=self._dtype)

    def _get(self, keys: Sequence[bytes]) -> tuple[torch.Tensor, list[GetResult]]:
        """Pages on the CPU, and the results of the leading ones that are hits."""
        client = self.space.client
        hit = self.space.lookup(keys)
        _note(client, answered=not hit.message)
        pages = self._empty(hit.pages)
        try:
            found = self.space.get(keys[: hit.pages], list(pages), lease=hit.lease) if hit else []
            if any(result.outcome == "UNAVAILABLE" for result in found):
                _note(client, answered=False)
        finally:
            if not _is_quiet(client):  # else the lease ends by itself
                client.release(hit.lease)
        results: list[GetResult] = []
        for result in found:
            expected = (self.spec.page_tokens, len(results) * self.spec.page_tokens)
            if not result.hit or (result.tokens, result.first_position) != expected:
                break
            results.append(result)
        return pages, results

    def _fill(self, cache: DynamicCache, pages: torch.Tensor) -> None:
        if not len(pages):
            return
        device = self.model.get_input_embeddings().weight.device
        for number in range(self.spec.layers):
            # [pages, tokens, heads, dim] -> [1, heads, tokens, dim]
            both = pages[:, number].transpose(0, 1).flatten(1, 2).transpose(1, 2)
            both = both.to(self._device_of(number, device))
            cache.update(both[:1].contiguous(), both[1:].contiguous(), number)

    def _device_of(self, layer: int, usual: torch.device) -> torch.device:
        """Where a layer computes, for models that are spread over several devices."""
        places = getattr(self.model, "hf_device_map", None) or {}
        for name, place in places.items():
            if f"{name}.".endswith(f"layers.{layer}."):
                return torch.device(place)
        return usual

    def _check(self, cache: DynamicCache, tokens: int) -> None:
        """Raises ValueError where a cache does not hold all of the tokens in every layer."""
        heads, dim = self.spec.kv_heads, self.spec.head_dim
        found = _states(cache)
        if len(found) != self.spec.layers:
            raise ValueError(f"cache: has {len(found)} layers, not {self.spec.layers}")
        for number, (keys, _) in enumerate(found):
            one, have, count, width = keys.shape
            fits = (one, have, width, keys.dtype) == (1, heads, dim, self._dtype)
            if not fits or count < tokens:
                raise ValueError(
                    f"cache: layer {number} holds {keys.dtype} {list(keys.shape)}, not "
                    f"{self._dtype} [1, {heads}, {tokens} or more, {dim}]; begin with the cache "
                    "that load() returns"
                )

    def _columns(self, cache: DynamicCache, page: int, tokens: Sequence[int]) -> list[Column]:
        """The attention that a page received in the prefill; nothing where nobody watched.

        The queries before a new page cannot see its tokens. They count all the same: policies know
        by a token's position how many queries could see it.
        """
        layers = cache.watched if isinstance(cache, _WatchedCache) else []
        if not layers or not layers[0].queries:
            return []
        size = self.spec.page_tokens
        some = slice(page * size, (page + 1) * size)
        queries = layers[0].queries
        new = page * size >= len(tokens) - queries
        columns = [
            ("attn_sum", len(tokens) if new else queries, [layer.sums for layer in layers]),
            ("attn_window", layers[0].window_queries, [layer.window for layer in layers]),
        ]
        return [
            Column(
                name, torch.stack([x[:, some].T.cpu() for x in sums]).numpy(), count, len(tokens)
            )
            for name, count, sums in columns
        ]


def _states(cache: DynamicCache) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """K and V of the layers that have some."""
    states = []
    for layer in cache.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is not None and values is not None:
            states.append((keys.detach(), values.detach()))
    return states


def _token_list(token_ids: Sequence[int] | torch.Tensor) -> list[int]:
    if isinstance(token_ids, torch.Tensor):
        if token_ids.numel() != token_ids.shape[-1]:
            raise ValueError(f"token_ids: has the shape {list(token_ids.shape)}; give one sequence")
        token_ids = token_ids.reshape(-1).tolist()
    if not len(token_ids):
        raise ValueError("token_ids: is empty; give at least one token")
    return list(token_ids)


# Generation.


@dataclasses.dataclass(frozen=True, slots=True)
class Generated:
    """A model's answer, and the work that the server's pages saved it."""

    text: str
    token_ids: list[int]  # that were generated
    cached_tokens: int  # of the prompt, that came from the server
    prompt_tokens: int
    seconds_to_first_token: float
    stored_pages: int  # of the prompt, that the server did not have before


def generate(
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[int],
    *,
    client: Client,
    space: str = "transformers",
    recipe: str = "int8",
    max_new_tokens: int = 32,
    page_tokens: int = 64,
    fidelity: Fidelity = "",
    private: bool | None = None,
    report: bool = False,
) -> Generated:
    """Continues a prompt, greedily. Computes only what the server does not hold.

    prompt: text, or token ids. A chat is tokens of `tokenizer.apply_chat_template`.
    report: tells the server what attention the prompt's tokens received. Costs computing time.

    The other arguments are those of PrefixCache. The new full pages of the prompt go to the server
    while the model decodes. In a space of recipe auto the first long prompts cost two more passes
    each, which tell the server what the model feels of errors (`PrefixCache.gather_statistics`).
    The time to the first token has the opening of the space in it; many prompts share one with
    `PrefixCache.generate`.
    """
    begin = time.perf_counter()
    tokens = _prompt_tokens(tokenizer, prompt, max_new_tokens)
    prefix = PrefixCache(model, client, space, recipe, page_tokens, fidelity, private)
    return _generate(prefix, tokenizer, tokens, max_new_tokens, report, begin)


def _prompt_tokens(tokenizer: Any, prompt: str | Sequence[int], max_new_tokens: int) -> list[int]:
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: {max_new_tokens} is less than 1")
    tokens = list(tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt)
    if not tokens:
        raise ValueError("prompt: has no tokens; give at least one")
    return tokens


def _generate(
    prefix: PrefixCache,
    tokenizer: Any,
    tokens: Sequence[int],
    max_new_tokens: int,
    report: bool,
    begin: float,
) -> Generated:
    model = prefix.model
    cache, cached = prefix.load(tokens, watch=report)
    watched = isinstance(cache, _WatchedCache)
    with torch.no_grad(), prefix.masked() if watched else contextlib.nullcontext():
        said = [_step(model, tokens[cached:], cached, cache)]
        seconds = time.perf_counter() - begin
        if isinstance(cache, _WatchedCache):
            cache.watch(False)
        storing = prefix.start_store(tokens, cache, cached)
        stops = _stop_tokens(model, tokenizer)
        while len(said) < max_new_tokens and said[-1] not in stops:
            said.append(_step(model, said[-1:], len(tokens) + len(said) - 1, cache))
    stored = storing.wait()
    if report:
        prefix.report(tokens, cache, cached)
    try:
        prefix.gather_statistics(tokens, cached)
    except (ValueError, RuntimeError):  # quantized weights, no memory: the server does without
        prefix.space.wants_statistics = False
    return Generated(
        text=tokenizer.decode(said, skip_special_tokens=True),
        token_ids=said,
        cached_tokens=cached,
        prompt_tokens=len(tokens),
        seconds_to_first_token=seconds,
        stored_pages=stored,
    )


def _step(model: Any, tokens: Sequence[int], position: int, cache: DynamicCache) -> int:
    """The most likely token after `tokens`, the first of which is at `position`."""
    device = model.get_input_embeddings().weight.device
    ids = torch.tensor([tokens], device=device)
    positions = torch.arange(position, position + len(tokens), device=device)[None]
    logits = model(
        input_ids=ids,
        position_ids=positions,
        use_cache=True,
        logits_to_keep=1,
        **{_cache_name(model): cache},
    ).logits
    return int(logits[0, -1].argmax())


def _cache_name(model: Any) -> str:
    """What the model calls its cache: newer transformers warn of the older name."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _stop_tokens(model: Any, tokenizer: Any) -> set[int]:
    settings = getattr(model, "generation_config", None)
    found = getattr(settings, "eos_token_id", None)
    if found is None:
        found = tokenizer.eos_token_id
    if found is None:
        return set()
    return {found} if isinstance(found, int) else set(found)
