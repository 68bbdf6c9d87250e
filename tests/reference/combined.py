"""Published methods that put several primitives together, in numpy: imported by presets.py.

Written from docs/CODECS.md and docs/FORMAT.md, not from the sources. A code takes and returns a slab
[tokens, heads, dim]; those of WHOLE take and return all slabs of K and all of V.
"""
from functools import lru_cache

import numpy as np

from presets import affine, f16, gaussian_matrix_of, ratio, rotated, rotation, sign_of, sketch, turboquant


def outliers(share, first, rest, group=None):
    def run(x):
        tokens, heads, dim = x.shape
        count = min(max(int(share * dim + .5), 1), dim - 1)
        y = np.empty_like(x)
        for t in range(0, tokens, group or tokens):
            part = x[t:t + (group or tokens)]
            energy = (part.astype(np.float64) ** 2).sum(0)
            chosen = np.argsort(-energy, 1, kind="stable")[:, :count]
            for h in range(heads):
                mask = np.isin(np.arange(dim), chosen[h])
                for where, code in ((mask, first), (~mask, rest)):
                    y[t:t + len(part), h, where] = code(part[:, h:h + 1, where])[:, 0]
        return y
    return run


def signs(rows):
    def run(x):
        d = x.shape[-1]
        s = gaussian_matrix_of(rows * d, d)
        length = f16(np.linalg.norm(x, axis=-1, keepdims=True))
        return ((np.pi / 2) ** .5 / (rows * d) * length * (np.where(x @ s.T >= 0, 1, -1) @ s)).astype(np.float32)
    return run


@lru_cache
def angle_codebook(level):
    """Lloyd-Max for the angles of pairs of radii, whose density is sin(2 t)^(2^(level - 1) - 1)."""
    t = np.linspace(0, np.pi / 2, 200_001)
    p = np.sin(2 * t) ** (2 ** (level - 1) - 1)
    c = np.interp((np.arange(4) + .5) / 4, np.cumsum(p) / p.sum(), t)
    for _ in range(300):
        cell = np.searchsorted((c[1:] + c[:-1]) / 2, t)
        c = np.bincount(cell, p * t) / np.bincount(cell, p)
    return c


def polar(x):
    """Dims that are a multiple of 16."""
    r = x.reshape(-1, 16).astype(np.float64)
    angles = []
    for level in (1, 2, 3, 4):
        a = np.arctan2(r[:, 1::2], r[:, ::2])
        r = np.hypot(r[:, ::2], r[:, 1::2])
        if level == 1:
            angles.append((np.floor(a / (np.pi / 8)) + .5) * np.pi / 8)
        else:
            c = angle_codebook(level)
            angles.append(c[np.searchsorted((c[1:] + c[:-1]) / 2, a)])
    r = f16(r).astype(np.float64)
    for a in reversed(angles):
        r = np.stack([r * np.cos(a), r * np.sin(a)], -1).reshape(len(r), -1)
    return r.astype(np.float32).reshape(x.shape)


def sparse(share, axis, code):
    """The largest and smallest values of each channel or each token exactly; `code` sees them clipped."""
    def run(x):
        t = x.reshape(len(x), -1)
        t = t.T if axis == "channel" else t
        half = min(int(share / 2 * t.shape[1] + .5), (t.shape[1] - 1) // 2)
        order = np.argsort(t, 1, kind="stable")
        low = np.take_along_axis(t, order[:, half:half + 1], 1)
        high = np.take_along_axis(t, order[:, -1 - half:t.shape[1] - half], 1)
        places = np.concatenate([order[:, :half], order[:, t.shape[1] - half:]], 1)
        clipped = t.copy()
        np.put_along_axis(clipped, places, np.clip(np.take_along_axis(t, places, 1), low, high), 1)
        y = code((clipped.T if axis == "channel" else clipped).reshape(x.shape)).reshape(len(x), -1)
        y = (y.T if axis == "channel" else y).copy()
        np.put_along_axis(y, places, f16(np.take_along_axis(t, places, 1)), 1)
        return (y.T if axis == "channel" else y).reshape(x.shape)
    return run


def low_rank(rank):
    def run(x):
        y = np.empty_like(x)
        for h in range(x.shape[1]):
            v = f16(np.linalg.svd(x[:, h], full_matrices=False)[2][:rank])
            y[:, h] = f16(x[:, h] @ v.T) @ v
        return y
    return run


def residual(first, second):
    def run(x):
        y = first(x)
        return y + second(x - y)
    return run


def gear(bits, group):
    return [residual(sparse(.02, axis, affine(bits, group, axis)), low_rank(4)) for axis in ("channel", "token")]


def latent(rope, first, rest):
    return lambda x: np.concatenate([first(x[..., :-rope]) if x.shape[-1] > rope else x[..., :0],
                                     rest(x[..., -rope:])], -1)


def of_each(count, first, rest):
    return [outliers(count, first, rest)] * 2


COMBINED = {
    "turboquant2.5": of_each(.5, turboquant(3), turboquant(2)),
    "turboquant3.5": of_each(.5, turboquant(4), turboquant(3)),
    "turboquant2-prod": [rotated(sketch(2))] * 2,
    "turboquant2.5-prod": of_each(.5, rotated(sketch(3)), rotated(sketch(2))),
    "turboquant3.5-prod": of_each(.5, rotated(sketch(4)), rotated(sketch(3))),
    "polarquant": [rotated(polar)] * 2,
    "think": [outliers(.6, f16, np.zeros_like, 256), f16],
    "gear4": gear(4, None),
    "gear2": gear(2, 64),
    "mla8(rope=16)": [latent(16, affine(8, 128), f16)] * 2,
    "mla4(rope=32)": [latent(32, turboquant(4), f16)] * 2,
    "palu3": [rotated(affine(3))] * 2,
    "qjl": [outliers(.0625, signs(16), signs(2), 32), affine(2, 32)],
}


FIRST_POSITION = 0   # of the slabs that are coded


def unrotary(x, theta, sign):
    """K [tokens, heads, dim] with its rotary positions taken off (sign 1) or put on (-1): half layout."""
    half = x.shape[-1] // 2
    angle = (FIRST_POSITION + np.arange(len(x)))[:, None] * theta ** (-np.arange(half) / half)
    c, s = np.cos(angle)[:, None], sign * np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * c + b * s, b * c - a * s], -1).astype(np.float32)


