"""Makes kernels/entropy/universal_plane_tables.inc: python plane_tables.py > universal_plane_tables.inc

The tables of coefficients whose law is a scale mixture of Gaussians, sigma = exp(SPREAD * normal),
normed to variance 1: a little heavier than Gaussian, as channels of KV pages are. Exact integrals,
rounded to integers of 2^14; kernels/entropy/plane_tables.h says what each number means.
"""
import numpy as np
from math import erf, exp, pi, sqrt

SPREAD = .3
DEAD_ZONE = .55     # kPlaneDeadZone
DISTANCES = 4
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


def edge(m, d):
    """Where magnitude m begins, in steps of the level that is d above the finest."""
    return 0. if m == 0 else m - (1 - DEAD_ZONE) / 2 ** d


def row(r, d):
    scale = 2. ** (-(r - UNIT_ROW) / 4)                # the step in sigmas
    p = lambda a, b: below(b * scale) - below(a * scale)
    cells = [(edge(k, d), edge(k + 1, d)) for k in range(SYMBOLS)]
    counts = np.array([p(a, b) for a, b in cells[:-1]] + [1 - below(cells[-1][0] * scale)])
    centre = [128]
    for k, (a, b) in list(enumerate(cells))[1:]:
        at = first_moment(a * scale, b * scale) / scale / p(a, b) if p(a, b) > 1e-9 else a + .42
        centre.append(round(256 * min(at - k + .5, .99)))
    zero = []                                          # of the bit that leads here from a step twice as wide
    for c in range(CONTEXTS):
        these = range(c, c + 1) if c < CONTEXTS - 1 else range(c, 64)
        half = scale                                   # rows of `zero` are those of the wider step
        q = lambda a, b: below(b * half / 2) - below(a * half / 2)
        one = sum(q(edge(2 * m + 1, d), edge(2 * m + 2, d)) for m in these)
        all_ = sum(q(edge(2 * m, d), edge(2 * m + 2, d)) for m in these)
        share = one / all_ if all_ > 1e-9 else .42
        zero.append(TOTAL - 2 * int(min(max(round(share * TOTAL / 2), 1), TOTAL // 2 - 1)))
    return frequencies(counts), zero, centre


def listing(name, rows):
    print(f"        .{name} = {{{{")
    for r in rows:
        print("            {" + ", ".join(map(str, r)) + "},")
    print("        }},")


if __name__ == "__main__":
    print("// Made by tests/reference/plane_tables.py.")
    print("    .distance = {{")
    for d in range(DISTANCES):
        rows = [row(r, d) for r in range(ROWS)]
        print("        {")
        for i, name in enumerate(("base", "zero", "centre")):
            listing(name, [r[i] for r in rows])
        print("        },")
    print("    }},")
    print("    .energy = {" + ", ".join([str(TOTAL // 16)] * 16) + "},")
