"""Mean queries of layers, for kernels/calibration/query_means.h.

Which tokens get attention depends little on who asks. A coder lets the mean query of a head ask, and
need not be told what a page's queries attend to.

Needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_EVERY = 3  # layers have queries; what is between them follows from both
_HEADS = 2  # query heads of a KV head, at most


def asking_layers(layers: int) -> Sequence[int]:
    """The layers whose queries ask, evenly spread."""
    count = -(-layers // _EVERY)
    return [(2 * i + 1) * layers // (2 * count) for i in range(count)]


def chosen(queries: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """The query heads that ask, of queries `[tokens, heads, d]`."""
    tokens, _, dim = queries.shape
    return queries.view(tokens, kv_heads, -1, dim)[:, :, :_HEADS].flatten(1, 2)
