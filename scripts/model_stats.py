#!/usr/bin/env python3
"""Measures how a model feels errors in its KV cache: STATS of `kvstow codec calibrate --model-stats`.

    model_stats.py --model M.gguf --work DIR --out STATS CASE...

Needs `pip install gguf numpy safetensors` and a model of the llama architecture. CASEs are the
calibration texts, in the order in which `codec calibrate` gets them: safetensors files with, for
each layer L,
  k.L, v.L   [tokens, kv_heads, d]   K after RoPE, channel i paired with i + d / 2
  qq.L       [heads, d, d]           E[q q^T] of the text's queries before RoPE
  tokens     the text, at least as long as K and V
STATS holds, float32, for each layer L,
  metric_k.L, metric_v.L   [kv_heads, d, d]    which directions of an error cost; K before RoPE
  gain_k, gain_v           [layers, kv_heads]  sqrt(KL divergence) of one unit in that metric
  slope_k.L, slope_v.L     [kv_heads, d]    how the logarithm of a token's sensitivity grows
  sensitivity              [tokens of all cases, layers]  squared gradients; 0: not known

How, and why so: docs/decisions/0021-what-the-model-feels.md. In short: a first metric from queries
and the output projection, with gains probed by noise; gradients g of the log likelihood of labels
drawn from the model, whose E[g g^T] is the Fisher metric; both weighed against each other. What
the model was run for is kept in DIR (a gigabyte and a half for 12 texts of SmolLM2-135M) and not
run again: one DIR for one model, one list of CASEs and the same options.

`kvstow-calibrate` of the Python package makes the same statistics with torch, of any model that
kvstow.hf knows. This file is what its tests compare it with.

Example:

    model_stats.py --model smollm2.gguf --work gradients --out stats.safetensors cal/*.safetensors
"""
import argparse
import os
import sys
import time
from dataclasses import dataclass

import numpy as np

from llama_model import backward, drawn, forward, load_model, log_probs, rope

FIRST = 4           # tokens that the codec keeps apart
WINDOW = 256        # tokens after a prefix whose labels are drawn
UNIT = 64           # gradients are kept as float16 in units of 1 / UNIT
PROBED = 640        # tokens that get noise where gains are probed
LEAST = .5          # components that spread less are left out of the forecast of sensitivities
RIDGE = 600.        # of that forecast
SLOPE_RIDGE, LEAST_KNOWN = .5, 64   # of slopes: for each token; tokens that a text needs
FOCUS, LIMIT = .4, 8    # steps go down with sensitivity^(FOCUS / 2), by 2^(LIMIT / 4) at most
OWN = .7            # weight of the Fisher metric; the first metric has the rest


@dataclass
class Case:
    path: str
    name: str
    tokens: np.ndarray
    length: int     # tokens of K and V

    def get(self, name):
        from safetensors import safe_open
        with safe_open(self.path, "np") as file:
            return file.get_tensor(name).astype(np.float32)

    def before_rope(self, model, layer):
        """[length, 2, kv_heads, d]: K before RoPE, and V."""
        k = rope(self.get(f"k.{layer}"), model.theta, inverse=True)
        return np.stack([k, self.get(f"v.{layer}")], 1)

    def past(self, model, prefix):
        return [(self.get(f"k.{i}")[:prefix], self.get(f"v.{i}")[:prefix])
                for i in range(model.layers)]


START = time.time()


def say(*what):
    print(f"[{time.time() - START:6.0f} s]", *what, flush=True)


def load_case(path, model, least):
    from safetensors import safe_open
    with safe_open(path, "np") as file:
        shape = file.get_slice("k.0").get_shape()
        tokens = file.get_tensor("tokens").astype(np.int64)
    if shape[1:] != [model.kv_heads, model.head_dim] or len(tokens) < shape[0]:
        sys.exit(f"{path}: K of shape {shape} and {len(tokens)} tokens do not fit the model")
    if shape[0] < least or len(tokens) < least + 2:
        sys.exit(f"{path}: {shape[0]} tokens of K are too few; {least} are used, and more to judge")
    return Case(path, os.path.splitext(os.path.basename(path))[0], tokens, shape[0])


def save(path, array):
    np.save(path + ".tmp.npy", array)
    os.replace(path + ".tmp.npy", path)


def gradient_files(work, case, prefix, draws):
    return [f"{work}/{case.name}-{prefix}-{draw}.npy" for draw in range(draws)]


