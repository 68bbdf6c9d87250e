"""Derives the tables of kernels/quantize/codebook.cc: python codebooks.py

Lloyd's iteration on a fine grid, cells cut at fractions of a grid step. Prints for each law and
number of bits the positive entries and the mean squared error.
"""
import numpy as np

for name, d in (("Gaussian", 0), ("sphere, 64", 64), ("sphere, 128", 128)):
    u = np.linspace(-1, 1, 400_001) * (d ** .5 if d else 9)
    p = np.maximum(1 - u * u / d, 0) ** ((d - 3) / 2) if d else np.exp(-u * u / 2)
    p /= p.sum()
    step = u[1] - u[0]
    edges = np.append(u, u[-1] + step) - step / 2
    below, moment = (np.concatenate([[0], np.cumsum(w)]) for w in (p, p * u))
    for bits in range(1, 5):
        c = np.interp((np.arange(2 ** bits) + .5) / 2 ** bits, np.cumsum(p), u)
        for _ in range(20_000):
            cuts = np.concatenate([edges[:1], (c[1:] + c[:-1]) / 2, edges[-1:]])
            weight = np.diff(np.interp(cuts, edges, below))
            new = np.diff(np.interp(cuts, edges, moment)) / weight
            moved, c = np.abs(new - c).max(), new
            if moved < 1e-10:
                break
        print(f"{name}, {bits} bits: {np.round(c[2 ** bits // 2:], 6)}  mse {1 - (weight * c * c).sum():.5f}")

for level in (2, 3, 4):   # of polar.cc: angles of pairs of radii
    t = np.linspace(0, np.pi / 2, 400_001)
    p = np.sin(2 * t) ** (2 ** (level - 1) - 1)
    p /= p.sum()
    edges = np.append(t, t[-1] + t[1]) - t[1] / 2
    below, moment = (np.concatenate([[0], np.cumsum(w)]) for w in (p, p * t))
    c = np.interp((np.arange(4) + .5) / 4, np.cumsum(p), t)
    for _ in range(2000):
        cuts = np.concatenate([edges[:1], (c[1:] + c[:-1]) / 2, edges[-1:]])
        c = np.diff(np.interp(cuts, edges, moment)) / np.diff(np.interp(cuts, edges, below))
    print(f"angles, level {level}: cosines {np.round(np.cos(c), 6)}, "
          f"tangents of the borders {np.round(np.tan((c[1:] + c[:-1]) / 2), 6)}")
