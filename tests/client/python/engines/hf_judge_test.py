"""kvstow-judge with torch: what recipes, servers that fit by themselves and servers that run give back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import kvstow  # noqa: E402
from hf_test import MODELS, tiny, tokens_of  # noqa: E402
from kvstow.judge import main, measure, places, run  # noqa: E402
from kvstow.judge.verdict import verdict_of  # noqa: E402
from kvstow.lm import LanguageModel  # noqa: E402
from kvstow.programs import ask  # noqa: E402

WORDS = 128


class Tokenizer:
    """Words w0 to w127, which are the tokens of the tiny models."""

    bos_token_id = None
    chat_template = None

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [int(word[1:]) for word in text.split() if word[0] == "w"]}


@pytest.fixture
def model(monkeypatch: Any) -> LanguageModel:
    found = tiny("llama", num_hidden_layers=2)
    monkeypatch.setattr(run, "load", lambda name, device, dtype: (found, Tokenizer()))
    return LanguageModel(found)


def text_file(folder: Path, name: str, count: int, seed: int) -> str:
    path = folder / name
    path.write_text(" ".join(f"w{token}" for token in tokens_of(count, seed)))
    return str(path)


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    return [text_file(tmp_path, f"{name}.txt", 120, seed) for seed, name in enumerate(("one", "two"))]


SMALL = ["--tokens", "96", "--window", "24", "--page-tokens", "32", "--format", "json"]


def judged(capsys: Any, *arguments: str) -> list[dict[str, Any]]:
    code = main(["model", *SMALL, *arguments])
    said = capsys.readouterr()
    assert code == 0, said.err
    rows: list[dict[str, Any]] = json.loads(said.out)["rows"]
    return rows


def refused(capsys: Any, *arguments: str) -> str:
    assert main(["model", *arguments, *SMALL]) == 2
    return str(capsys.readouterr().err)


def test_coarser_recipes_cost_more(model: LanguageModel, texts: list[str], capsys: Any) -> None:
    rows = judged(capsys, "--texts", *texts, "--recipes", "raw", "int8", "turboquant4", "turboquant3")
    assert [row["recipe"] for row in rows] == ["raw", "int8", "turboquant4", "turboquant3"]
    raw, *coded = rows
    assert raw["divergence"] == pytest.approx(0, abs=1e-6) and raw["same"] == 1
    assert raw["ratio"] == pytest.approx(1, rel=0.02)
    costs = [row["divergence"] for row in coded]
    assert 0 < costs[0] < costs[1] < costs[2]
    assert coded[0]["ratio"] < coded[1]["ratio"] < coded[2]["ratio"]
    assert [text["text"] for text in raw["texts"]] == ["one.txt", "two.txt"]


@pytest.mark.parametrize("kind", MODELS)
def test_the_cost_is_that_of_the_model_itself(kind: str) -> None:
    """Beside logits of the whole text, and of noise that is known."""
    subject = LanguageModel(tiny(kind, **MODELS[kind]))
    tokens = tokens_of(80, 3)
    text = measure.read(subject, "t", tokens, 64)
    with torch.no_grad():
        whole = subject.model(input_ids=torch.tensor([tokens])).logits[0, 64:-1].float()
    torch.testing.assert_close(text.log_p, whole.log_softmax(-1), atol=2e-2, rtol=0)
    spec = dataclasses.replace(subject.spec, dtype="float16", page_tokens=16)
    with places.own_server("int8", spec, text.kv.nbytes, []) as place:
        keys = measure.put(place.space, text.kv, "t")
        assert len(keys) == 4
        place.cool()
        cost = measure.cost(subject, place.space, text, keys)
        back = np.stack([np.empty(spec.page_shape(), np.float16) for _ in keys])
        assert all(result.hit for result in place.space.get(keys, back))
    coded = np.concatenate(list(back), axis=2)
    log_p = subject.log_probs(text.window, subject.past(coded, 64))
    want = torch.nn.functional.kl_div(log_p, text.log_p, log_target=True, reduction="batchmean")
    assert cost.divergence == pytest.approx(want.item(), rel=1e-4, abs=1e-7)
    assert 0.4 < cost.share < 0.7


def test_a_step_is_found_at_which_two_recipes_cost_the_same(
    model: LanguageModel, tmp_path: Path, capsys: Any
) -> None:
    # With few tokens, the cost rises and falls with the step by chance.
    texts = [text_file(tmp_path, f"{seed}.txt", 384, seed) for seed in range(4)]
    rows = judged(
        capsys, "--texts", *texts, "--window", "288", "--match", "int4", "--recipes", "kvstow", "turboquant4"
    )
    assert [row["recipe"].split(",")[0] for row in rows] == ["int4", "kvstow", "turboquant4"]
    assert rows[1]["divergence"] == pytest.approx(rows[0]["divergence"], rel=0.1)
    assert ", step=" in rows[1]["recipe"] and "step" not in rows[2]["recipe"]


def test_a_server_of_recipe_auto_fits_to_what_it_holds(
    model: LanguageModel, texts: list[str], tmp_path: Path, capsys: Any
) -> None:
    held = text_file(tmp_path, "held.txt", 4200, 9)
    (row,) = judged(capsys, "--texts", *texts, "--recipes", "auto(divergence=0.05)", "--held", held)
    assert row["recipe"] == "auto(divergence=0.05)"
    assert row["note"].startswith("the server "), row
    assert row["ratio"] > 3  # of cold pages: int8 has not two


def test_too_little_for_a_fit_is_said(
    model: LanguageModel, texts: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(places, "_LOOKS_AT_WAITING", 8)
    held = text_file(tmp_path, "held.txt", 300, 9)
    assert main(["model", "--texts", *texts, "--recipes", "auto", "--held", held, *SMALL]) == 1
    assert "--held: the server fitted nothing: waits for pages" in capsys.readouterr().err


def test_a_text_that_is_too_short_is_refused_by_name(
    model: LanguageModel, tmp_path: Path, capsys: Any
) -> None:
    short = text_file(tmp_path, "short.txt", 119, 1)
    assert "--texts: short.txt has 119 tokens" in refused(capsys, "--texts", short)


def test_a_recipe_that_is_none_is_refused(model: LanguageModel, texts: list[str], capsys: Any) -> None:
    assert "nonesuch" in refused(capsys, "--texts", *texts, "--recipes", "nonesuch")


# Servers that run.


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_space_of_a_server_that_runs_is_judged_as_it_is(
    model: LanguageModel, texts: list[str], tmp_path: Path, capsys: Any, dtype: Any
) -> None:
    spec = dataclasses.replace(model.spec, dtype=dtype, page_tokens=16)
    with (
        kvstow.Server(disk_path=tmp_path / "disk", local_bytes=0) as server,
        kvstow.Client(server.address) as client,
    ):
        space = client.open_space("prod", spec, recipe="hot=int8,cold=turboquant3")
        arguments = ("--texts", *texts, "--server", server.address, "--space", "prod")
        (hot,) = judged(capsys, *arguments)
        (cold,) = judged(capsys, *arguments, "--cold")
        assert hot["ratio"] < 2 < cold["ratio"]
        assert 0 < hot["divergence"] < cold["divergence"]
        assert hot["recipe"].startswith("prod (")
        assert client.find_space("prod") is not None and space.ready()
        (usage,) = json.loads(ask(["spaces"], "--format", "json", "--server", server.address))["spaces"]
        assert usage["pages"] == 0  # it took its pages away


def test_a_space_of_another_model_is_refused(
    model: LanguageModel, texts: list[str], capsys: Any
) -> None:
    spec = dataclasses.replace(model.spec, layers=3, dtype="float16", page_tokens=16)
    rope = dataclasses.replace(spec.rope, theta=500000.0)
    with kvstow.Server(local_bytes=0) as server, kvstow.Client(server.address) as client:
        client.open_space("other", spec)
        client.open_space("turned", dataclasses.replace(spec, layers=2, rope=rope))
        arguments = ("--texts", *texts, "--server", server.address)
        assert "other has layers=3, the model 2" in refused(capsys, *arguments, "--space", "other")
        assert "turned has rope.theta=500000" in refused(capsys, *arguments, "--space", "turned")
        assert "has no space none, or does not answer" in refused(capsys, *arguments, "--space", "none")


def test_verdicts_are_means_over_texts(model: LanguageModel, texts: list[str], capsys: Any) -> None:
    (row,) = judged(capsys, "--texts", *texts, "--recipes", "turboquant4")
    costs = [
        kvstow.judge.verdict.Cost(1 / text["ratio"], text["divergence"], text["same"])
        for text in row["texts"]
    ]
    assert verdict_of(costs).ratio == pytest.approx(row["ratio"])
    assert verdict_of(costs).divergence == pytest.approx(row["divergence"])
