"""What a run of `kvstow-judge` is asked to do: its arguments, checked."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from kvstow import console
from kvstow.models import is_auto

_USUAL = ("int8", "turboquant4", "kvstow")
_CALIBRATED = "kvstow-cal"
_EXAMPLES = """\
examples:
  kvstow-judge HuggingFaceTB/SmolLM2-135M-Instruct --texts prompts/*.txt
      some recipes that need no calibration, on your texts
  kvstow-judge ./my-model --texts prompts/*.txt --calibrations model.kvcal \\
      --recipes kvstow 'kvstow-cal(step=3)' 'kvstow-cal(divergence=0.01)'
      what a calibration of kvstow-calibrate brings
  kvstow-judge ./my-model --texts prompts/*.txt --calibrations model.kvcal \\
      --match turboquant4 --recipes kvstow kvstow-cal 'kvstow-cal(run=10)'
      how small pages are at equal cost: finds the step that costs what turboquant4 does
  kvstow-judge ./my-model --texts prompts/*.txt --recipes 'auto(divergence=0.01)' --held served/*.txt
      what a server makes of them that held other texts, and fitted its cold form to these
  kvstow-judge ./my-model --texts prompts/*.txt --server 127.0.0.1:7380 --space prod
      what a space of a server that runs gives back now
"""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The arguments, and what follows from them."""

    model: str
    texts: tuple[Path, ...]
    recipes: tuple[str, ...] = ()
    calibrations: tuple[Path, ...] = ()
    match: str = ""  # the recipe whose cost the others shall have; "" = none
    held: tuple[Path, ...] = ()  # what a server of recipe auto holds before; empty = the mix
    statistics: Path | None = None  # of the model, for recipe auto
    server: str = ""  # its address; "" = one of our own for each recipe
    space: str = ""
    cold: bool = False  # the server's memory is emptied before pages are fetched
    tokens: int = 1024  # of a text, whose K and V are stored
    window: int = 256  # tokens behind these, which the model reads
    page_tokens: int = 256
    by_text: bool = False
    format: str = "text"
    plot: Path | None = None  # where a drawing goes
    device: str = "auto"
    dtype: str = "auto"

    @property
    def judged(self) -> tuple[str, ...]:
        """The recipes to judge. None where a server that runs has its own."""
        if self.server:
            return ()
        if self.recipes:
            return self.recipes
        return (*_USUAL, _CALIBRATED) if self.calibrations else _USUAL


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvstow-judge",
        description="Tells what recipes cost a Hugging Face model. K and V of the beginning of\n"
        "each text go through a server. The model then reads on, behind what came back\n"
        "and behind K and V as they were. The divergence (Kullback-Leibler, in nats) of\n"
        "its next tokens is the cost.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    console.add_model(parser)
    add = parser.add_argument
    add("--texts", type=Path, nargs="+", required=True, metavar="FILE",
        help="text files to judge on, like what will be stored")  # fmt: skip
    add("--recipes", nargs="+", default=[], metavar="RECIPE",
        help=f"what to judge [{' '.join(_USUAL)}, and {_CALIBRATED} with --calibrations]")  # fmt: skip
    add("--calibrations", type=Path, nargs="+", default=[], metavar="FILE",
        help="of kvstow-calibrate, for recipes that need them")  # fmt: skip
    add("--match", default="", metavar="RECIPE",
        help="look for the step at which each recipe costs what this one does")  # fmt: skip
    add("--held", type=Path, nargs="+", default=[], metavar="FILE",
        help="what a server of recipe auto holds before, and fits to [the mix of\n"
        "kvstow-calibrate]")  # fmt: skip
    add("--statistics", type=Path, metavar="FILE",
        help="of kvstow-calibrate --statistics: goes to spaces of recipe auto, as a worker's do")  # fmt: skip
    add("--server", default="", metavar="ADDRESS", help="judge a space of this server, as it is")
    add("--space", default="", metavar="NAME", help="the space, with --server")
    add("--cold", action="store_true",
        help="with --server: move all that it holds in memory to disk first, as `kvstow evict\n"
        "--tier host` does; pages then have their cold form")  # fmt: skip
    add("--tokens", type=int, default=Plan.tokens, metavar="N",
        help=f"leading tokens of a text, whose K and V are stored [{Plan.tokens}]")  # fmt: skip
    add("--window", type=int, default=Plan.window, metavar="N",
        help=f"tokens behind them, which the model reads [{Plan.window}]")  # fmt: skip
    add("--page-tokens", type=int, default=Plan.page_tokens, metavar="N",
        help=f"tokens of a page [{Plan.page_tokens}; with --server, the space's]")  # fmt: skip
    add("--by-text", action="store_true", help="a row for each text, too")
    add("--format", choices=("text", "json"), default="text")
    add("--plot", type=Path, metavar="FILE",
        help="draw what it finds (SVG): how small pages are, and what they cost")  # fmt: skip
    console.add_device(parser, Plan.device, Plan.dtype)
    return parser


def parse(arguments: Sequence[str] | None = None) -> Plan:
    """The plan of these arguments (None: those of the process).

    Raises ValueError, which names the argument. Exits where argparse does.
    """
    values = dict(vars(_parser().parse_args(arguments)))
    for name in ("texts", "recipes", "calibrations", "held"):
        values[name] = tuple(values[name])
    plan = Plan(**values)
    check(plan)
    return plan


def check(plan: Plan) -> None:
    """Raises ValueError, which names the argument."""
    for name, least in (("tokens", 16), ("window", 2), ("page_tokens", 1)):
        if getattr(plan, name) < least:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag}: {getattr(plan, name)} is less than {least}")
    given = {"texts": plan.texts, "calibrations": plan.calibrations, "held": plan.held}
    given["statistics"] = (plan.statistics,) if plan.statistics else ()
    for name, paths in given.items():
        for path in paths:
            if not path.is_file():
                raise ValueError(f"--{name}: there is no file {path}")
    if plan.plot and not plan.plot.absolute().parent.is_dir():
        raise ValueError(f"--plot: there is no folder {plan.plot.absolute().parent}")
    if bool(plan.server) != bool(plan.space):
        raise ValueError("--server and --space: give both, or neither")
    if plan.cold and not plan.server:
        raise ValueError("--cold: needs --server; a server of this command's own does so anyway")
    if plan.server and (plan.recipes or plan.match or plan.calibrations):
        raise ValueError("--server: the space has its recipe; leave out --recipes, --match and "
                         "--calibrations")  # fmt: skip
    if (plan.held or plan.statistics) and not any(map(is_auto, plan.judged)):
        raise ValueError("--held and --statistics: are for recipe auto; add it to --recipes")
    if is_auto(plan.match):
        raise ValueError("--match: auto has no cost of its own; name another recipe")