def before_rope(code, theta=1e5):
    return lambda x: unrotary(code(unrotary(x, theta, 1)), theta, -1)


def svd(*bits):
    def run(x):
        y = np.empty_like(x)
        for h in range(x.shape[1]):
            channels = min(len(x), x.shape[2])
            given = np.array([bits[j * len(bits) // channels] for j in range(channels)])
            v = f16(np.linalg.svd(x[:, h], full_matrices=False)[2][:channels][given > 0])
            c = x[:, h] @ v.T
            for j, b in enumerate(given[given > 0]):
                c[:, j:j + 1] = affine(int(b), axis="channel")(c[:, None, j:j + 1])[:, 0]
            y[:, h] = c @ v
        return y
    return run


def clip(share, group, code):
    def run(x):
        y = x.copy()
        for i in range(0, x.shape[-1], group):
            g = x[..., i:i + group]
            y[..., i:i + group] = np.minimum(np.maximum(g, share * g.min(-1, keepdims=True)),
                                             share * g.max(-1, keepdims=True))
        return code(y)
    return run


def blockwise_rotated(code):
    """As rotated, of any dim: cut into powers of two, the largest first; signs run through."""
    def turn(x, back):
        y, at = np.empty_like(x), 0
        signs = np.array([sign_of(c) for c in range(x.shape[-1])], np.float32)
        while at < x.shape[-1]:
            n = 1 << ((x.shape[-1] - at).bit_length() - 1)
            h, s = rotation(n) * [sign_of(c) for c in range(n)], signs[at:at + n]
            y[..., at:at + n] = x[..., at:at + n] @ h * s if back else (x[..., at:at + n] * s) @ h.T
            at += n
        return y
    return lambda x: turn(code(turn(x, False)), True)


def heads(group, code):
    def run(x):
        g = next(g for g in range(group, 0, -1) if x.shape[1] % g == 0 and x.shape[2] * g <= 1024)
        return code(x.reshape(len(x), -1, g * x.shape[2])).reshape(x.shape)
    return run


def rotatekv(bits):
    code = heads(4, blockwise_rotated(clip(.8, 128, affine(bits, 128))))
    return [before_rope(code), code]


def bins(ks, vs):
    """LMCache's: (first, then, from) of K and of V."""
    def one(x, table, layer):
        top = (table[0] if layer < table[2] else table[1]) // 2 - 1
        a = f16(np.abs(x).max((1, 2), keepdims=True))
        return np.round(ratio(x * top, a)) * a / top
    return lambda k, v: [[one(x, table, i) for i, x in enumerate(part)] for part, table in ((k, ks), (v, vs))]


def deltas(every, count, steps):
    def one(x, step):
        y = np.empty_like(x)
        a = f16(np.abs(x[::every]).max((1, 2), keepdims=True))
        anchors = np.round(ratio(x[::every] * (count // 2 - 1), a)) * a / (count // 2 - 1)
        y[::every] = anchors
        others = np.arange(len(x)) % every > 0
        base = np.repeat(anchors, every, 0)[:len(x)][others]
        d = x[others] - base
        s = f16(step * np.sqrt((d.astype(np.float64) ** 2).mean()))
        y[others] = base + np.round(d / s) * s
        return y
    return lambda k, v: [[one(x, steps[i * 3 // len(part)]) for i, x in enumerate(part)] for part in (k, v)]


def xkv(layers, shares, theta=1e5):
    def part(slabs, share):
        out = []
        for i in range(0, len(slabs), layers):
            run = slabs[i:i + layers]
            x = np.concatenate([s.reshape(len(s), -1) for s in run], 1)
            rank = min(max(int(share * x.shape[1] + .5), 1), *x.shape)
            v = f16(np.linalg.svd(x, full_matrices=False)[2][:rank])
            y = f16(x @ v.T) @ v
            out += [p.reshape(run[0].shape) for p in np.split(y, len(run), 1)]
        return out

    def run(k, v):
        k = part([unrotary(x, theta, 1) for x in k], shares[0])
        return [[unrotary(x, theta, -1) for x in k], part(v, shares[1])]
    return run


COMBINED["rotatekv2"] = rotatekv(2)
COMBINED["rotatekv4"] = rotatekv(4)
COMBINED["svdq"] = [before_rope(svd(4, 4, 2, 0, 0, 0, 0, 0)), affine(4, 64)]
WHOLE = {
    "cachegen": deltas(10, 256, (.5, 1, 1.5)),
    "cachegen-lmcache": bins((32, 16, 10), (32, 16, 2)),
    "xkv": xkv(4, (.125, .1875)),
}
