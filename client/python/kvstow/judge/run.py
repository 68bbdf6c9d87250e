"""The steps of `kvstow-judge`. Needs torch and transformers."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvstow import mix
from kvstow.judge import match, measure, places
from kvstow.judge.measure import Text
from kvstow.judge.places import Kv, Place
from kvstow.judge.plan import Plan
from kvstow.judge.plot import as_svg
from kvstow.judge.table import Row, as_json, as_text
from kvstow.judge.verdict import Cost, Verdict
from kvstow.lm import LanguageModel, leading_tokens, load
from kvstow.models import is_auto, norms_keys
from kvstow.progress import Progress

_HELD_TOKENS = 2048  # of a text that a server holds before: long texts give several
_MOST_HELD = 12  # of these: a server fits to 16,384 tokens at most


def judge(plan: Plan, progress: Progress) -> str:
    """Does all of it. Returns what to print."""
    progress.step(f"loading {plan.model}", 1)
    found, tokenizer = load(plan.model, plan.device, plan.dtype)
    model = LanguageModel(found)
    pieces = _pieces(plan, tokenizer)
    progress.advance()
    progress.step("reading texts", len(pieces))
    texts = []
    for name, tokens in pieces:
        texts.append(measure.read(model, name, tokens, plan.tokens))
        progress.advance()
    rows = _Judge(plan, model, tokenizer, texts, progress).rows()
    progress.end()
    if plan.plot:
        title = f"{Path(plan.model).name}, {len(texts)} texts of {plan.tokens} tokens"
        plan.plot.write_text(as_svg(title, rows), encoding="utf-8")
    show = as_json if plan.format == "json" else as_text
    return show(plan, [text.name for text in texts], rows)


def _pieces(plan: Plan, tokenizer: Any) -> list[tuple[str, list[int]]]:
    """The beginning of each text. Raises ValueError for a text that is too short."""
    need = plan.tokens + plan.window
    first = leading_tokens(tokenizer)
    pieces = []
    for name, text in mix.read(plan.texts):
        tokens = [*first, *tokenizer(text, add_special_tokens=False)["input_ids"]]
        if len(tokens) < need:
            raise ValueError(
                f"--texts: {name} has {len(tokens)} tokens, and --tokens and --window ask for {need}"
            )
        pieces.append((name, tokens[:need]))
    return pieces


class _Judge:
    """Judges recipe after recipe on the same texts."""

    def __init__(
        self,
        plan: Plan,
        model: LanguageModel,
        tokenizer: Any,
        texts: Sequence[Text],
        progress: Progress,
    ) -> None:
        self._plan, self._model, self._tokenizer = plan, model, tokenizer
        self._texts, self._progress = texts, progress
        self._held: list[Kv] = []
        size = min(plan.page_tokens, plan.tokens)
        self._spec = dataclasses.replace(model.spec, dtype="float16", page_tokens=size)

    def rows(self) -> list[Row]:
        plan = self._plan
        if plan.server:
            with places.of_server(plan, self._spec) as place:
                return [Row(place.title, self._through(place))]
        if not plan.match:
            return [self._of_recipe(recipe) for recipe in plan.judged]
        first = self._of_recipe(plan.match)
        target = first.verdict.divergence
        others = [recipe for recipe in plan.judged if recipe != plan.match]
        return [first, *(self._at(recipe, target) for recipe in others)]

    def _at(self, recipe: str, target: float) -> Row:
        """The recipe with the step that costs `target` nats; as it is, where it has no step."""
        try:
            match.with_step(recipe, 1.0)
        except ValueError:
            return self._of_recipe(recipe)
        tried: dict[float, Row] = {}

        def judge_step(step: float) -> Verdict:
            tried[step] = self._of_recipe(match.with_step(recipe, step))
            return tried[step].verdict

        best = match.search(target, judge_step)
        return dataclasses.replace(tried[best.step], title=f"{recipe}, step={best.step:.3g}")

    def _of_recipe(self, recipe: str) -> Row:
        held = self._to_hold() if is_auto(recipe) else []
        room = sum(kv.nbytes for kv in [*held, *(text.kv for text in self._texts)])
        normed, blobs = norms_keys(self._model.config), self._plan.calibrations
        with places.own_server(recipe, self._spec, room, blobs, normed_keys=normed) as place:
            note = ""
            if held:
                note = places.fit(place, held, self._plan.statistics, self._progress)
            return Row(place.title, self._through(place), note)

    def _through(self, place: Place) -> list[Cost]:
        """Puts all texts, and judges what comes back."""
        self._progress.step(place.title, len(self._texts))
        run = secrets.token_hex(8)  # a server that runs has keys of others
        keys: list[list[bytes]] = []
        try:
            for number, text in enumerate(self._texts):
                keys.append(measure.put(place.space, text.kv, f"{run} {number}"))
            place.cool()
            costs = []
            for text, pages in zip(self._texts, keys, strict=True):
                costs.append(measure.cost(self._model, place.space, text, pages))
                self._progress.advance()
            return costs
        finally:
            place.space.delete([key for pages in keys for key in pages], force=True)

    def _to_hold(self) -> list[Kv]:
        """What a server of recipe auto holds before. The model reads it once."""
        if self._held:
            return self._held
        first = leading_tokens(self._tokenizer)
        ids = mix.tokens_of(self._plan.held, self._tokenizer)
        size = min(_HELD_TOKENS, max(map(len, ids)) + len(first))
        pieces = mix.cut(ids, first, 1, size)[:_MOST_HELD]
        self._progress.step("reading what the server holds", len(pieces))
        for tokens in pieces:
            self._held.append(self._model.states(tokens))
            self._progress.advance()
        return self._held