def make_gradients(model, cases, prefixes, draws, work):
    for prefix in prefixes:
        uniform = np.random.default_rng(1).random((len(cases), draws, WINDOW, 1))
        for i, case in enumerate(cases):
            files = gradient_files(work, case, prefix, draws)
            if all(os.path.exists(f) for f in files):
                continue
            state = []
            tokens = case.tokens[prefix : prefix + WINDOW]
            x = forward(model, tokens, case.past(model, prefix), state)
            log_p = log_probs(model, x)
            for file, u in zip(files, uniform[i]):
                g = backward(model, x, state, drawn(log_p, u[: len(x)])[1])
                save(file, (g * UNIT).astype(np.float16))
            say(f"gradients of {case.name} after {prefix} tokens, {draws} draws")


# The first metric: queries for K, the output projection for V, gains by trial.

def root(m, floor=1e-3):
    """Symmetric square roots of m and of its inverse, small eigenvalues lifted."""
    e, u = np.linalg.eigh(m)
    e = np.sqrt(np.maximum(e, floor * e.mean(-1, keepdims=True)))
    return (u * e[..., None, :]) @ u.swapaxes(-1, -2), (u / e[..., None, :]) @ u.swapaxes(-1, -2)


def trace(m):
    return np.trace(m, axis1=-2, axis2=-1)[..., None, None]


def seen_from_afar(qq, theta):
    """Mean of R(t)^T qq R(t) over distances t: how an error of K before RoPE shows in logits."""
    distances = np.unique(np.round(np.geomspace(1, 2048, 48)).astype(int))
    out = np.zeros_like(qq)
    for t in distances:
        r = rope(np.eye(len(qq))[None], theta, start=-t)[0].T
        out += r.T @ qq @ r
    return out / len(distances)


def first_metric(model, cases):
    """[layers, 2, kv_heads, d, d], trace d but for small eigenvalues, which are lifted."""
    d, group, metric = model.head_dim, model.heads // model.kv_heads, []
    for i in range(model.layers):
        qq = np.mean([c.get(f"qq.{i}").astype(np.float64) for c in cases], 0)
        qq = qq.reshape(model.kv_heads, group, d, d).mean(1)
        wo = model.w[f"blk.{i}.attn_output.weight"].reshape(-1, model.kv_heads, group, d)
        metric.append([[seen_from_afar(x, model.theta) for x in qq],
                       np.einsum("ohgd,ohge->hde", wo, wo, optimize=True)])
    metric = np.array(metric, np.float64)
    lifted = root(metric / trace(metric) * d)[0]
    return lifted @ lifted


def probe_noise(model, cases, case, roots, prefix, size=.32):
    """[layers, 2, kv_heads]: how large noise in the metric is, `size` times the text's values."""
    std = []
    for i in range(model.layers):
        x = [c.before_rope(model, i) for c in cases]
        mean = np.concatenate([y[FIRST:] for y in x]).mean(0)
        x = x[cases.index(case)][FIRST:prefix] - mean
        std.append(size * np.einsum("tphd,phde->tphe", x, roots[i]).std((0, 3)))
    return np.array(std)


def probe(model, cases, case, metric, prefix=PROBED, window=80):
    """[layers, 2, kv_heads]: sqrt(KL divergence) by one unit of noise in one place."""
    roots, inverses = root(metric)
    std = probe_noise(model, cases, case, roots, prefix)
    tokens, past = case.tokens[prefix : prefix + window], case.past(model, prefix)
    base = log_probs(model, forward(model, tokens, past))[:-1]
    rng, gain = np.random.default_rng(5), np.empty(std.shape)
    for part in range(2):
        for i in range(model.layers):
            for h in range(model.kv_heads):
                noise = rng.standard_normal((prefix, model.head_dim)).astype(np.float32)
                noise = (noise * std[i, part, h] @ inverses[i, part, h])[:, None].astype(np.float32)
                noise[:FIRST] = 0
                pair = [past[i][0].copy(), past[i][1].copy()]
                pair[part][:, h : h + 1] += noise if part else rope(noise, model.theta)
                pair = tuple(x.astype(np.float16).astype(np.float32) for x in pair)  # as in a cache
                changed = past[:i] + [pair] + past[i + 1:]
                got = log_probs(model, forward(model, tokens, changed))[:-1]
                kl = (np.exp(base) * (base - got)).sum(-1).mean()
                gain[i, part, h] = np.sqrt(max(kl, 1e-7)) / std[i, part, h]
            say(f"probed {'KV'[part]} of layer {i}")
    return gain


def smooth(gain):
    """A probe is noisy: heads drawn to their layer, layers to their neighbours."""
    log = np.log(gain)
    log = (log + log.mean(2, keepdims=True)) / 2
    edge = np.pad(log, ((1, 1), (0, 0), (0, 0)), mode="edge")
    return np.exp(.5 * log + .25 * (edge[:-2] + edge[2:]))


