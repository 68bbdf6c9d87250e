"""The published presets that need a calibration, in numpy, against the program:

    python calibrated.py KVSTOW PRESET[,PRESET...] CASE OUT_FOLDER --calibrate CASE... [--model-stats FILE] [--blob FILE]

Written from docs/CODECS.md and the papers, not from the sources. Fits its own tables to the cases
behind --calibrate and lets KVSTOW do the same (or use --blob), codes CASE both ways as one page, and
prints ratio and |x' - x| / |x| over all K and all V. OUT_FOLDER gets PRESET.numpy.safetensors and
PRESET.kvstow.safetensors, for a judge of KV cases. Needs numpy and safetensors.
"""
import argparse
import json
import os
import subprocess
import zlib
from functools import lru_cache

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

FIRST = 4   # tokens of a text that no table is fitted to


def f16(x):
    return np.asarray(x, np.float32).astype(np.float16).astype(np.float32)


class Kv:
    """K before RoPE and V [layers, tokens, heads, dim] of one case; theta as its metadata has it."""
    def __init__(self, path):
        with safe_open(path, "np") as f:
            self.meta = f.metadata()
            layers = int(self.meta["layers"])
            k, self.v = (np.stack([f.get_tensor(f"{p}.{i}").astype(np.float32) for i in range(layers)])
                         for p in "kv")
        self.theta = float(self.meta["rope_theta"])
        self.k = self.turn(k, -1)
        self.bytes = 2 * (self.k.size + self.v.size)

    def turn(self, k, sign):
        half = k.shape[-1] // 2
        angle = sign * np.arange(k.shape[1])[:, None] * self.theta ** (-np.arange(half) / half)
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = k[..., :half], k[..., half:]
        return np.concatenate([a * c - b * s, a * s + b * c], -1).astype(np.float32)


