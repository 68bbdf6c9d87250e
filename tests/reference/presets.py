"""The published fixed-rate presets in numpy, against the program: python presets.py KVSTOW CASE [PART OF A NAME]

Written from docs/CODECS.md and docs/FORMAT.md, not from the sources. CASE is a safetensors file of
at most one page (tests/data has one). For each preset: |x' - x| / |x| over all K and over all V, of
this file and of `KVSTOW codec roundtrip`. Exits with 1 when two of them differ by more than 1 %.
Needs numpy and safetensors.
"""
import json
import os
import subprocess
import sys
import tempfile
from functools import lru_cache

import numpy as np
from safetensors import safe_open

E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6], np.float32)
E4M3 = np.array([m * 2. ** -9 for m in range(8)]
                + [(8 + m) * 2. ** (e - 10) for e in range(1, 16) for m in range(8)][:-1], np.float32)


def f16(x):
    return np.asarray(x, np.float32).astype(np.float16).astype(np.float32)


def ratio(a, b):
    return np.divide(a, b, out=np.zeros(np.broadcast(a, b).shape, np.float32), where=np.asarray(b) != 0)


def to_grid(x, grid):
    """Nearest of the magnitudes, ties to the even place, saturating."""
    a = np.minimum(np.abs(x), grid[-1])
    up = np.clip(np.searchsorted(grid, a), 1, len(grid) - 1)
    low, high = a - grid[up - 1], grid[up] - a
    take_up = (high < low) | ((high == low) & (up % 2 == 0))
    return np.sign(x) * grid[np.where(take_up, up, up - 1)]


def affine(bits, group=None, axis="token"):
    """x [tokens, heads, dim]; group None is the whole axis."""
    def run(x):
        t = {"token": x, "channel": np.moveaxis(x, 0, -1), "tensor": x.reshape(1, -1)}[axis]
        y = np.empty_like(t)
        width = t.shape[-1] if group is None or axis == "tensor" else group
        for i in range(0, t.shape[-1], width):
            g = t[..., i:i + width]
            m = f16(g.min(-1, keepdims=True))
            s = f16((g.max(-1, keepdims=True) - m) / (2 ** bits - 1))
            y[..., i:i + width] = np.clip(np.round(ratio(g - m, s)), 0, 2 ** bits - 1) * s + m
        return np.moveaxis(y, -1, 0) if axis == "channel" else y.reshape(x.shape)
    return run


def blocks(size, code):
    def run(x):
        return code(x.reshape(-1, size)).reshape(x.shape)   # dim is a multiple of the size here
    return run


def q8_0(g):
    d = np.abs(g).max(1, keepdims=True) / 127
    q = ratio(g, d)
    return np.sign(q) * np.floor(np.abs(q) + .5) * f16(d)


def q4_0(g):
    d = np.take_along_axis(g, np.abs(g).argmax(1, keepdims=True), 1) / -8
    return (np.minimum(15, np.floor(ratio(g, d) + 8.5)) - 8) * f16(d)


def nvfp4(x):
    t = np.abs(x).max() / (448 * 6)
    g = x.reshape(-1, 16)
    s = to_grid(np.abs(g).max(1, keepdims=True) / 6 / t, E4M3) * t
    return (to_grid(ratio(g, s), E2M1) * s).reshape(x.shape)


def mx(grid, top):
    def run(g):
        largest = np.abs(g).max(1, keepdims=True)
        s = 2. ** (np.floor(np.log2(np.where(largest > 0, largest, 1))) - top)
        return to_grid(g / s, grid) * s
    return run


def fp8(x):
    a = f16(np.abs(x).max(-1, keepdims=True))
    return to_grid(ratio(x * 448, a), E4M3) * a / 448


def splitmix64(x):
    mask = 2 ** 64 - 1
    x = (x + 0x9e3779b97f4a7c15) & mask
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9 & mask
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb & mask
    return x ^ (x >> 31)


def sign_of(channel):
    return -1. if splitmix64(channel) & 1 else 1.


@lru_cache
def rotation(d):
    """H D: Sylvester's matrix after the signs of the columns; d a power of two."""
    h = np.array([[(-1.) ** bin(i & j).count("1") for j in range(d)] for i in range(d)]) / d ** .5
    return (h * [sign_of(c) for c in range(d)]).astype(np.float32)


def rotated(code):
    return lambda x: code(x @ rotation(x.shape[-1]).T) @ rotation(x.shape[-1])


@lru_cache
def lloyd_max(bits, d):
    """Of sqrt(d) times a coordinate of a random point of the unit sphere; other d: of a Gaussian."""
    sphere = d in (64, 128)
    u = np.linspace(-1, 1, 100_001) * (d ** .5 if sphere else 9)
    p = np.maximum(1 - u * u / d, 0) ** ((d - 3) / 2) if sphere else np.exp(-u * u / 2)
    c = np.interp((np.arange(2 ** bits) + .5) / 2 ** bits, np.cumsum(p) / p.sum(), u)
    for _ in range(2000):
        cell = np.searchsorted((c[1:] + c[:-1]) / 2, u)
        c = np.bincount(cell, p * u) / np.bincount(cell, p)
    return c


