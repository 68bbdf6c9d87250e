"""Importance policies against an independent numpy version: python importance.py KVSTOW CASE [--keep F ...]

For each preset `kvstow codec roundtrip --recipe 'PRESET(keep=F)'` writes which tokens it kept; the
numpy version below chooses by itself, from the same case, as the papers have it. Prints the share
of (layer, token, head) on which the two agree and fails below 99.9 %: scores that come out of a
matrix product may break a tie the other way. One page a case, so that both see the same tokens.
"""
import argparse
import json
import subprocess
import sys
import tempfile

import numpy as np
from safetensors import safe_open

WINDOW = 32


class Case:
    def __init__(self, path):
        with safe_open(path, "np") as f:
            meta = f.metadata()
            self.layers, self.prefix = int(meta["layers"]), int(meta["prefix"])
            self.theta = float(meta["rope_theta"])
            stack = lambda name: np.stack([f.get_tensor(f"{name}.{i}").astype(np.float64) for i in range(self.layers)])
            self.k, self.v = stack("k")[:, : self.prefix], stack("v")[:, : self.prefix]
            self.sum, self.window = stack("attn_sum")[:, : self.prefix], stack("attn_window")[:, : self.prefix]
            self.q = stack("q")
        self.kv, self.d = self.k.shape[2:]
        self.t = self.prefix
        self.group = self.q.shape[2] // self.kv
        # Attention of the last queries, [layers, queries, tokens, heads].
        n, self.p = self.q.shape[1], []
        see = np.arange(self.t)[None] <= (self.t - n + np.arange(n))[:, None]
        for i in range(self.layers):
            s = np.einsum("qhd,thd->qth", self.q[i], np.repeat(self.k[i], self.group, 1)) / np.sqrt(self.d)
            s = np.where(see[..., None], s, -np.inf)
            s = np.exp(s - s.max(1, keepdims=True))
            self.p.append(s / s.sum(1, keepdims=True))
        self.p, self.see = np.stack(self.p), see

    def heads(self, x):
        """Query heads averaged into their KV head."""
        return x.reshape(*x.shape[:-1], self.kv, self.group).mean(-1)

    def rope(self, x, positions, inverse=False):
        f = self.theta ** (-np.arange(self.d // 2) * 2 / self.d)
        a = positions[:, None] * f * (-1 if inverse else 1)
        c, s = np.cos(a)[:, None], np.sin(a)[:, None]
        lo, hi = x[..., : self.d // 2], x[..., self.d // 2:]
        return np.concatenate([lo * c - hi * s, hi * c + lo * s], -1)


def pool(x, width, how=np.mean):
    y = np.pad(x, ((0, 0), (width // 2, width // 2), (0, 0)), mode="edge")
    return how(np.stack([y[:, i:i + x.shape[1]] for i in range(width)]), 0)


def unit(x):
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-6)


def key_diversity(c):
    u = unit(c.k)
    return -np.einsum("lthd,lhd->lth", u, unit(u.sum(1)))


def redundancy(c):
    u = unit(c.k)
    out = np.zeros(c.k.shape[:3])
    for i in range(c.layers):
        for h in range(c.kv):
            s = u[i, :, h] @ u[i, :, h].T
            np.fill_diagonal(s, 0)
            out[i, :, h] = -np.where(s > .5, s, 0).sum(1) / c.t
    return out


def leverage(c):
    out = np.zeros(c.k.shape[:3])
    for i in range(c.layers):
        for h in range(c.kv):
            k = c.k[i, :, h]
            g = k.T @ k
            g += np.eye(c.d) * (1e-4 * np.trace(g) / c.d + 1e-12)
            out[i, :, h] = (k * np.linalg.solve(g, k.T).T).sum(1)
    return out


def lag(c, size=128):
    out = np.zeros(c.k.shape[:3])
    first = 0
    while first + size < c.t:
        for x in (c.k, c.v):
            here, after = x[:, first:first + size], x[:, first + size:first + 2 * size]
            low, high = after.min(1, keepdims=True), after.max(1, keepdims=True)
            s = ((here - low) / np.maximum(high - low, 1e-6)).std(-1)
            e = np.exp(s - s.max(1, keepdims=True))
            out[:, first:first + size] += e / e.sum(1, keepdims=True)
        first += size
    out[:, first:] = 3 + np.arange(first, c.t)[None, :, None]
    return out


def statistics(c):
    n = c.q.shape[1]
    positions = np.arange(c.t - n, c.t)
    q = np.stack([c.rope(c.q[i], positions, inverse=True) for i in range(c.layers)])
    mean = q.mean(1)
    cov = np.einsum("lnhd,lnhe->lhde", q, q) / n - np.einsum("lhd,lhe->lhde", mean, mean)
    half = c.d // 2
    return mean, cov, np.hypot(q[..., :half], q[..., half:]).mean(1)


def expected(c, ahead=512):
    mean, cov, _ = statistics(c)
    spots = c.t + ahead * np.arange(24) // 23
    out = np.zeros(c.k.shape[:3])
    for i in range(c.layers):
        m, s = np.zeros_like(mean[i]), np.zeros_like(cov[i])
        for p in spots:
            r = c.rope(np.eye(c.d)[:, None], np.full(c.d, p))[:, 0]        # row j is R e_j
            m += mean[i] @ r / len(spots)
            s += np.einsum("de,hdf,fg->heg", r, cov[i], r) / len(spots)
        for h in range(mean.shape[1]):
            k = c.k[i, :, h // c.group]
            x = k @ m[h] / np.sqrt(c.d) + ((k @ s[h]) * k).sum(1) / (2 * c.d)
            e = np.exp(x - x.max())
            out[i, :, h // c.group] += e / e.sum() / c.group
    return out


def query_direction(c):
    mean, cov, _ = statistics(c)
    k = np.stack([c.rope(c.k[i], np.arange(c.t), inverse=True) for i in range(c.layers)])
    out = np.zeros(c.k.shape[:3])
    for i in range(c.layers):
        for h in range(mean.shape[1]):
            w, u = np.linalg.eigh(cov[i, h] + np.outer(mean[i, h], mean[i, h]))
            u = u[:, -1] * (1 if u[:, -1] @ mean[i, h] >= 0 else -1)
            out[i, :, h // c.group] += k[i, :, h // c.group] @ u / c.group
    return out


def trigonometric(c):
    mean, _, size = statistics(c)
    half = c.d // 2
    f = c.theta ** (-np.arange(half) * 2 / c.d)
    turn = np.exp(1j * (c.t + 2.0 ** np.arange(17))[:, None] * f).mean(0)
    out = np.zeros(c.k.shape[:3])
    for i in range(c.layers):
        for h in range(mean.shape[1]):
            centre = mean[i, h, :half] + 1j * mean[i, h, half:]
            k = c.k[i, :, h // c.group, :half] + 1j * c.k[i, :, h // c.group, half:]
            x = (centre * turn * k.conj()).real.sum(1)
            x += (np.maximum(size[i, h] - abs(centre), 0) * abs(k)).sum(1)
            out[i, :, h // c.group] += (x - x.mean()) / x.std() / c.group
    return out


def top(score, count, keep=None):
    """The `count` best of each (layer, head), of which `keep` are in already; ties to the earlier."""
    layers, t, heads = score.shape
    out = np.zeros(score.shape, bool) if keep is None else keep.copy()
    count = np.broadcast_to(np.floor(np.asarray(count, float) + 1e-9).astype(int), (layers,))
    for i in range(layers):
        for h in range(heads):
            more = count[i] - out[i, :, h].sum()
            if more > 0:
                order = np.argsort(-np.where(out[i, :, h], -np.inf, score[i, :, h]), kind="stable")
                out[i, order[:more], h] = True
    return out


def protect(shape, first=4, last=WINDOW):
    keep = np.zeros(shape, bool)
    keep[:, :first] = True
    if last:
        keep[:, -last:] = True
    return keep


def shares(weights, keep):
    """In proportion to weights, none above 1."""
    w, out, full = np.asarray(weights, float), np.zeros(len(weights)), np.zeros(len(weights), bool)
    while True:
        left = keep * len(w) - full.sum()
        out[~full] = left * w[~full] / w[~full].sum()
        over = ~full & (out > 1)
        if not over.any():
            return out
        out[over], full = 1, full | over


def layerwise(score, keep, count, floor):
    """AdaKV: the heads of a layer compete, each with a floor."""
    keep = top(score, np.floor(count * floor + 1e-9), keep)
    for i in range(len(score)):
        s = np.where(keep[i], -np.inf, score[i]).reshape(-1)
        more = int(np.floor(count + 1e-9)) * score.shape[2] - keep[i].sum()
        keep[i].reshape(-1)[np.argsort(-s, kind="stable")[:max(more, 0)]] = True
    return keep


def cake(c, f):
    p = c.p[:, -WINDOW:]
    var = c.heads(p.var(1))
    window = c.heads(c.window)
    share = window / window.sum(1, keepdims=True)
    entropy = -(share * np.log(np.maximum(share, 1e-300))).sum(1).mean(-1)
    weights = entropy ** (1 / 1.6) * (var.sum(1).mean(-1)) ** (1 / .4)
    return top(pool(window + 200 * var, 5), shares(weights, f) * c.t, protect(window.shape))


def policies(c):
    """name -> keep share -> mask"""
    shape, t = c.k.shape[:3], c.t
    position = np.broadcast_to(np.arange(t, dtype=float)[None, :, None], shape)
    total, window = c.heads(c.sum), c.heads(c.window)
    snap = pool(window, 5)
    norm_v = np.linalg.norm(c.v, axis=-1)

    def pyramid(f):
        low = (f - WINDOW / t) / 20
        return np.minimum(1, np.linspace(2 * (f - WINDOW / t) - low, low, c.layers) + WINDOW / t)

    def halves(first, second, f, keep):
        n = np.floor(f * t + 1e-9)
        return top(second, n, top(first, np.floor(n / 2 + 1e-9), keep))

    hits = c.heads((c.p > 1 / c.see.sum(1)[None, :, None, None]).sum(1).astype(float))
    last = np.broadcast_to(c.heads(c.p[:, -1]).mean(-1, keepdims=True), shape)
    rkv = window / window.sum(1, keepdims=True)
    red = redundancy(c)
    rkv = rkv + red / np.maximum(abs(red).sum(1, keepdims=True), 1e-300)
    chunk = np.concatenate([np.broadcast_to(window[:, i:i + 20].mean(1, keepdims=True), window[:, i:i + 20].shape)
                            for i in range(0, t, 20)], 1)
    return {
        "window": lambda f: top(position, f * t),
        "streamingllm": lambda f: top(position, f * t, protect(shape, 4, 0)),
        "h2o": lambda f: halves(position, total, f, protect(shape, 4, 0)),
        "scissorhands": lambda f: top(hits + .001 * position / (t - 1), f * t, protect(shape)),
        "tova": lambda f: top(last, f * t, protect(shape, 0, 1)),
        "snapkv": lambda f: top(snap, f * t, protect(shape)),
        "pyramidkv": lambda f: top(snap, pyramid(f) * t, protect(shape)),
        "pyramidinfer": lambda f: top(window, shares(.95 ** np.arange(c.layers), f) * t, protect(shape)),
        "adakv": lambda f: layerwise(snap, protect(shape), f * t, .2),
        "criticalkv": lambda f: halves(snap, (snap + 1e-4) * norm_v, f, protect(shape)),
        "cake": lambda f: cake(c, f),
        "rocketkv": lambda f: top(pool(window, 63, np.max), f * t, protect(shape, 0)),
        "expected-attention": lambda f: top((expected(c) + 1e-4) * norm_v, f * t, protect(shape, 4, 0)),
        "knorm": lambda f: top(-np.linalg.norm(c.k, axis=-1), f * t, protect(shape)),
        "keydiff": lambda f: top(key_diversity(c), f * t, protect(shape)),
        "lagkv": lambda f: top(lag(c), f * t, protect(shape, 4, 0)),
        "compactor": lambda f: top(leverage(c), f * t, protect(shape)),
        "qfilters": lambda f: top(query_direction(c), f * t, protect(shape)),
        "chunkkv": lambda f: top(chunk, f * t, protect(shape)),
        "triattention": lambda f: top(trigonometric(c), f * t, protect(shape)),
        "r-kv": lambda f: top(rkv, f * t, protect(shape)),
    }


def ours(kvstow, recipe, path, tokens):
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as out:
        done = subprocess.run([kvstow, "codec", "roundtrip", "--format", "json", "--page-tokens", str(tokens),
                               "--recipe", recipe, path, out.name], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{recipe}: {done.stderr}")
        with safe_open(out.name, "np") as f:
            layers = sum(k.startswith("keep.") for k in f.keys())
            return np.stack([f.get_tensor(f"keep.{i}") for i in range(layers)]).astype(bool), json.loads(done.stdout)


def merged(k, v, keep):
    """V of each head after what is dropped went to the kept key of the largest cosine: the mean of its own and what came."""
    out = np.zeros_like(v)
    for i, h in np.ndindex(v.shape[0], v.shape[2]):
        kept = np.flatnonzero(keep[i, :, h])
        key = k[i, :, h].astype(np.float64)
        unit = key[kept] / np.linalg.norm(key[kept], axis=-1, keepdims=True)
        to = (key @ unit.T).argmax(1)
        to[kept] = np.arange(len(kept))
        sums = np.zeros((len(kept), v.shape[3]))
        np.add.at(sums, to, v[i, :, h].astype(np.float64))
        out[i, kept, h] = sums / np.bincount(to, minlength=len(kept))[:, None]
    return out


def check_merge(kvstow, case, path):
    """How far kvstow's merged values are from numpy's, over those values' size."""
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as out:
        recipe = "key_norm|protect(first=4,last=32)|budget(keep=0.25,merge=1)"
        subprocess.run([kvstow, "codec", "roundtrip", "--page-tokens", str(case.t), "--recipe", recipe, path, out.name],
                       capture_output=True, check=True)
        with safe_open(out.name, "np") as f:
            v, keep = (np.stack([f.get_tensor(f"{n}.{i}") for i in range(case.layers)]) for n in ("v", "keep"))
    want = merged(case.k, case.v, keep)
    return np.linalg.norm(v.astype(np.float64) - want) / np.linalg.norm(want)


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("kvstow"), ap.add_argument("case")
    ap.add_argument("--keep", type=float, nargs="+", default=[.5, .125])
    ap.add_argument("--only", nargs="*", help="these presets alone; `merge`: merged values")
    a = ap.parse_args()
    case, failed = Case(a.case), []
    for name, mask in policies(case).items():
        if a.only and name not in a.only:
            continue
        for share in a.keep:
            want, (got, report) = mask(share), ours(a.kvstow, f"{name}(keep={share})", a.case, case.t)
            same = (want == got).mean()
            print(f"{name:20s} keep {share:<6} kept {got.mean():.4f} ratio {report['ratio']:.2f} agree {100 * same:.3f} %", flush=True)
            if same < .999:
                failed.append(name)
    if not a.only or "merge" in a.only:
        off = check_merge(a.kvstow, case, a.case)
        print(f"merge                values off by {off:.6f}")
        if off > 1e-3:
            failed.append("merge")
    sys.exit(f"differ: {', '.join(failed)}" if failed else 0)
