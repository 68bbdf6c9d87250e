"""What a model feels of errors in its K and V: `--model-stats` of `kvstow codec calibrate`.

How, and why so: docs/decisions/0021-what-the-model-feels.md. In short: a first metric from queries
and the output projection, with gains probed by noise. Then gradients g, whose E[g g^T] is the
Fisher metric. Both are weighed against each other. scripts/model_stats.py does the same in numpy.
Without gradients the module `forward` takes its place.

Needs torch. Vectors of a layer are `[tokens, 2 * kv_heads * d]`: K before RoPE, and V.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from kvstow.calibrate.forward import FOCUS, Felt, over_its_mean, slopes
from kvstow.calibrate.model import FIRST, UNIT, Subject
from kvstow.calibrate.plan import Plan
from kvstow.calibrate.work import Work

_PROBE_SIZE = 0.32  # of noise, times the text's own values
_LEAST = 0.5  # components that spread less are left out of the forecast of sensitivities
_LEADING = 48  # components that the forecast sees one by one
_RIDGE = 600.0  # of that forecast
_LIMIT = 8  # steps go down with sensitivity^(FOCUS / 2), by 2^(_LIMIT / 4) at most
_OWN = 0.7  # weight of the Fisher metric; the first metric has the rest

Stats: TypeAlias = dict[str, npt.NDArray[np.float32]]
# One entry a text and prefix: the text, those of its vectors that feel something, gradients by them.
Gradients: TypeAlias = Sequence[tuple[int, slice, Sequence[torch.Tensor]]]


def text_name(text: int) -> str:
    return f"text-{text:04}"


def gradient_name(text: int, prefix: int, draw: int) -> str:
    return f"gradients-{text:04}-{prefix}-{draw}"


def trace(m: torch.Tensor) -> torch.Tensor:
    return m.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]


def roots(m: torch.Tensor, floor: float = 1e-3) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric square roots of m and of its inverse, small eigenvalues lifted."""
    e, u = torch.linalg.eigh(m)
    e = e.maximum(floor * e.mean(-1, keepdim=True)).sqrt()[..., None, :]
    return (u * e) @ u.mT, (u / e) @ u.mT


# The first metric: queries for K, the output projection for V, gains by trial.


def first_metric(subject: Subject, queries: torch.Tensor) -> torch.Tensor:
    """`[layers, 2, kv_heads, d, d]`, trace d but for small eigenvalues, which are lifted.

    queries: E[q q^T] before RoPE, `[layers, kv_heads, d, d]`, float64.
    """
    each = zip(queries, subject.rotations, strict=True)
    k = torch.stack([rotation.seen_from_afar(x) for x, rotation in each])
    v = subject.output_metrics().double()
    metric = torch.stack([k, v.to(k.device)], 1)
    lifted = roots(metric / trace(metric) * subject.spec.head_dim)[0]
    return lifted @ lifted


def _probe_sizes(subject: Subject, plan: Plan, work: Work, metric: torch.Tensor) -> torch.Tensor:
    """`[layers, 2, kv_heads]`: how large noise in the metric is in the first text."""
    root, out = roots(metric)[0].float(), []
    for layer in range(subject.spec.layers):
        sums, count, first = torch.zeros(1), 0, None
        for text in range(plan.cases):
            x = subject.before_rope(work.load(text_name(text))[layer], layer)[FIRST:]
            first = x[: plan.probed - FIRST] if first is None else first
            sums, count = sums.to(x.device) + x.sum(0, dtype=torch.float64), count + len(x)
        assert first is not None
        centred = first - (sums / count).float()
        whitened = torch.einsum("tphd,phde->tphe", centred, root[layer])
        out.append(_PROBE_SIZE * whitened.std((0, 3), correction=0))
    return torch.stack(out)


def probe(
    subject: Subject,
    plan: Plan,
    work: Work,
    metric: torch.Tensor,
    tokens: Sequence[int],
    advance: Callable[[], None],
) -> torch.Tensor:
    """`[layers, 2, kv_heads]`: sqrt(KL divergence) by one unit of noise in one place.

    tokens: those of the first text.
    """
    sizes, inverse = _probe_sizes(subject, plan, work, metric), roots(metric)[1]
    past = subject.past(work.load(text_name(0)), plan.probed)
    window = tokens[plan.probed : plan.probed + plan.probe_window]
    base = subject.log_probs(window, past)
    random = np.random.default_rng(5)
    gain = torch.empty(sizes.shape, dtype=torch.float64)
    layers, _, heads = sizes.shape
    for part, layer, head in itertools.product(range(2), range(layers), range(heads)):
        drawn = random.standard_normal((plan.probed, subject.spec.head_dim)).astype(np.float32)
        noise = torch.from_numpy(drawn).to(sizes.device) * sizes[layer, part, head]
        noise = (noise.double() @ inverse[layer, part, head]).float()[:, None]
        noise[:FIRST] = 0
        changed = list(past)
        slab = past[2 * layer + part].clone()
        slab[head] += (noise if part else subject.rotations[layer].turn(noise))[:, 0]
        changed[2 * layer + part] = slab.half().float()  # as in a cache
        got = subject.log_probs(window, changed)
        divergence = (base.exp() * (base - got)).sum(-1).mean().item()
        gain[layer, part, head] = math.sqrt(max(divergence, 1e-7)) / sizes[layer, part, head].item()
        advance()
    return gain


