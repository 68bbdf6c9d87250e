"""What a run of `kvstow-calibrate` is asked to do: its arguments, checked."""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kvstow import console
from kvstow.programs import program

_WRONG_USE = 2  # the exit code of `kvstow` for arguments that it refuses
_LEAST_CONTEXT, _MOST_CONTEXT = 128, 32768
_EXAMPLES = """\
examples:
  kvstow-calibrate HuggingFaceTB/SmolLM2-135M-Instruct --out smollm2.kvcal
      with the texts of the package, on a GPU where there is one
  kvstow-calibrate ./my-model --out model.kvcal --texts prompts/*.txt --tokens 65536
      with texts like those that the server will hold: the best calibration
  kvstow-calibrate ./my-model --out long.kvcal --recipe 'kvstow-cal(run=10,step=1.5)' --keep
      for ten layers a run; --keep leaves the statistics, for the same model under other recipes
  kvstow-calibrate ./my-model --out quick.kvcal --no-gradients
      no backward passes: two thirds of the time, and a coarser calibration
  kvstow-calibrate ./my-model --out model.kvcal --no-vocabulary
      for processors that decode much: a fifth faster, and pages take a tenth more bytes
  kvstow-calibrate ./my-model --out model.kvstats --statistics
      for a space of recipe auto, whose cold form the server fits by itself to its own pages

A run that was broken off goes on where it stopped: give the same command again.
Then: kvstow codec send model.kvcal, or kvstow codec send --space SPACE model.kvstats
"""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The arguments, and what follows from them."""

    model: str
    out: Path
    work: Path  # the folder of what was done so far
    texts: tuple[Path, ...]  # empty: those of the package
    tokens: int = 24576
    context: int = 2048  # tokens of one text
    gradients: bool = True
    statistics: bool = False  # are all that is made, for a server that fits by itself
    vocabulary: bool = True  # is fitted, too, where the recipe has one: what tokens foretell
    recipe: str = "kvstow-cal"
    device: str = "auto"
    dtype: str = "auto"
    keep: bool = False
    draws: int = 2  # of labels, for each window

    @property
    def cases(self) -> int:
        """How many texts."""
        return self.tokens // self.context

    @property
    def foretells(self) -> bool:
        """Whether the calibration shall know what tokens say of their K and V."""
        has_one = any(name in self.recipe for name in ("kvstow-cal", "joint"))
        return self.vocabulary and has_one and not self.statistics

    @property
    def window(self) -> int:
        """Tokens after a prefix, whose labels are drawn."""
        return min(256, self.context // 8)

    @property
    def prefixes(self) -> tuple[int, int]:
        """Tokens before each window."""
        return self.context // 2, self.context - self.window

    @property
    def probed(self) -> int:
        """Tokens of the first text that get noise."""
        return min(640, self.context // 2)

    @property
    def probe_window(self) -> int:
        """Tokens after these, which tell what the noise does."""
        return min(80, self.window)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvstow-calibrate",
        description="Makes the calibration of a Hugging Face model for recipes like kvstow-cal:\n"
        "runs the model over texts, measures what it feels of errors in its K and V, and fits\n"
        "the tables. With --statistics it leaves the fit to a server.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    console.add_model(parser)
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FILE", help="where the calibration goes")
    add("--texts", type=Path, nargs="+", default=[], metavar="FILE",
        help="text files like what will be stored [a mix that comes with the package]")  # fmt: skip
    add("--tokens", type=int, default=Plan.tokens, metavar="N",
        help=f"tokens to run the model over, in all [{Plan.tokens}]")  # fmt: skip
    add("--context", type=int, default=Plan.context, metavar="N",
        help=f"tokens of one text [{Plan.context}]")  # fmt: skip
    add("--recipe", default=Plan.recipe, help=f"the recipe that it is for [{Plan.recipe}]")
    add("--no-gradients", dest="gradients", action="store_false",
        help="forward passes only: faster, and coarser")  # fmt: skip
    add("--statistics", action="store_true",
        help="fit nothing: write what the model feels of errors, for a space of recipe auto")  # fmt: skip
    add("--no-vocabulary", dest="vocabulary", action="store_false",
        help="do not foretell K and V by a page's tokens, as kvstow-cal else does: processors\n"
        "decode faster, and pages take a tenth more bytes")  # fmt: skip
    console.add_device(parser, Plan.device, Plan.dtype)
    add("--work", type=Path, metavar="FOLDER",
        help="what is done so far, for a run that goes on [FILE.partial]")  # fmt: skip
    add("--keep", action="store_true", help="leave that folder when all is done")
    return parser


def parse(arguments: Sequence[str] | None = None) -> Plan:
    """The plan of these arguments (None: those of the process).

    Raises ValueError, which names the argument. Exits where argparse does.
    """
    found = _parser().parse_args(arguments)
    values = dict(vars(found), texts=tuple(found.texts))
    values["work"] = found.work or found.out.parent / f"{found.out.name}.partial"
    plan = Plan(**values)
    check(plan)
    return plan


def check(plan: Plan) -> None:
    """Raises ValueError, which names the argument."""
    if not _LEAST_CONTEXT <= plan.context <= _MOST_CONTEXT or plan.context % 8:
        raise ValueError(
            f"--context: {plan.context} is no multiple of 8 in {_LEAST_CONTEXT}..{_MOST_CONTEXT}"
        )
    if plan.tokens < plan.context:
        raise ValueError(f"--tokens: {plan.tokens} is less than --context {plan.context}, one text")
    if not plan.out.absolute().parent.is_dir():
        raise ValueError(f"--out: there is no folder {plan.out.absolute().parent}")
    if plan.out.is_dir():
        raise ValueError(f"--out: {plan.out} is a folder; name a file")
    if plan.work.exists() and not plan.work.is_dir():
        raise ValueError(f"--work: {plan.work} is no folder")
    for path in plan.texts:
        if not path.is_file():
            raise ValueError(f"--texts: there is no file {path}")
    _check_recipe(plan.recipe)


def _check_recipe(recipe: str) -> None:
    """Lets `kvstow` read the recipe, before hours of work are spent on it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(program("kvstow")), "codec", "calibrate", "--recipe", recipe]
        command += ["--out", f"{folder}/none", f"{folder}/none"]  # it ends at the missing case
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == _WRONG_USE:
        raise ValueError(f"--recipe: {done.stderr.strip()}")