class Calibration:
    def __init__(self, paths, stats, sample=4096):
        cases = [Kv(p) for p in paths]
        every = max(1, sum(c.k.shape[1] for c in cases) // sample)
        pick = lambda x: x[:, FIRST:][:, ::every]
        self.k = np.concatenate([pick(c.k) for c in cases], 1)
        self.v = np.concatenate([pick(c.v) for c in cases], 1)
        layers, _, heads, dim = self.k.shape
        self.metric = [np.tile(np.eye(dim), (layers, heads, 1, 1))] * 2
        self.gain = [np.ones((layers, heads))] * 2
        self.has_stats = bool(stats)
        if stats:
            with safe_open(stats, "np") as f:
                self.metric = [np.stack([f.get_tensor(f"metric_{p}.{i}") for i in range(layers)]) for p in "kv"]
                self.gain = [f.get_tensor(f"gain_{p}") for p in "kv"]


# ---------------------------------------------------------------- KVQuant, arXiv 2401.18079

def kmeans(u, w, n):
    order = np.argsort(u)
    u, w = u[order].astype(np.float64), w[order].astype(np.float64)
    c = np.quantile(u, (np.arange(n) + .5) / n)
    for _ in range(60):
        cell = np.searchsorted((c[1:] + c[:-1]) / 2, u)
        mass = np.bincount(cell, w, n)
        c = np.where(mass > 0, np.bincount(cell, w * u, n) / np.maximum(mass, 1e-30), c)
    return c


def kvquant(bits, cal, share=.01):
    layers, _, heads, dim = cal.k.shape
    width = heads * dim

    def span(x, axis):
        """All but `share` of the values, half of them on each side; x is [tokens, width]."""
        n = x.shape[axis]
        out = int(np.floor(share / 2 * n + .5))
        s = np.sort(x, axis)
        return np.take(s, [out], axis), np.take(s, [n - 1 - out], axis)

    def unit(x, low, high):
        return (x - (low + high) / 2) / np.maximum((high - low) / 2, 1e-30)

    def book(x, low, high, part, layer):
        cost = cal.gain[part][layer][:, None] ** 2 * np.einsum("hdd->hd", cal.metric[part][layer])
        w = cost.reshape(1, width) * ((high - low) / 2) ** 2 * np.ones_like(x)
        inside = (x >= low) & (x <= high)
        u, w = unit(x, low, high)[inside], w[inside]
        some = np.random.default_rng(layer).integers(0, len(u), 60_000)
        return kmeans(u[some], w[some], 2 ** bits)

    tables = []
    for i in range(layers):
        k, v = cal.k[i].reshape(-1, width), cal.v[i].reshape(-1, width)
        k_span, v_span = span(k, 0), span(v, 1)
        tables.append((k_span, book(k, *k_span, 0, i), book(v, *v_span, 1, i)))

    def code(x, low, high, exact, c):
        """exact: the range before it was rounded."""
        y = c[np.searchsorted((c[1:] + c[:-1]) / 2, unit(x, low, high))] * (high - low) / 2 + (low + high) / 2
        far = (x < exact[0]) | (x > exact[1])
        return np.where(far, f16(x), y), x.size * bits + 32 * far.sum() + 16 * len(x)

    def run(kv):
        k, v, total = np.empty_like(kv.k), np.empty_like(kv.v), 0
        for i, (k_span, k_book, v_book) in enumerate(tables):
            x = kv.k[i].reshape(-1, width)[1:]
            y, a = code(x, *k_span, k_span, k_book)
            k[i, 1:] = y.reshape(-1, heads, dim)
            x = kv.v[i].reshape(-1, width)[1:]
            exact = span(x, 1)
            y, b = code(x, f16(exact[0]), f16(exact[1]), exact, v_book)
            v[i, 1:] = y.reshape(-1, heads, dim)
            total += a + b + 32 * len(x)
        k[:, 0], v[:, 0] = kv.k[:, 0], kv.v[:, 0]
        return k, v, total / 8 + 2 * (k[:, 0].size + v[:, 0].size)
    return run


# ---------------------------------------------------------------- KVTC, arXiv 2511.01815

def components(x, rank, rounds=4):
    """The leading principal components [width, rank] of rows x, by randomized subspace iteration."""
    q = np.random.default_rng(0).standard_normal((x.shape[1], rank)).astype(np.float32)
    for _ in range(rounds):
        q = np.linalg.qr(x.T @ (x @ q))[0]
    _, _, vt = np.linalg.svd(x @ q, full_matrices=False)
    return q @ vt.T


def group_code(c, kind):
    """c [tokens, size] as `kind` bits (8: E4M3), with a shift and a scale in fp16 a token: c' and the codes."""
    low, high = c.min(1, keepdims=True), c.max(1, keepdims=True)
    if kind == 8:
        shift = f16((low + high) / 2)
        top = f16(np.abs(c - shift).max(1, keepdims=True))
        u = (c - shift) * np.divide(448, top, out=np.zeros_like(top), where=top > 0)
        a = np.minimum(np.abs(u), 448)
        step = 2. ** (np.clip(np.floor(np.log2(np.maximum(a, 1e-30))), -6, 8) - 3)
        y = np.sign(u) * np.minimum(np.round(a / step) * step, 448)
        return y * top / 448 + shift, (y * 8).astype(np.int16).astype(np.uint8), shift, top
    shift = f16(low)
    step = f16((high - shift) / (2 ** kind - 1))
    q = np.clip(np.round(np.divide(c - shift, step, out=np.zeros_like(c), where=step > 0)), 0, 2 ** kind - 1)
    return q * step + shift, q.astype(np.uint8), shift, step


def plan(c, budget):
    """[(size, bits)] of groups of the columns of c, by a dynamic program under a Lagrange multiplier."""
    rank, kinds, sizes = c.shape[1], (0, 2, 4, 8), (1, 16, 64, 256, 1024)
    error = np.full((rank, len(sizes), len(kinds)), np.inf)
    for i in range(rank):
        for s, size in enumerate(sizes):
            if i + size > rank:
                break
            x = c[:, i:i + size]
            error[i, s, 0] = (x ** 2).sum() / len(c)
            for k in (1, 2, 3):
                if size >= 16 or k == 1:      # a group of one is its shift
                    error[i, s, k] = ((group_code(x, kinds[k])[0] - x) ** 2).sum() / len(c)
    bits = np.array([[0 if k == 0 else 32 + k * size for k in kinds] for size in sizes])

    def best(multiplier):
        cost, pick = np.zeros(rank + 1), [None] * rank
        for i in range(rank - 1, -1, -1):
            n = sum(i + size <= rank for size in sizes)
            all_ = error[i, :n] + multiplier * bits[:n] + cost[i + np.array(sizes[:n])][:, None]
            s, k = np.unravel_index(all_.argmin(), all_.shape)
            cost[i], pick[i] = all_[s, k], (sizes[s], kinds[k])
        out, i = [], 0
        while i < rank:
            out.append(pick[i])
            i += pick[i][0]
        return out

    spent = lambda p: sum(32 + size * k for size, k in p if k)
    low, high = 1e-12, error[:, 0, 0].sum()
    for _ in range(40):
        middle = np.sqrt(low * high)
        low, high = (low, middle) if spent(best(middle)) <= budget else (middle, high)
    return best(high)


def kvtc(ratio, cal, share=.25, sample=64):
    flat = lambda x: np.ascontiguousarray(x.transpose(1, 0, 2, 3)).reshape(x.shape[1], -1)
    tables = []
    for x in (cal.k, cal.v):
        x = flat(x)
        mean = x.mean(0)
        x = x - mean
        u = components(x, int(np.ceil(share * x.shape[1])))
        tables.append((mean, u, plan(x[::max(1, len(x) // sample)] @ u, 16 * x.shape[1] / ratio)))

    def run(kv):
        out, total = [], 0
        for x, (mean, u, groups) in zip((kv.k, kv.v), tables):
            y = flat(x)
            c = (y[FIRST:] - mean) @ u
            d, i, stream = np.zeros_like(c), 0, []
            for size, kind in groups:
                if kind:
                    d[:, i:i + size], q, *scales = group_code(c[:, i:i + size], kind)
                    stream += [s.astype(np.float16).tobytes() for s in scales]
                    q = q.ravel()
                    if kind < 8:
                        q = np.concatenate([q, np.zeros(-len(q) % (8 // kind), np.uint8)]).reshape(-1, 8 // kind)
                        q = (q << (kind * np.arange(8 // kind, dtype=np.uint8))).sum(1).astype(np.uint8)
                    stream.append(q.tobytes())
                i += size
            total += len(zlib.compress(b"".join(stream), 9)) + 2 * y[:FIRST].size
            y = np.concatenate([y[:FIRST], d @ u.T + mean])
            out.append(y.reshape(len(y), len(x), *x.shape[2:]).transpose(1, 0, 2, 3))
        return *out, total
    return run


# ---------------------------------------------------------------- AQUA-KV, arXiv 2501.19392

@lru_cache
def lloyd_max(bits):
    u = np.linspace(-6, 6, 100_001)
    p = np.exp(-u * u / 2)
    c = np.interp((np.arange(2 ** bits) + .5) / 2 ** bits, np.cumsum(p) / p.sum(), u)
    for _ in range(1000):
        cell = np.searchsorted((c[1:] + c[:-1]) / 2, u)
        c = np.bincount(cell, p * u) / np.bincount(cell, p)
    return c


def splitmix64(x):
    mask = 2 ** 64 - 1
    x = (x + 0x9e3779b97f4a7c15) & mask
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9 & mask
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb & mask
    return x ^ (x >> 31)


def rotation(n):
    """Signs, then Sylvester's matrix; n a power of two."""
    h = np.array([[(-1.) ** bin(i & j).count("1") for j in range(n)] for i in range(n)]) / n ** .5
    return (h * [-1 if splitmix64(c) & 1 else 1 for c in range(n)]).astype(np.float32)


def aqua(bits, cal, ridge=1e-3):
    blocks = lambda w: [] if w == 0 else [2 ** int(np.log2(min(w, 1024)))] + blocks(w - 2 ** int(np.log2(min(w, 1024))))
    turn = {n: rotation(n) for n in set(blocks(cal.k[0, 0].size) + blocks(cal.v[0, 0].size))}

    def rest(x, b):
        """x' of rows x, and bits."""
        y, i, c = np.empty_like(x), 0, lloyd_max(b)
        for n in blocks(x.shape[1]):
            u = x[:, i:i + n] @ turn[n].T
            s = f16(np.linalg.norm(u, axis=1, keepdims=True) / n ** .5)
            u = np.divide(u, s, out=np.zeros_like(u), where=s > 0)
            y[:, i:i + n] = c[np.searchsorted((c[1:] + c[:-1]) / 2, u)] * s @ turn[n]
            i += n
        return y, x.size * b + 16 * len(x) * len(blocks(x.shape[1]))

    def fit(x, y):
        xm, ym = x.mean(0), y.mean(0)
        g = (x - xm).T @ (x - xm)
        g[np.diag_indices(len(g))] += ridge * np.trace(g) / max(len(g), 1)
        m = np.linalg.solve(g, (x - xm).T @ (y - ym))
        return m, ym - xm @ m

    maps = []

    def walk(k, v, train):
        out, total = [], 0
        rows = lambda x: x.reshape(len(x), -1)
        for i in range(len(k)):
            inputs = out[-1][0] if i else np.zeros((k.shape[1], 0), np.float32)
            pair = []
            for part, x in enumerate((rows(k[i]), rows(v[i]))):
                if part:
                    inputs = np.concatenate([pair[0]] + ([out[-1][1]] if i else []), 1)
                if train:
                    maps.append(fit(inputs, x))
                m, b = maps[2 * i + part]
                guess = (inputs @ m + b).astype(np.float32)
                y, n = rest(x - guess, bits if i else 4)
                pair.append(guess + y)
                total += n
            out.append(pair)
        return *(np.stack([p[j] for p in out]).reshape(x.shape) for j, x in enumerate((k, v))), total

    walk(cal.k, cal.v, True)

    def run(kv):
        k, v, total = walk(kv.k[:, FIRST:], kv.v[:, FIRST:], False)
        k, v = (np.concatenate([x[:, :FIRST], y], 1) for x, y in ((kv.k, k), (kv.v, v)))
        return k, v, total / 8 + 2 * FIRST * (k[:, 0].size + v[:, 0].size)
    return run


# ---------------------------------------------------------------- OSCAR, arXiv 2605.17757

def oscar(bits, cal, group=128):
    layers, _, heads, dim = cal.k.shape
    order = [int(f"{i:0{dim.bit_length() - 1}b}"[::-1], 2) for i in range(dim)]   # dim is a power of two here
    h = np.array([[(-1.) ** bin(i & j).count("1") for j in range(dim)] for i in range(dim)]) / dim ** .5

    def turn(metric):
        u = np.linalg.eigh(metric)[1][:, ::-1]
        return f16(u[:, order] @ h)

    def code(y, clip):
        out, total = np.empty_like(y), 0
        for i in range(0, dim, group):
            g = y[..., i:i + group]
            low, high = g.min(-1, keepdims=True), g.max(-1, keepdims=True)
            middle, half = (low + high) / 2, (high - low) / 2 * clip
            m = f16(middle - half)
            s = f16((middle + half - m) / (2 ** bits - 1))
            q = np.clip(np.round(np.divide(g - m, s, out=np.zeros_like(g), where=s > 0)), 0, 2 ** bits - 1)
            out[..., i:i + group] = q * s + m
            total += g.size * bits + 32 * m.size
        return out, total

    tables = []
    for part, x in enumerate((cal.k, cal.v)):
        for i in range(layers):
            cov = [np.cov(x[i, :, j].T) for j in range(heads)]
            r = np.stack([turn(cal.metric[0][i, j] if part == 0 and cal.has_stats else cov[j]) for j in range(heads)])
            y = np.einsum("thd,hde->the", x[i, :512], r)
            clip = min((1, .95, .9, .85, .8, .75, .7, .6, .5), key=lambda c: ((code(y, c)[0] - y) ** 2).sum())
            tables.append((r, clip))

    def run(kv):
        out, total = [], 0
        for part, x in enumerate((kv.k, kv.v)):
            y = x.copy()
            for i in range(layers):
                r, clip = tables[part * layers + i]
                z, b = code(np.einsum("thd,hde->the", x[i, FIRST:], r), clip)
                y[i, FIRST:] = np.einsum("the,hde->thd", z, r)
                total += b
            out.append(y)
        return *out, total / 8 + 2 * FIRST * 2 * kv.k[:, 0].size
    return run


# ---------------------------------------------------------------- AATC, arXiv 2608.14191

def aatc(bits, cal):
    layers, tokens, heads, dim = cal.k.shape

    def root(m):
        w, u = np.linalg.eigh((m + m.T) / 2)
        w = np.sqrt(np.maximum(w / np.maximum(w, 0).mean(), 1e-3))
        return (u * w) @ u.T, (u / w) @ u.T

    fits, pool = [], []
    for part, x in enumerate((cal.k, cal.v)):
        for i in range(layers):
            for j in range(heads):
                y = x[i, :, j] - x[i, :, j].mean(0)
                gain = cal.gain[part][i, j] if cal.has_stats else 1 / np.sqrt((y ** 2).mean())
                a, b = root(cal.metric[part][i, j])
                _, u = np.linalg.eigh(a @ (y.T @ y / len(y)) @ a)
                u = u[:, ::-1]
                c = y @ (a @ u) * gain
                sigma = np.maximum(np.sqrt((c ** 2).mean(0)), 1e-9)
                fits.append((x[i, :, j].mean(0), a @ u * gain / sigma, (b @ u / gain * sigma).T, sigma))
                pool.append((c / sigma)[::max(1, tokens // 64)])
    u = np.concatenate(pool)
    top = np.abs(u).max(1, keepdims=True)
    cell = lambda v, b: np.clip(np.floor((v + 1) * 2 ** (b - 1)), 0, 2 ** b - 1).astype(int)
    cells, errors = [None], [1.]
    for b in range(1, 9):
        q, w = cell(u / top, b), np.broadcast_to(top ** 2, u.shape)
        n = np.bincount(q.ravel(), w.ravel(), 2 ** b)
        middle = (2 * np.arange(2 ** b) + 1) / 2 ** b - 1
        mean = np.bincount(q.ravel(), (w * u / top).ravel(), 2 ** b) / np.maximum(n, 1e-30)
        cells.append(np.where(n > 0, mean, middle))
        errors.append((((cells[b][q] * top - u) ** 2).sum() / (u ** 2).sum()))
    variance = np.stack([f[3] ** 2 for f in fits])
    cost = variance[..., None] * np.array(errors)
    share = lambda m: (cost + m * np.arange(9)).argmin(-1)
    low, high = 1e-20, 1e20
    for _ in range(100):
        middle = np.sqrt(low * high)
        low, high = (low, middle) if share(middle).sum() <= bits * variance.size - 16 * len(fits) else (middle, high)
    given = share(high)

    def run(kv):
        out, total, at = [], 0, 0
        for x in (kv.k, kv.v):
            y = x.copy()
            for i in range(layers):
                for j in range(heads):
                    mean, encode, decode, _ = fits[at]
                    b = given[at]
                    at += 1
                    keep = b > 0
                    v = (x[i, FIRST:, j] - mean) @ encode[:, keep]
                    s = f16(np.abs(v).max(1, keepdims=True)) if keep.any() else np.ones((len(v), 1))
                    z = np.empty_like(v)
                    for n, kind in enumerate(b[keep]):
                        z[:, n] = cells[kind][cell(v[:, n] / s[:, 0], kind)] * s[:, 0]
                    y[i, FIRST:, j] = z @ decode[keep] + mean
                    total += len(v) * (b.sum() + 16 * keep.any())
            out.append(y)
        return *out, total / 8 + 2 * FIRST * 2 * kv.k[:, 0].size
    return run


PRESETS = {
    "kvquant2": lambda cal: kvquant(2, cal),
    "kvquant3": lambda cal: kvquant(3, cal),
    "kvquant4": lambda cal: kvquant(4, cal),
    "kvtc-8": lambda cal: kvtc(8, cal),
    "kvtc-16": lambda cal: kvtc(16, cal),
    "kvtc-32": lambda cal: kvtc(32, cal),
    "aqua-kv": lambda cal: aqua(2, cal),
    "oscar": lambda cal: oscar(2, cal),
    "aatc": lambda cal: aatc(2.75, cal),
}


def write(path, kv, k, v, stored):
    half = lambda x: np.ascontiguousarray(x, np.float16)
    tensors = {f"k.{i}": half(x) for i, x in enumerate(kv.turn(k, 1))} | {f"v.{i}": half(x) for i, x in enumerate(v)}
    save_file(tensors, path, {**kv.meta, "stored_bytes": str(int(stored))})


def program(arguments):
    return json.loads(subprocess.run(arguments + ["--format", "json"], check=True, capture_output=True, text=True).stdout)


def error(x, y):
    return np.linalg.norm((x - y).astype(np.float64)) / np.linalg.norm(x.astype(np.float64))


def main(a):
    cal, kv = Calibration(a.calibrate, a.model_stats), Kv(a.case)
    os.makedirs(a.out, exist_ok=True)
    print("| preset | ratio numpy | ratio kvstow | K numpy | K kvstow | V numpy | V kvstow |\n|---|---|---|---|---|---|---|")
    for name in a.presets.split(","):
        here, there, blob = (os.path.join(a.out, name + e) for e in (".numpy.safetensors", ".kvstow.safetensors", ".kvcal"))
        k, v, stored = PRESETS[name](cal)(kv)
        write(here, kv, k, v, stored)
        if not a.blob:
            program([a.kvstow, "codec", "calibrate", "--recipe", name, "--out", blob]
                    + (["--model-stats", a.model_stats] if a.model_stats else []) + a.calibrate)
        said = program([a.kvstow, "codec", "roundtrip", "--recipe", name, "--page-tokens", "4096", "--calibration",
                        a.blob or blob, a.case, there])
        decoded = Kv(there)
        print(f"| `{name}` | {kv.bytes / stored:.2f} | {said['ratio']:.2f} | {error(kv.k, k):.5f} | "
              f"{error(kv.k, decoded.k):.5f} | {error(kv.v, v):.5f} | {error(kv.v, decoded.v):.5f} |", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("kvstow", "presets", "case", "out"):
        ap.add_argument(name)
    ap.add_argument("--calibrate", nargs="+", required=True)
    ap.add_argument("--model-stats")
    ap.add_argument("--blob")
    main(ap.parse_args())
