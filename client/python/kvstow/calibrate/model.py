"""What a calibration needs of a model: its queries, single tokens, and gradients by K and V.

Needs torch and transformers. Which models it takes is kvstow.hf's to say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache

from kvstow import hf
from kvstow.calibrate import forward, queries
from kvstow.calibrate.rotation import rotations_of
from kvstow.lm import LARGEST, LanguageModel

FIRST = 4  # tokens that lie outside every distribution
UNIT = 64  # gradients are kept as float16 in units of 1 / UNIT


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a model makes of a text."""

    kv: npt.NDArray[np.float16]  # [layers, 2, tokens, kv_heads, head_dim], K after RoPE
    queries: npt.NDArray[np.float32]  # E[q q^T] before RoPE, [layers, kv_heads, d, d]
    entropy: npt.NDArray[np.float64]  # what forward.entropy_model gives, of the last layer
    # Mean queries before RoPE, scaled as logits are: [asking layers, heads, d]. See `queries`.
    asked: npt.NDArray[np.float64]


class Subject(LanguageModel):
    """A model that is calibrated.

    Raises ValueError for a model that kvstow.hf does not know.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.rotations = rotations_of(self.spec)
        kinds = hf._layer_kinds(self.config)
        self._views = [self.config.sliding_window if k == "sliding_attention" else 0 for k in kinds]

    def first_felt(self, layer: int, prefix: int, window: int) -> int:
        """The first token of a prefix that at least half of the window after it sees.

        Layers with a sliding view do not see all of them.
        """
        view = self._views[layer]
        if not view:
            return FIRST
        return max(FIRST, prefix + 1 - view + min(window, view) // 2)

    def read(self, tokens: Sequence[int]) -> Reading:
        """Runs the model over a text. Errors are those of `states`."""
        heads, dim = self.spec.kv_heads, self.spec.head_dim
        sums = torch.zeros(self.spec.layers, heads, dim, dim, device=self.device)
        entropy: list[torch.Tensor] = []  # of each piece that ran
        asked = {layer: torch.zeros(1) for layer in queries.asking_layers(self.spec.layers)}

        def watch(layer: int, seen: hf.Seen) -> None:
            start = sum(map(len, entropy))
            q = seen.query[0].transpose(0, 1).float()
            q = self.rotations[layer].turn(q, start, back=True)
            q = q[max(FIRST - start, 0) :]
            if layer in asked:
                total = queries.chosen(q, heads).double().sum(0) * seen.scale
                asked[layer] = asked[layer].to(total.device) + total
            q = q.reshape(-1, heads, q.shape[1] // heads, dim)
            sums[layer] += torch.einsum("thgd,thge->hde", q, q) / q.shape[2]

        with hf._watched(self.model, watch):
            states = self.states(tokens, lambda logits: entropy.append(forward.entropy_of(logits)))
        last = self.before_rope(states[-1], self.spec.layers - 1)
        foretold = forward.entropy_model(last[FIRST:], torch.cat(entropy)[FIRST:])
        moments = (sums / (len(tokens) - FIRST)).cpu().numpy()
        means = torch.stack([x.cpu() for x in asked.values()]) / (len(tokens) - FIRST)
        return Reading(states, moments, foretold.numpy(), means.numpy())

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
        for (k, v), rotation in zip(hf._states(cache), self.rotations, strict=True):
            heads = k[:, :, -1].float()  # [tokens, kv_heads, d]
            turned = rotation.turn(heads.reshape(1, -1, heads.shape[2]), len(before), back=True)
            out.append(torch.stack([turned.reshape(heads.shape), v[:, :, -1].float()], 1))
        return out

    @property
    def vocabulary(self) -> int:
        """Tokens that the model has embeddings of."""
        return len(self.model.get_input_embeddings().weight)

    def before_rope(self, kv: npt.NDArray[np.float16], layer: int) -> torch.Tensor:
        """This layer of a text, `[tokens, 2, kv_heads, d]`, without rotary positions."""
        k, v = torch.from_numpy(np.ascontiguousarray(kv)).to(self.device).float()
        return torch.stack([self.rotations[layer].turn(k, back=True), v], 1)

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
            keys = zip(parts[::2], self.rotations, strict=True)
            parts[::2] = [rotation.turn_gradient_back(x) for x, rotation in keys]
            g = torch.stack(parts).view(self.spec.layers, 2, *parts[0].shape) * UNIT
            yield g.clamp(-LARGEST, LARGEST).to(torch.float16).cpu().numpy()

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
