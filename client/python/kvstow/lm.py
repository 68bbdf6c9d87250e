"""A model of transformers that runs over texts: its K and V, and what it foretells behind them.

`kvstow-calibrate` and `kvstow-judge` run models by it. Needs torch and transformers. Which models it
takes is kvstow.hf's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils.logging import disable_progress_bar

from kvstow import hf
from kvstow.types import KvSpec

LARGEST = 60000.0  # that float16 holds with room to spare
_CHUNK = 512  # tokens of a forward pass over a text


class LanguageModel:
    """A causal model, which does not learn.

    Raises ValueError for a model that kvstow.hf does not know.
    """

    def __init__(self, model: Any) -> None:
        self.spec: KvSpec = hf.spec_of(model)
        self.config = hf._text_config(model)
        self.model = model.eval().requires_grad_(False)
        self.device: torch.device = model.get_input_embeddings().weight.device
        self._cache_name = hf._cache_name(model)

    @property
    def token_bytes(self) -> int:
        """K and V of a token in float16."""
        return 4 * self.spec.layers * self.spec.kv_heads * self.spec.head_dim

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
        if not largest < LARGEST:
            raise ValueError(f"model: K or V reach {largest:g}, which float16 cannot hold")
        return kv.transpose(2, 3).to(torch.float16).cpu().contiguous().numpy()

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

    def log_probs(self, tokens: Sequence[int], past: Sequence[torch.Tensor]) -> torch.Tensor:
        """Of what follows each of `tokens` but the last, which follow the past."""
        with torch.no_grad():
            logits = self.logits(tokens, self.cache_of(past), past[0].shape[1], 0)
            return torch.log_softmax(logits.float(), -1)[:-1]


def load(name: str, device: str, dtype: str) -> tuple[Any, Any]:
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
    return model.to(place), tokenizer


def leading_tokens(tokenizer: Any) -> list[int]:
    """What the tokenizer puts before a text: the token that begins one, or nothing."""
    found = tokenizer("a")["input_ids"]
    return list(found[:1]) if found and found[0] == tokenizer.bos_token_id else []
