"""What each token of a vocabulary says of its K and V, for kernels/calibration/vocabulary.h.

The model runs on each token alone, behind the token that begins texts. V of the first layer is the
same in any text: a signature of it finds the token again in a page. Features are the leading
principal components of the K and V of all layers, in the metrics of what the model feels. K and V
in a text are foretold from them: `kvstow codec calibrate` fits how.

Needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kvstow.calibrate.model import Subject
from kvstow.calibrate.statistics import Stats, roots

PREFIX = "vocabulary."
BATCH = 256  # tokens that run side by side

_FEATURES = 256
_SKETCH = 2 * _FEATURES  # random projections that features are taken of (Halko et al., 2011)
_SIGNATURE = 16
_KNOWN = 1 / 64  # of the spread of V: how near a token must come to itself in a text
_LEAST_KNOWN = 0.9  # share of a text's tokens


def of_model(
    subject: Subject, stats: Stats, before: Sequence[int], advance: Callable[[], None]
) -> Stats:
    """The tensors `vocabulary.*` of a model. Calls `advance` after each BATCH of tokens.

    before: the tokens that each token stands behind, at least one.
    """
    spec = subject.spec
    whitening = [_whitening(subject, stats, layer) for layer in range(spec.layers)]
    generator = torch.Generator().manual_seed(1)
    width = 2 * spec.kv_heads * spec.head_dim
    directions = [torch.randn(width, _SKETCH, generator=generator) for _ in range(spec.layers)]
    directions = [x.to(subject.device) for x in directions]
    sketch, first = [], []
    for start in range(0, subject.vocabulary, BATCH):
        ids = range(start, min(start + BATCH, subject.vocabulary))
        states = subject.alone(ids, before)
        first.append(states[0][:, 1].flatten(1).cpu())
        of_layers = [
            torch.einsum("tphd,phde->tphe", x, root).flatten(1) @ omega
            for x, root, omega in zip(states, whitening, directions, strict=True)
        ]
        sketch.append(torch.stack(of_layers).sum(0).cpu())
        advance()
    projection, _ = _components(torch.cat(first), _SIGNATURE)
    _, features = _components(torch.cat(sketch), _FEATURES)
    signatures = torch.cat(first) @ projection.T
    scale = signatures.abs().max()
    out = {"projection": projection / scale, "signatures": signatures / scale, "features": features}
    return {PREFIX + name: x.contiguous().numpy() for name, x in out.items()}


def tells(
    subject: Subject, before: Sequence[int], v: torch.Tensor, tokens: Sequence[int]
) -> bool:
    """Whether V of the first layer, `[tokens, kv_heads, d]`, tells which tokens a text has.

    It does not where a model adds positions to embeddings.
    """
    alone = subject.alone(tokens, before)[0][:, 1].flatten(1)
    away = (v.to(alone).flatten(1) - alone).square().sum(1)
    spread = alone.var(0).sum()
    return bool((away < _KNOWN * spread).float().mean() > _LEAST_KNOWN)


def _whitening(subject: Subject, stats: Stats, layer: int) -> torch.Tensor:
    """`[2, kv_heads, d, d]`: makes errors that cost the same equally large."""
    metric = torch.stack([torch.from_numpy(stats[f"metric_{x}.{layer}"]) for x in "kv"]).double()
    gain = torch.stack([torch.from_numpy(stats[f"gain_{x}"][layer]) for x in "kv"]).double()
    return roots(metric * gain[..., None, None] ** 2)[0].float().to(subject.device)


def _components(x: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Leading principal directions `[n, width]` of the rows of x, and the rows along them."""
    centred = x - x.mean(0)
    _, vectors = torch.linalg.eigh((centred.T @ centred).double())
    directions = vectors.flip(1)[:, :most].T.float()
    return directions, centred @ directions.T