def turboquant(bits, corrected=False):
    def run(x):
        d = x.shape[-1]
        length = np.linalg.norm(x, axis=-1, keepdims=True)
        c = lloyd_max(bits, d)
        y = c[np.searchsorted((c[1:] + c[:-1]) / 2, ratio(x, f16(length)) * d ** .5)]
        if corrected:
            length = length * d ** .5 / np.linalg.norm(y, axis=-1, keepdims=True)
        return (y * f16(length) / d ** .5).astype(np.float32)
    return rotated(run)


@lru_cache
def gaussian_matrix_of(rows, d):
    parts = lambda x: sum(x >> s & 0xffff for s in (0, 16, 32, 48))
    return np.array([[sum(parts(splitmix64(3 * (i * d + j) + k)) for k in range(3)) - 6 * 65535
                      for j in range(d)] for i in range(rows)]) / 65536


def sketch(bits):
    def run(x):
        d = x.shape[-1]
        length, s = f16(np.linalg.norm(x, axis=-1, keepdims=True)), gaussian_matrix_of(d, d)
        c = lloyd_max(bits - 1, d)
        u = ratio(x, length) * d ** .5
        y = c[np.searchsorted((c[1:] + c[:-1]) / 2, u)]
        rest = f16(np.linalg.norm(u - y, axis=-1, keepdims=True))
        signs = np.where((u - y) @ s.T >= 0, 1, -1)
        return ((y + (np.pi / 2) ** .5 / d * rest * (signs @ s)) * length / d ** .5).astype(np.float32)
    return run


def centred(code):
    def run(x):
        m = f16(x.mean(0, keepdims=True, dtype=np.float64))
        return code(x - m) + m
    return run


# For K and for V.
PRESETS = {
    "lossless": [lambda x: x] * 2,
    "int8": [affine(8, 64)] * 2,
    "int8-tensor": [affine(8, axis="tensor")] * 2,
    "int8-token": [affine(8)] * 2,
    "int8-channel": [affine(8, 64, "channel")] * 2,
    "int4": [affine(4, 64)] * 2,
    "int4-tensor": [affine(4, axis="tensor")] * 2,
    "int4-token": [affine(4)] * 2,
    "int4-channel": [affine(4, 64, "channel")] * 2,
    "q8_0": [blocks(32, q8_0)] * 2,
    "q4_0": [blocks(32, q4_0)] * 2,
    "fp8": [fp8] * 2,
    "nvfp4": [nvfp4] * 2,
    "mxfp4": [blocks(32, mx(E2M1, 2))] * 2,
    "mxfp8": [blocks(32, mx(E4M3, 8))] * 2,
    "kivi2": [affine(2, 32, "channel"), affine(2, 32)],
    "kivi4": [affine(4, 32, "channel"), affine(4, 32)],
    "sageattention": [centred(affine(8, 64)), affine(8, 64)],
    "quarot": [rotated(affine(4, 128))] * 2,
    "turboquant2": [turboquant(2)] * 2,
    "turboquant3": [turboquant(3)] * 2,
    "turboquant4": [turboquant(4)] * 2,
    "turboquant3-prod": [rotated(sketch(3))] * 2,
    "turboquant4-prod": [rotated(sketch(4))] * 2,
    "turboquant4(norm=corrected)": [turboquant(4, True)] * 2,
}


def load(path):
    with safe_open(path, "np") as f:
        layers = sum(name.startswith("k.") for name in f.keys())
        return [[f.get_tensor(f"{part}.{i}").astype(np.float32) for i in range(layers)] for part in "kv"]


def error(x, y):
    x, y = np.stack(x).astype(np.float64), np.stack(y)
    return np.linalg.norm(x - y) / np.linalg.norm(x)


def decode(codes, slabs):
    """All slabs of K and of V as `codes` gives them back: one code for K and one for V, or a code of all."""
    whole = codes(*slabs) if callable(codes) else [[code(x) for x in part] for code, part in zip(codes, slabs)]
    return [[f16(x) for x in part] for part in whole]


def main(kvstow, case, only=""):
    from combined import COMBINED, WHOLE
    slabs, apart = load(case), 0
    print("| preset | ratio | K numpy | K kvstow | V numpy | V kvstow |\n|---|---|---|---|---|---|")
    for name, codes in {**PRESETS, **COMBINED, **WHOLE}.items():
        if only and only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out.safetensors")
            said = subprocess.run([kvstow, "codec", "roundtrip", "--recipe", name, "--page-tokens", "256",
                                   "--format", "json", case, out], check=True, capture_output=True, text=True)
            decoded = load(out)
        row, here_decoded = [], decode(codes, slabs)
        for part in (0, 1):
            here = error(slabs[part], here_decoded[part])
            there = error(slabs[part], decoded[part])
            apart = max(apart, abs(there / here - 1) if here > 0 else float(there > 0))
            row += [f"{here:.5f}", f"{there:.5f}"]
        print(f"| `{name}` | {json.loads(said.stdout)['ratio']:.2f} | {' | '.join(row)} |", flush=True)
    print(f"\nlargest difference: {apart:.2%}")
    return int(apart > .01)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
