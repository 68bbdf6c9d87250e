"""A drawing of what `kvstow-judge` found: how small pages are, and what they cost."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence

from kvstow.judge.table import Row

_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 210, 50, 50
_COLOURS = (
    "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf",
    "#8c564b", "#7f7f7f", "#bcbd22", "#e377c2", "#393b79", "#637939",
)  # fmt: skip
_LEAST = 1e-5  # nats: what costs less stands at this line
_KNOBS = r"[,(](step|ratio|error|divergence)=[^,()]*"  # what tells rows of one line apart


def as_svg(title: str, rows: Sequence[Row]) -> str:
    """An SVG. Rows that differ in their step, or what stands for one, are a line."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        verdict = row.verdict
        point = (verdict.ratio, max(verdict.divergence, _LEAST))
        lines.setdefault(_name(row.title), []).append(point)
    axes = _Axes([point for points in lines.values() for point in points])
    drawing = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(_LEFT, _TOP - 24, title),
        *axes.grid(),
    ]
    for number, (name, points) in enumerate(lines.items()):
        drawing += _line(axes, number, name, sorted(points))
    return "\n".join([*drawing, "</svg>\n"])


def _name(title: str) -> str:
    """The recipe without its step: `kvstow-cal(run=10,step=4)` is `kvstow-cal(run=10)`."""
    bare = re.sub(_KNOBS, lambda found: "(" if found[0][0] == "(" else "", title)
    return bare.replace("(,", "(").replace("()", "")


class _Axes:
    """Where a ratio and a divergence stand. Both axes are logarithmic."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        ratios, costs = zip(*points, strict=True)
        self._ratios = range(0, max(1, math.ceil(math.log2(max(ratios)))) + 1)
        self._costs = range(
            math.floor(math.log10(min(costs))), max(math.ceil(math.log10(max(costs))), -2) + 1
        )

    def x(self, ratio: float) -> float:
        share = math.log2(max(ratio, 1.0)) / self._ratios[-1]
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, cost: float) -> float:
        share = (math.log10(cost) - self._costs[0]) / (self._costs[-1] - self._costs[0])
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def grid(self) -> list[str]:
        right, bottom, drawing = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM, []
        for power in self._ratios:
            x = self.x(2.0**power)
            drawing.append(f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="#ddd"/>')
            drawing.append(_text(x, bottom + 18, f"{2**power} x", "middle"))
        for power in self._costs:
            y = self.y(10.0**power)
            drawing.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#ddd"/>')
            drawing.append(_text(_LEFT - 6, y + 4, f"{10.0**power:g}", "end"))
        smaller = "smaller: K and V in 16 bits over stored bytes"
        drawing.append(_text((_LEFT + right) / 2, _HEIGHT - 12, smaller, "middle"))
        drawing.append(_text(_LEFT, _TOP - 6, "cost: divergence of the next token, in nats"))
        return drawing


def _line(axes: _Axes, number: int, name: str, points: Sequence[tuple[float, float]]) -> list[str]:
    """The points of one recipe, joined, and its name beside the list of all."""
    colour = _COLOURS[number % len(_COLOURS)]
    places = [(axes.x(ratio), axes.y(cost)) for ratio, cost in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    drawing = [f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>']
    x, y = _WIDTH - _RIGHT + 16, _TOP + 10 + 18 * number
    for across, down in [*places, (x, y - 4)]:
        drawing.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3.5" fill="{colour}"/>')
    return [*drawing, _text(x + 10, y, name)]


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'
