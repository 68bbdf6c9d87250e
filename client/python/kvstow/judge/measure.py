"""What one text costs: the model behind K and V that came back, and behind those that went in.

Needs torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kvstow.client import Space
from kvstow.judge.verdict import Cost
from kvstow.lm import LanguageModel
from kvstow.types import KvSpec, Page

_TORCH_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_BITS = {2: torch.int16, 4: torch.int32}  # of a dtype, as numpy can have them


@dataclasses.dataclass(frozen=True)
class Text:
    """A text, and what the model makes of it."""

    name: str
    kv: npt.NDArray[np.float16]  # of its leading tokens: [layers, 2, tokens, kv_heads, head_dim]
    window: Sequence[int]  # tokens that follow
    log_p: torch.Tensor  # of what comes next in the window, with K and V as they are

    @property
    def tokens(self) -> int:
        return int(self.kv.shape[2])


def read(model: LanguageModel, name: str, tokens: Sequence[int], prefix: int) -> Text:
    """Runs the model over `prefix` tokens of a text, and over those that follow."""
    kv = model.states(tokens[:prefix])
    window = tokens[prefix:]
    return Text(name, kv, window, model.log_probs(window, model.past(kv, prefix)))


def put(space: Space, kv: npt.NDArray[np.float16], name: str) -> list[bytes]:
    """Puts K and V of a text, whose keys begin with `name`. Returns the keys of its pages.

    Raises RuntimeError where a page is not stored.
    """
    size = space.spec.page_tokens
    firsts = range(0, kv.shape[2], size)
    keys = [f"{name} {at}".encode() for at in firsts]
    cuts = [_as_stored(kv[:, :, at : at + size], space.spec) for at in firsts]
    pages = [
        Page(key, cut, first_position=at) for key, cut, at in zip(keys, cuts, firsts, strict=True)
    ]
    for result in space.put(pages):
        if not result.stored:
            raise RuntimeError(f"a page was not stored: {result.outcome}: {result.message}")
    return keys


def cost(model: LanguageModel, space: Space, text: Text, keys: Sequence[bytes]) -> Cost:
    """Gets the pages of a text back, and lets the model read on behind them.

    Raises RuntimeError where a page does not come back.
    """
    size = space.spec.page_tokens
    shapes = [text.kv[:, :, at : at + size].shape for at in range(0, text.tokens, size)]
    back = [np.empty(shape, space.spec.numpy_dtype()) for shape in shapes]
    stored = 0
    for got in space.get(keys, back):
        if not got.hit:
            raise RuntimeError(f"a page did not come back: {got.outcome}: {got.message}")
        stored += got.stored_bytes
    coded = np.concatenate([_as_read(page, space.spec) for page in back], axis=2)
    log_p = model.log_probs(text.window, model.past(coded, text.tokens))
    return Cost(
        stored / text.kv.nbytes,
        (text.log_p.exp() * (text.log_p - log_p)).sum(-1).mean().item(),
        (text.log_p.argmax(-1) == log_p.argmax(-1)).float().mean().item(),
    )


def _as_stored(kv: npt.NDArray[np.float16], spec: KvSpec) -> npt.NDArray[Any]:
    """K and V in the dtype of a space; bfloat16 as numpy has it, in bits."""
    dtype = _TORCH_TYPES[spec.dtype]
    bits = torch.from_numpy(np.ascontiguousarray(kv)).to(dtype).view(_BITS[dtype.itemsize])
    return bits.numpy().view(spec.numpy_dtype())


def _as_read(page: npt.NDArray[Any], spec: KvSpec) -> npt.NDArray[np.float16]:
    dtype = _TORCH_TYPES[spec.dtype]
    bits = page.view(np.dtype(f"i{dtype.itemsize}"))
    return torch.from_numpy(bits).view(dtype).to(torch.float16).numpy()


def can_hold(spec: KvSpec) -> bool:
    """Whether pages of this dtype can be judged."""
    return spec.dtype in _TORCH_TYPES