# The statistics of a layer. Vectors are [tokens, 2 * kv_heads * d].

class Basis:
    """Principal components in the first metric, a unit being .01 of sqrt(KL divergence)."""

    def __init__(self, texts, metric):
        x = np.concatenate(texts)[::2]
        self.mean = x.mean(0, dtype=np.float64).astype(np.float32)
        x = x - self.mean
        cov = x.T @ x / len(x)
        width, d = len(cov), metric.shape[-1]
        f, b = (np.zeros((width, width), np.float32) for _ in range(2))
        for n, (r, inverse) in enumerate(zip(*(m.reshape(-1, d, d) for m in root(metric)))):
            at = slice(n * d, n * d + d)
            f[at, at], b[at, at] = r * 100, inverse / 100
        u = np.linalg.eigh(f @ cov @ f)[1][:, ::-1]
        e = f @ u
        sigma = np.sqrt(np.maximum(((e.T @ cov) * e.T).sum(1), 1e-8))
        rank = max(8, int((sigma > LEAST).sum()))
        self.encode, self.decode, self.sigma = e[:, :rank], (u.T @ b)[:rank], sigma[:rank]

    def features(self, x, leading=48):
        """What the forecast sees of each token, of itself only."""
        z = (x - self.mean) @ self.encode / self.sigma
        v = np.clip(z[:, :leading], -4, 4)
        energy = [np.log((a ** 2).mean(1, keepdims=True) + 1e-3)
                  for a in (z[:, : max(z.shape[1] // 4, 1)], z)]
        return np.concatenate([v, v ** 2 - 1, *energy, np.ones((len(z), 1))], 1).astype(np.float32)


def ridge(features, targets):
    a = np.concatenate(features)
    y = np.concatenate([t - t.mean() for t in targets])
    scale = np.maximum(a.std(0), 1e-3)
    scale[-1] = 1       # the constant
    a = a / scale
    held = RIDGE * np.eye(a.shape[1])
    held[-1, -1] = 0
    return np.linalg.solve(a.T @ a + held, a.T @ y) / scale


def slopes(x, sensitivity):
    """How the logarithm of a token's sensitivity grows with its vector, of one text. 0: not known."""
    known = sensitivity > 0
    if known.sum() < LEAST_KNOWN:
        return np.zeros(x.shape[1])
    a, y = x[known].astype(np.float64), np.log(sensitivity[known].astype(np.float64))
    a, y = a - a.mean(0), y - y.mean()
    spread = a.std(0)
    spread = np.maximum(spread, 1e-3 * spread.mean() + 1e-30)
    a = a / spread
    return np.linalg.solve(a.T @ a + SLOPE_RIDGE * len(a) * np.eye(a.shape[1]), a.T @ y) / spread


def token_steps(log_sensitivity):
    """Steps as the codec would take them, quarter octaves, of mean 1."""
    k = np.round(-FOCUS / 2 * log_sensitivity / np.log(2) * 4).clip(-LIMIT, LIMIT)
    return (2 ** ((k - k.mean()) / 4)).astype(np.float32)


def tempered(g):
    """Each token's gradient in a head scaled to about the root of its size, the mean energy kept.

    g: [tokens, 2, kv_heads, d]"""
    e = (g ** 2).sum(-1, keepdims=True)
    mean = e.mean(0)
    q = (e / mean + .02) ** -.5
    return g * np.sqrt(q / (q * e / mean).mean(0))


def moments(g):
    return (g.transpose(1, 2, 3, 0) @ g.transpose(1, 2, 0, 3)).astype(np.float64)


def layer_statistics(texts, gradients, metric):
    """texts: vectors of each case from FIRST on. gradients: (case, [g of a draw]) of each prefix.

    Returns E[g g^T], the same of tempered g, and for each case its tokens' sensitivities."""
    basis, shape = Basis(texts, metric), metric.shape[:3]
    energies = [sum(((g @ basis.decode.T) ** 2).sum(1) for g in draws) for _, draws in gradients]
    features = [basis.features(texts[i][: len(e)]) for (i, _), e in zip(gradients, energies)]
    weights = ridge(features, [np.log(e + 1e-12) for e in energies])
    plain, fisher, count = 0, 0, 0
    for (_, draws), f in zip(gradients, features):
        steps = token_steps(f @ weights.astype(np.float32))[:, None]
        for g in draws:
            g = (g * steps).reshape(-1, *shape)
            plain, fisher, count = plain + moments(g), fisher + moments(tempered(g)), count + len(g)
    shortest = min(len(e) for e in energies)
    known, sums = [np.zeros(len(t)) for t in texts], [np.zeros(len(t)) for t in texts]
    for (i, _), e in zip(gradients, energies):
        sums[i][: len(e)] += e / np.exp(np.log(e[:shortest] + 1e-12).mean())
        known[i][: len(e)] += 1
    return plain / count, fisher / count, [s / np.maximum(k, 1) for s, k in zip(sums, known)]


def read_layer(model, cases, prefixes, draws, work, layer):
    """Of all cases, as layer_statistics takes them."""
    texts, gradients = [], []
    for case in cases:  # rounded, as for the figures in docs/CODECS.md: a gain moves by up to 1 %
        x = case.before_rope(model, layer)[FIRST:].astype(np.float16).astype(np.float32)
        texts.append(x.reshape(len(x), -1))
    for i, case in enumerate(cases):
        for prefix in prefixes:
            g = [np.load(f, mmap_mode="r")[layer, :, FIRST:].astype(np.float32) / UNIT
                 for f in gradient_files(work, case, prefix, draws)]
            gradients.append((i, [x.swapaxes(0, 1).reshape(prefix - FIRST, -1) for x in g]))
    return texts, gradients


def statistics(model, cases, prefixes, draws, work, first):
    """Tensors of STATS. first: [layers, 2, kv_heads, d, d], with the squares of its gains."""
    out, sizes, felt = {}, [], []
    for i in range(model.layers):
        texts, gradients = read_layer(model, cases, prefixes, draws, work, i)
        plain, fisher, sensitivity = layer_statistics(texts, gradients, first[i])
        metric = OWN * fisher / trace(fisher) + (1 - OWN) * first[i] / trace(first[i])
        for part, name in enumerate("kv"):
            out[f"metric_{name}.{i}"] = (metric[part] * model.head_dim).astype(np.float32)
        slope = np.mean([slopes(*text) for text in zip(texts, sensitivity)], 0)
        for name, of_part in zip("kv", slope.reshape(2, -1, model.head_dim)):
            out[f"slope_{name}.{i}"] = of_part.astype(np.float32)
        sizes.append(trace(plain)[..., 0, 0])
        felt.append(np.concatenate([np.pad(s, (FIRST, 0)) for s in sensitivity]))
        say(f"statistics of layer {i}")
    sizes = np.log(sizes)   # gradients tell one place from another, the probes how much in all
    probed = np.log(trace(first) / model.head_dim).mean()
    sizes = np.exp((sizes - sizes.mean() + probed) / 2)
    for part, name in enumerate("kv"):
        out[f"gain_{name}"] = np.ascontiguousarray(sizes[:, part], np.float32)
    out["sensitivity"] = np.ascontiguousarray(np.stack(felt, 1), np.float32)
    return out


def arguments():
    what, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(description=what, epilog=more,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("cases", nargs="+", metavar="CASE", help="calibration texts, in order")
    add("--model", default=os.environ.get("KVSTOW_GGUF"), help="GGUF file, default $KVSTOW_GGUF")
    add("--work", metavar="DIR", required=True, help="where gradients and probed gains are kept")
    add("--out", metavar="STATS", required=True, help="what to write")
    add("--probe", metavar="CASE", help="the CASE in which gains are probed, default the first")
    add("--prefixes", type=int, nargs=2, default=[1024, 1792], metavar="N",
        help="tokens before each window of 256, default 1024 1792")
    add("--draws", type=int, default=2, help="of labels, for each window, default 2")
    args = parser.parse_args()
    if not args.model:
        parser.error("no model: give --model, or set KVSTOW_GGUF")
    if args.probe and args.probe not in args.cases:
        parser.error(f"--probe {args.probe} is not one of the CASEs")
    if min(args.prefixes) <= FIRST or args.draws < 1:
        parser.error(f"--prefixes must be above {FIRST}, --draws above 0")
    return args


def main():
    args = arguments()
    from safetensors.numpy import save_file
    model = load_model(args.model)
    cases = [load_case(path, model, max(PROBED, *args.prefixes)) for path in args.cases]
    if len({case.name for case in cases}) < len(cases):
        sys.exit("two CASEs of one name")
    os.makedirs(args.work, exist_ok=True)
    make_gradients(model, cases, args.prefixes, args.draws, args.work)
    metric, gains = first_metric(model, cases), f"{args.work}/gains.npy"
    if not os.path.exists(gains):
        case = cases[args.cases.index(args.probe) if args.probe else 0]
        save(gains, probe(model, cases, case, metric))
    first = metric * smooth(np.load(gains))[..., None, None] ** 2
    save_file(statistics(model, cases, args.prefixes, args.draws, args.work, first), args.out,
              {"cases": str(len(cases)), "layers": str(model.layers)})
    say("wrote", args.out)


if __name__ == "__main__":
    main()
