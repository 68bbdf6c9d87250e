"""Runs a model of transformers over texts: its K and V, its queries, and gradients by K and V.

Needs torch and transformers. Which models it takes is kvstow.hf's to say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils.logging import disable_progress_bar

from kvstow import hf
from kvstow.calibrate import forward, queries
from kvstow.calibrate.rotation import Rotation
from kvstow.types import KvSpec

FIRST = 4  # tokens that lie outside every distribution
UNIT = 64  # gradients are kept as float16 in units of 1 / UNIT
_CHUNK = 512  # tokens of a forward pass over a text
_LARGEST = 60000.0  # that float16 holds with room to spare


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a model makes of a text."""

    kv: npt.NDArray[np.float16]  # [layers, 2, tokens, kv_heads, head_dim], K after RoPE
    queries: npt.NDArray[np.float32]  # E[q q^T] before RoPE, [layers, kv_heads, d, d]
    entropy: npt.NDArray[np.float64]  # what forward.entropy_model gives, of the last layer
    # Mean queries before RoPE, scaled as logits are: [asking layers, heads, d]. See `queries`.
    asked: npt.NDArray[np.float64]


class Subject:
    """A model that is calibrated.

    Raises ValueError for a model that kvstow.hf does not know.
    """

    def __init__(self, model: Any) -> None:
        self.spec: KvSpec = hf.spec_of(model)
        self.model = model.eval().requires_grad_(False)
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.rotation = Rotation(self.spec.rope, self.spec.head_dim)
        self._cache_name = hf._cache_name(model)
        config = hf._text_config(model)
        kinds = hf._layer_kinds(config)
        self._views = [config.sliding_window if k == "sliding_attention" else 0 for k in kinds]

    @property
    def token_bytes(self) -> int:
        """K and V of a token in float16."""
        return 4 * self.spec.layers * self.spec.kv_heads * self.spec.head_dim

    def first_felt(self, layer: int, prefix: int, window: int) -> int:
        """The first token of a prefix that at least half of the window after it sees.

        Layers with a sliding view do not see all of them.
        """
        view = self._views[layer]
        if not view:
            return FIRST
        return max(FIRST, prefix + 1 - view + min(window, view) // 2)

    def logits(
        self, tokens: Sequence[int], cache: DynamicCache, start: int, keep: int
    ) -> torch.Tensor:
        """Of the last `keep` of `tokens` (0: of all), which follow the cache's `start` tokens."""
        return self._run([tokens], cache, start, keep)[0]

    def _run(
        self, texts: Sequence[Sequence[int]], cache: DynamicCache, start: int, keep: int
    ) -> torch.Tensor:
        """Of texts of one length, side by side, what `logits` gives for one."""
        ids = torch.tensor([list(text) for text in texts], device=self.device)
        positions = torch.arange(start, start + ids.shape[1], device=self.device)
        found: torch.Tensor = self.model(
            input_ids=ids,
            position_ids=positions.expand(ids.shape),
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_name: cache},
        ).logits
        return found

    def read(self, tokens: Sequence[int]) -> Reading:
        """Runs the model over a text. Errors are those of `states`."""
        heads, dim = self.spec.kv_heads, self.spec.head_dim
        sums = torch.zeros(self.spec.layers, heads, dim, dim, device=self.device)
        entropy: list[torch.Tensor] = []  # of each piece that ran
        asked = {layer: torch.zeros(1) for layer in queries.asking_layers(self.spec.layers)}

        def watch(layer: int, seen: hf.Seen) -> None:
            start = sum(map(len, entropy))
            q = self.rotation.turn(seen.query[0].transpose(0, 1).float(), start, back=True)
            q = q[max(FIRST - start, 0) :]
            if layer in asked:
                total = queries.chosen(q, heads).double().sum(0) * seen.scale
                asked[layer] = asked[layer].to(total.device) + total
            q = q.reshape(-1, heads, q.shape[1] // heads, dim)
            sums[layer] += torch.einsum("thgd,thge->hde", q, q) / q.shape[2]

        with hf._watched(self.model, watch):
            states = self.states(tokens, lambda logits: entropy.append(forward.entropy_of(logits)))
        last = self.before_rope(states[-1])
        foretold = forward.entropy_model(last[FIRST:], torch.cat(entropy)[FIRST:])
        moments = (sums / (len(tokens) - FIRST)).cpu().numpy()
        means = torch.stack([x.cpu() for x in asked.values()]) / (len(tokens) - FIRST)
        return Reading(states, moments, foretold.numpy(), means.numpy())

    def states(
        self, tokens: Sequence[int], look: Callable[[torch.Tensor], None] | None = None
    ) -> npt.NDArray[np.float16]:
        """K and V of a text, as in Reading. Runs the model over some tokens at a time.

        look: gets the logits of each of these pieces, after it ran.

        Raises ValueError where a value of K or V is too large for float16.
        """
        cache = DynamicCache()
        with torch.no_grad():
            for start in range(0, len(tokens), _CHUNK):
                piece = tokens[start : start + _CHUNK]
                logits = self.logits(piece, cache, start, 0 if look else 1)
                if look:
                    look(logits)
        kv = torch.stack([torch.stack([k[0], v[0]]) for k, v in hf._states(cache)])
        largest = kv.abs().max().item()
        if not largest < _LARGEST:
            raise ValueError(f"model: K or V reach {largest:g}, which float16 cannot hold")
        return kv.transpose(2, 3).to(torch.float16).cpu().contiguous().numpy()

    def alone(self, tokens: Sequence[int], before: Sequence[int]) -> list[torch.Tensor]:
        """K before RoPE and V of single tokens, each behind `before` and nothing else.

        Each layer has a tensor `[tokens, 2, kv_heads, d]`.
        """
        ids = torch.tensor(list(tokens), device=self.device)[:, None]
        cache = DynamicCache()
        with torch.no_grad():
            self._run([before], cache, 0, 1)
            cache.batch_repeat_interleave(len(ids))
            self.model.base_model(  # what follows a token is nobody's question
                input_ids=ids,
                position_ids=torch.full_like(ids, len(before)),
                use_cache=True,
                **{self._cache_name: cache},
            )
        out = []
        for k, v in hf._states(cache):
            heads = k[:, :, -1].float()  # [tokens, kv_heads, d]
            turned = self.rotation.turn(heads.reshape(1, -1, heads.shape[2]), len(before), back=True)
            out.append(torch.stack([turned.reshape(heads.shape), v[:, :, -1].float()], 1))
        return out

    @property
    def vocabulary(self) -> int:
        """Tokens that the model has embeddings of."""
        return len(self.model.get_input_embeddings().weight)

    def before_rope(self, kv: npt.NDArray[np.float16]) -> torch.Tensor:
        """A layer of a text, `[tokens, 2, kv_heads, d]`, without rotary positions."""
        k, v = torch.from_numpy(np.ascontiguousarray(kv)).to(self.device).float()
        return torch.stack([self.rotation.turn(k, back=True), v], 1)

    def cache_of(self, kv: Sequence[torch.Tensor]) -> DynamicCache:
        """kv: for each layer and part, `[kv_heads, tokens, head_dim]`."""
        cache = DynamicCache()
        for layer in range(self.spec.layers):
            k, v = (x[None].to(self.model.dtype) for x in kv[2 * layer : 2 * layer + 2])
            cache.update(k, v, layer)
        return cache

    def past(self, kv: npt.NDArray[np.float16], prefix: int) -> list[torch.Tensor]:
        """The leading tokens of what `read` gave, as `cache_of` takes them."""
        slabs = (slab[:prefix].swapaxes(0, 1) for slab in kv.reshape(-1, *kv.shape[2:]))
        tensors = (torch.from_numpy(np.ascontiguousarray(slab)) for slab in slabs)
        return [tensor.to(self.device).float() for tensor in tensors]

    def gradients(
        self,
        kv: npt.NDArray[np.float16],
        tokens: Sequence[int],
        prefix: int,
        uniform: npt.NDArray[np.float64],
    ) -> Iterator[npt.NDArray[np.float16]]:
        """Gradients of the log likelihood of labels that the model itself draws.

        tokens: those that follow the `prefix` tokens of K and V.
        uniform: one number in [0, 1) for each draw and token.
        Gives for each draw `[layers, 2, prefix, kv_heads, head_dim]`, by K before RoPE and by V, in
        units of 1 / UNIT.
        """
        leaves = [x.requires_grad_() for x in self.past(kv, prefix)]
        log_p = torch.log_softmax(self.logits(tokens, self.cache_of(leaves), prefix, 0).float(), -1)
        sums = log_p.detach().double().exp().cumsum(-1)
        for draw, numbers in enumerate(uniform):
            u = torch.from_numpy(numbers[: len(tokens), None]).to(self.device)
            labels = (sums < u * sums[:, -1:]).sum(-1)
            # What follows the window is not judged.
            likelihood = log_p.gather(1, labels[:, None])[:-1].sum()
            more = draw + 1 < len(uniform)
            found = torch.autograd.grad(likelihood, leaves, retain_graph=more)
            parts = [x.transpose(0, 1) for x in found]
            parts[::2] = [self.rotation.turn_gradient_back(x) for x in parts[::2]]
            g = torch.stack(parts).view(self.spec.layers, 2, *parts[0].shape) * UNIT
            yield g.clamp(-_LARGEST, _LARGEST).to(torch.float16).cpu().numpy()

    def log_probs(self, tokens: Sequence[int], past: Sequence[torch.Tensor]) -> torch.Tensor:
        """Of what follows each of `tokens` but the last, which follow the past."""
        with torch.no_grad():
            logits = self.logits(tokens, self.cache_of(past), past[0].shape[1], 0)
            return torch.log_softmax(logits.float(), -1)[:-1]

    def output_metrics(self) -> torch.Tensor:
        """W_O^T W_O of the heads that read each V, `[layers, kv_heads, d, d]`."""
        heads, dim, out = self.spec.kv_heads, self.spec.head_dim, []
        modules = dict(self.model.named_modules())
        for layer in range(self.spec.layers):
            end = f"layers.{layer}.self_attn.o_proj"
            found = (m.weight for name, m in modules.items() if name.endswith(end))
            weight: Any = next(found, None)
            plain = weight is not None and weight.dtype.is_floating_point
            if not plain or weight.shape[1] % (heads * dim):
                raise ValueError(f"MODEL: the weights of {end} are quantized, or not there")
            w = weight.float().view(len(weight), heads, -1, dim)
            out.append(torch.einsum("ohgd,ohge->hde", w, w))
        return torch.stack(out)


def load(name: str, device: str, dtype: str) -> tuple[Subject, Any]:
    """The model and its tokenizer.

    Raises ValueError, which names the argument, for a model that is not there or not supported.
    """
    place = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=place)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device: {device}: {error}") from None
    disable_progress_bar()  # type: ignore[no-untyped-call]
    wanted: Any = "auto" if dtype == "auto" else getattr(torch, dtype)
    if dtype == "auto" and place == "cpu":
        wanted = torch.float32
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=wanted)
    except (OSError, ValueError) as error:
        raise ValueError(f"MODEL: {name}: {error}") from None
    return Subject(model.to(place)), tokenizer


def leading_tokens(tokenizer: Any) -> list[int]:
    """What the tokenizer puts before a text: the token that begins one, or nothing."""
    found = tokenizer("a")["input_ids"]
    return list(found[:1]) if found and found[0] == tokenizer.bos_token_id else []
