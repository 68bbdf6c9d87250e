"""Whether a model still answers from what kvstow kept: a pass key in a long text, asked for at its end.

    python pass_keys.py [RECIPE...] [--tokens 1024 2048] [--page-tokens 1024]

Prints a line for each recipe and length: how much smaller the stored pages are than bfloat16, and how
many of four keys are answered. The keys stand at 12, 35, 60 and 85 % of the text, which is Python's
own manual (pydoc_data.topics). A key is answered when the model says each of its digits. The question
comes behind the text: no recipe has seen it. "raw" shows what the model can do.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pydoc_data.topics
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import kvstow
import kvstow.hf
import smollm2
import torch
import transformers
from kvstow.programs import program

PLACES = (0.12, 0.35, 0.60, 0.85)
KEYS = ("48213", "90657", "31784", "76529")
QUESTION = "\n\nWhat is the pass key? The pass key is"
RECIPES = (
    "raw",
    "int8",
    "kvstow",
    "hot=int8,cold=kvstow",
    *(f"{policy}(keep={keep})|int8" for policy in ("h2o", "snapkv") for keep in (0.5, 0.25)),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """What became of the keys under one recipe. Bytes are those of the text's pages."""

    recipe: str
    tokens: int
    raw_bytes: int
    stored_bytes: int
    answers: tuple[str, ...]

    @property
    def ratio(self) -> float:
        return self.raw_bytes / self.stored_bytes

    @property
    def found(self) -> int:
        return sum(answer == key for answer, key in zip(self.answers, KEYS))


def text_with_key(tokenizer: Any, tokens: int, place: float, key: str) -> list[int]:
    """`tokens` tokens of prose with the key in a sentence at `place` of them."""
    topics = pydoc_data.topics.topics
    prose = " ".join(" ".join(topics[name].split()) for name in sorted(topics))
    words = tokenizer(prose[: 12 * tokens])["input_ids"]
    needle = tokenizer(f"\n\nThe pass key is {key}. Remember it. {key} is the pass key.\n\n")["input_ids"]
    at = int(place * tokens)
    return (words[:at] + needle + words[at:])[:tokens]


def answer(prefix: kvstow.hf.PrefixCache, tokenizer: Any, text: Sequence[int]) -> str:
    """The first five digits that the model says after the text and the question."""
    question = tokenizer(QUESTION)["input_ids"]
    said = prefix.generate(tokenizer, [*text, *question], max_new_tokens=8)
    if said.cached_tokens != len(text):
        raise RuntimeError(f"{prefix.space.name}: {said.cached_tokens} of {len(text)} tokens were cached")
    return "".join(c for c in said.text if c.isdigit())[: len(KEYS[0])]


def prefixes(model: Any, client: kvstow.Client, recipes: Sequence[str], page_tokens: int) -> list[Any]:
    """A prefix cache in a space of its own for each recipe."""
    made = []
    for number, recipe in enumerate(recipes):
        drops = "keep=" in recipe
        made.append(
            kvstow.hf.PrefixCache(
                model,
                client,
                f"keys-{number}",
                recipe,
                page_tokens,
                fidelity="sparse" if drops else "",
                private=drops or None,
            )
        )
    return made


def store(found: Sequence[Any], text: Sequence[int]) -> None:
    """Computes the text once and stores its pages, with the attention they received, in each space."""
    cache, _ = found[0].load(text[:1], watch=True)
    with found[0].masked(), torch.no_grad():
        found[0].model(input_ids=torch.tensor([text]), past_key_values=cache, use_cache=True, logits_to_keep=1)
    for prefix in found:
        prefix.store(text, cache)
        # Texts whose keys come late begin with the same page.
        pages = prefix.space.lookup(kvstow.page_keys(text, prefix.spec.page_tokens)).pages
        if pages != len(text) // prefix.spec.page_tokens:
            raise RuntimeError(f"{prefix.space.name}: {pages} pages are stored")


def stored_bytes(prefix: Any, text: Sequence[int]) -> int:
    keys = kvstow.page_keys(text, prefix.spec.page_tokens)
    pages = prefix.space.get(keys)
    if not all(page.hit for page in pages):
        raise RuntimeError(f"{prefix.space.name}: {[page.message for page in pages if not page.hit]}")
    return sum(page.stored_bytes for page in pages)


def measure(
    model: Any, tokenizer: Any, tokens: int, recipes: Sequence[str] = RECIPES, page_tokens: int = 1024
) -> list[Row]:
    """A row for each recipe. Pages with a cold form are in it, on disk, when they are asked for."""
    with (
        tempfile.TemporaryDirectory() as disk,
        kvstow.Server("1GiB", disk, disk_bytes="2GiB") as server,
        kvstow.Client(server.address, timeout=120) as client,
    ):
        found = prefixes(model, client, recipes, page_tokens)
        texts = [text_with_key(tokenizer, tokens, place, key) for place, key in zip(PLACES, KEYS)]
        for text in texts:
            store(found, text)
        evict = [program("kvstow"), "evict", "--server", server.address, "--tier", "host"]
        subprocess.run(evict, check=True, capture_output=True)
        return [
            Row(
                recipe,
                tokens,
                sum(len(text) * prefix.spec.token_bytes for text in texts),
                sum(stored_bytes(prefix, text) for text in texts),
                tuple(answer(prefix, tokenizer, text) for text in texts),
            )
            for recipe, prefix in zip(recipes, found)
        ]


def load_model() -> tuple[Any, Any]:
    folder = smollm2.save_smollm2()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--page-tokens", type=int, default=1024)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", default=list(RECIPES))
    arguments = parser.parse_args()
    model, tokenizer = load_model()
    if arguments.format == "text":
        print(f"{'recipe':<24} {'tokens':>6} {'ratio':>6} {'found':>6}  answers")
    for tokens in arguments.tokens:
        for row in measure(model, tokenizer, tokens, arguments.recipes, arguments.page_tokens):
            if arguments.format == "json":
                print(json.dumps({**dataclasses.asdict(row), "ratio": row.ratio, "found": row.found}))
            else:
                print(
                    f"{row.recipe:<24} {tokens:>6} {row.ratio:>6.2f} {row.found:>3}/{len(KEYS)}  "
                    + " ".join(row.answers),
                    flush=True,
                )


if __name__ == "__main__":
    main()