def smooth(gain: torch.Tensor) -> torch.Tensor:
    """A probe is noisy: heads drawn to their layer, layers to their neighbours."""
    log = gain.log()
    log = (log + log.mean(2, keepdim=True)) / 2
    edge = torch.cat([log[:1], log, log[-1:]])
    return (0.5 * log + 0.25 * (edge[:-2] + edge[2:])).exp()


# The statistics of a layer, from gradients.


class Basis:
    """Principal components in the first metric, a unit being .01 of sqrt(KL divergence)."""

    def __init__(self, texts: Sequence[torch.Tensor], metric: torch.Tensor) -> None:
        """metric: `[2, kv_heads, d, d]`, with the squares of its gains."""
        x = torch.cat(list(texts))[::2]
        self.mean = x.mean(0, dtype=torch.float64).float()
        x = x - self.mean
        cov = (x.T @ x / len(x)).double()
        blocks = [r.flatten(0, 1) for r in roots(metric)]
        forward = torch.block_diag(*blocks[0]) * 100  # type: ignore[no-untyped-call]
        back = torch.block_diag(*blocks[1]) / 100  # type: ignore[no-untyped-call]
        u = torch.linalg.eigh(forward @ cov @ forward)[1].flip(1)
        encode = forward @ u
        sigma = ((encode.T @ cov) * encode.T).sum(1).clamp(min=1e-8).sqrt()
        rank = max(8, int((sigma > _LEAST).sum()))
        self.encode, self.sigma = encode[:, :rank].float(), sigma[:rank].float()
        self.decode = (u.T @ back)[:rank].float()

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """What the forecast sees of each token, of itself only."""
        z = (x - self.mean) @ self.encode / self.sigma
        v = z[:, :_LEADING].clamp(-4, 4)
        parts = z[:, : max(z.shape[1] // 4, 1)], z
        energy = [((a**2).mean(1, keepdim=True) + 1e-3).log() for a in parts]
        return torch.cat([v, v**2 - 1, *energy, torch.ones_like(z[:, :1])], 1)


def ridge(features: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> torch.Tensor:
    a = torch.cat(list(features)).double()
    y = torch.cat([t - t.mean() for t in targets]).double()
    scale = a.std(0, correction=0).clamp(min=1e-3)
    scale[-1] = 1  # the constant
    a = a / scale
    held = _RIDGE * torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
    held[-1, -1] = 0
    weights: torch.Tensor = torch.linalg.solve(a.T @ a + held, a.T @ y)
    return weights / scale


def token_steps(log_sensitivity: torch.Tensor) -> torch.Tensor:
    """Steps as the codec would take them, quarter octaves, of mean 1."""
    k = (-FOCUS / 2 * log_sensitivity / math.log(2) * 4).round().clamp(-_LIMIT, _LIMIT)
    return torch.exp2((k - k.mean()) / 4)


def tempered(g: torch.Tensor) -> torch.Tensor:
    """Each token's gradient in a head scaled to about the root of its size, the mean energy kept.

    g: `[tokens, 2, kv_heads, d]`
    """
    e = (g**2).sum(-1, keepdim=True)
    mean = e.mean(0)
    q = (e / mean + 0.02) ** -0.5
    return g * (q / (q * e / mean).mean(0)).sqrt()


def _moments(g: torch.Tensor) -> torch.Tensor:
    return torch.einsum("tphd,tphe->phde", g, g).double()


@dataclasses.dataclass(frozen=True)
class LayerStats:
    plain: torch.Tensor  # E[g g^T], [2, kv_heads, d, d]
    fisher: torch.Tensor  # the same of tempered g
    sensitivity: list[torch.Tensor]  # of the tokens of each text from FIRST on
    slope: torch.Tensor  # of its logarithm, [2, kv_heads, d]


def layer_statistics(
    texts: Sequence[torch.Tensor], gradients: Gradients, metric: torch.Tensor
) -> LayerStats:
    """texts: vectors of each, from FIRST on."""
    basis, shape = Basis(texts, metric), metric.shape[:3]
    energies = [
        torch.stack([((g @ basis.decode.T) ** 2).sum(1) for g in draws]).sum(0)
        for _, _, draws in gradients
    ]
    features = [basis.features(texts[i][felt]) for i, felt, _ in gradients]
    weights = ridge(features, [(e + 1e-12).log() for e in energies]).float()
    plain = fisher = torch.zeros(1, dtype=torch.float64, device=metric.device)
    count = 0
    for (_, felt, draws), f in zip(gradients, features):
        steps = token_steps(f @ weights)[:, None]
        for g in draws:
            g = (g * steps).view(-1, *shape)
            plain, fisher = plain + _moments(g), fisher + _moments(tempered(g))
            count += felt.stop  # tokens before those that feel something feel nothing
    shortest = min(len(e) for e in energies)
    sums = [torch.zeros(len(t), device=t.device) for t in texts]
    known = [torch.zeros(len(t), device=t.device) for t in texts]
    for (i, felt, _), e in zip(gradients, energies):
        sums[i][felt] += e / (e[:shortest] + 1e-12).log().mean().exp()
        known[i][felt] += 1
    mean = [s / k.clamp(min=1) for s, k in zip(sums, known)]
    each = [slopes(x.view(-1, *shape), s) for x, s in zip(texts, mean)]
    return LayerStats(plain / count, fisher / count, mean, torch.stack(each).mean(0))


def _read_layer(
    subject: Subject, plan: Plan, work: Work, layer: int
) -> tuple[list[torch.Tensor], Gradients]:
    texts, gradients = [], []
    for text in range(plan.cases):
        x = subject.before_rope(work.load(text_name(text))[layer], layer)[FIRST:].half().float()
        texts.append(x.reshape(len(x), -1))
        for prefix in plan.prefixes:
            first, draws = subject.first_felt(layer, prefix, plan.window), []
            for draw in range(plan.draws):
                g = work.load(gradient_name(text, prefix, draw))[layer, :, first:]
                g = g.swapaxes(0, 1).reshape(prefix - first, -1).astype(np.float32) / UNIT
                draws.append(torch.from_numpy(g).to(subject.device))
            gradients.append((text, slice(first - FIRST, prefix - FIRST), draws))
    return texts, gradients


def of_felt(felt: Felt) -> Stats:
    """felt: as `kvstow.calibrate.forward` finds it."""
    cost = felt.cost
    size = trace(cost).clamp(min=1e-6 * trace(cost).mean())
    metric, gain = cost / size * cost.shape[-1], size[..., 0, 0].sqrt()
    out = {"gain_k": _array(gain[:, 0]), "gain_v": _array(gain[:, 1])}
    for layer, part in itertools.product(range(len(metric)), range(2)):
        out[f"metric_{'kv'[part]}.{layer}"] = _array(metric[layer, part])
        out[f"slope_{'kv'[part]}.{layer}"] = _array(felt.slope[layer, part])
    out["entropy"] = _array(over_its_mean(felt.entropy))
    return out


def with_gradients(
    subject: Subject,
    plan: Plan,
    work: Work,
    first: torch.Tensor,
    entropy: torch.Tensor,
    advance: Callable[[], None],
) -> Stats:
    """What gradients of all texts say.

    first: the first metric, with the squares of its gains, `[layers, 2, kv_heads, d, d]`.
    entropy: what `kvstow.calibrate.forward.entropy_model` gives.
    """
    out: Stats = {"entropy": _array(over_its_mean(entropy))}
    sizes, felt = [], []
    for layer in range(subject.spec.layers):
        texts, gradients = _read_layer(subject, plan, work, layer)
        found = layer_statistics(texts, gradients, first[layer])
        metric = _OWN * found.fisher / trace(found.fisher)
        metric = metric + (1 - _OWN) * first[layer] / trace(first[layer])
        for part, name in enumerate("kv"):
            out[f"metric_{name}.{layer}"] = _array(metric[part] * subject.spec.head_dim)
            out[f"slope_{name}.{layer}"] = _array(found.slope[part])
        sizes.append(trace(found.plain)[..., 0, 0])
        felt.append(torch.cat([torch.nn.functional.pad(s, (FIRST, 0)) for s in found.sensitivity]))
        advance()
    # Gradients tell one place from another, the probes how much in all.
    log = torch.stack(sizes).log()
    probed = (trace(first) / subject.spec.head_dim).log().mean()
    gain = ((log - log.mean() + probed) / 2).exp()
    out["gain_k"], out["gain_v"] = _array(gain[:, 0]), _array(gain[:, 1])
    out["sensitivity"] = _array(torch.stack(felt, 1))
    return out


def _array(x: torch.Tensor) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(x.detach().cpu().numpy(), np.float32)
