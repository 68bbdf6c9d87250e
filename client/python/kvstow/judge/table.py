"""What `kvstow-judge` prints."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from kvstow.judge.plan import Plan
from kvstow.judge.verdict import Cost, Verdict, verdict_of

_HEADS = ("recipe", "ratio", "divergence", "same token", "worst text")


@dataclasses.dataclass(frozen=True)
class Row:
    """What one recipe did."""

    title: str
    costs: Sequence[Cost]  # of each text
    note: str = ""  # what else there is to say

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.costs)


def as_text(plan: Plan, texts: Sequence[str], rows: Sequence[Row]) -> str:
    """A table, with lines above that say what was judged. `texts`: their names."""
    cells = [_HEADS]
    for row in rows:
        worst = max(range(len(texts)), key=lambda i: row.costs[i].divergence)
        tells = f"{row.costs[worst].divergence:.4f} {texts[worst]}"
        cells.append((row.title, *_figures(row.verdict), tells))
        if plan.by_text:
            for text, cost in zip(texts, row.costs, strict=True):
                cells.append((f"  {text}", *_figures(verdict_of([cost])), ""))
    widths = [max(len(row[i]) for row in cells) for i in range(len(_HEADS))]
    lines = [
        f"{plan.model}: {len(texts)} texts of {plan.tokens} tokens, "
        f"judged on the {plan.window} that follow.",
        "ratio: K and V in 16 bits over stored bytes. divergence: of the next token, in nats.",
        "",
    ]
    for line in cells:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    lines += [f"{row.title}: {row.note}" for row in rows if row.note]
    return "\n".join(lines)


def _figures(verdict: Verdict) -> tuple[str, str, str]:
    return f"{verdict.ratio:.2f} x", f"{verdict.divergence:.4f}", f"{verdict.same:.1%}"


def as_json(plan: Plan, texts: Sequence[str], rows: Sequence[Row]) -> str:
    """The same as one object."""
    found = {
        "model": plan.model,
        "tokens": plan.tokens,
        "window": plan.window,
        "rows": [
            {
                "recipe": row.title,
                "note": row.note,
                **dataclasses.asdict(row.verdict),
                "texts": [
                    {"text": text, **dataclasses.asdict(verdict_of([cost]))}
                    for text, cost in zip(texts, row.costs, strict=True)
                ],
            }
            for row in rows
        ],
    }
    return json.dumps(found, indent=2)
