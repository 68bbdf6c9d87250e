"""Maps from K and V of a token to its queries, for kernels/calibration/query_maps.h.

A layer makes all three out of one hidden state, so a regression of queries on K and V finds most of
them. Coders need not be told then what a page's queries attend to.

Needs torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

_EVERY = 3  # layers have a map; what is between them follows from both
_HEADS = 2  # query heads of a KV head, at most
_RIDGE = 1e-3  # of each value's own energy


def mapped_layers(layers: int) -> Sequence[int]:
    """The layers that get a map, evenly spread."""
    count = -(-layers // _EVERY)
    return [(2 * i + 1) * layers // (2 * count) for i in range(count)]


def chosen(queries: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """The query heads that get a map, of queries `[tokens, heads, d]`."""
    tokens, _, dim = queries.shape
    return queries.view(tokens, kv_heads, -1, dim)[:, :, :_HEADS].flatten(1, 2)


def regress(texts: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """The map of a layer, `[queries, values + 1]`: the last column is the constant.

    texts: of each, K before RoPE and V `[tokens, values]`, and scaled queries `[tokens, queries]`.
    """
    moments = products = torch.zeros(1, dtype=torch.float64)
    for x, y in texts:
        x = torch.cat([x, torch.ones_like(x[:, :1])], 1).double()
        moments = moments.to(x.device) + x.T @ x
        products = products.to(x.device) + x.T @ y.double()
    held = (_RIDGE * moments.diagonal()).clamp(min=1e-9)
    weights: torch.Tensor = torch.linalg.solve(moments + torch.diag(held), products)
    return weights.T.float()
