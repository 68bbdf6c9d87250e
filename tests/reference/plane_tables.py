"""Makes kernels/entropy/universal_plane_tables.inc: python plane_tables.py > universal_plane_tables.inc

The tables of coefficients whose law is a scale mixture of Gaussians, sigma = exp(SPREAD * normal),
normed to variance 1: a little heavier than Gaussian, as channels of KV pages are. Exact integrals,
rounded to integers of 2^14; kernels/entropy/plane_tables.h says what each number means.
"""
import numpy as np
from math import erf, exp, pi, sqrt

SPREAD = .3
ROWS, UNIT_ROW, SYMBOLS, CONTEXTS, TOTAL = 25, 16, 16, 4, 1 << 14
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
SIGMAS = np.exp(SPREAD * NODES) / exp(SPREAD ** 2)     # E sigma^2 = 1


def below(a):
    """P(|x| < a)"""
    return sum(w * erf(a / (s * sqrt(2))) for w, s in zip(WEIGHTS, SIGMAS))


def first_moment(a, b):
    """E |x| over a <= |x| < b"""
    return sum(w * s * sqrt(2 / pi) * (exp(-a * a / (2 * s * s)) - exp(-b * b / (2 * s * s)))
               for w, s in zip(WEIGHTS, SIGMAS))


def frequencies(p):
    """Even but for the first; what is hardly ever met escapes."""
    last = next((k for k in range(1, len(p)) if p[k:].sum() < 1.5 / TOTAL), len(p) - 1)
    p = np.append(p[:last], p[last:].sum())
    f = np.maximum(1, np.round(p[1:] * TOTAL / 2)).astype(int) * 2
    return [TOTAL - int(f.sum()), *map(int, f)] + [0] * (SYMBOLS - last - 1)


def row(r):
    scale = 2. ** (-(r - UNIT_ROW) / 4)                # the step in sigmas
    edges = [k * scale for k in range(SYMBOLS)] + [60.]
    cdf = np.array([below(a) for a in edges])
    p = np.diff(cdf)
    centre = [round(256 * min((first_moment(a, a + scale) / max(below(a + scale) - below(a), 1e-12) - a) / scale, .5))
              if below(a + scale) - below(a) > 1e-9 else 115 for a in edges[:-1]]
    zero = []
    for c in range(CONTEXTS):
        if c < CONTEXTS - 1:
            one, all_ = below((c + 1) * scale) - below((c + .5) * scale), p[c]
        else:                                          # magnitudes 3 and more
            one = sum(below((k + 1) * scale) - below((k + .5) * scale) for k in range(3, 64))
            all_ = 1 - below(3 * scale)
        share = one / all_ if all_ > 1e-9 else .42
        zero.append(TOTAL - 2 * int(min(max(round(share * TOTAL / 2), 1), TOTAL // 2 - 1)))
    return frequencies(p), zero, centre


def listing(name, rows):
    print(f"    .{name} = {{{{")
    for r in rows:
        print("        {" + ", ".join(map(str, r)) + "},")
    print("    }},")


if __name__ == "__main__":
    rows = [row(r) for r in range(ROWS)]
    print("// Made by tests/reference/plane_tables.py.")
    for i, name in enumerate(("base", "zero", "centre")):
        listing(name, [r[i] for r in rows])
    print("    .energy = {" + ", ".join([str(TOTAL // 16)] * 16) + "},")
