"""kvstow-judge without torch: its arguments, the search for a step, and what it prints."""

import importlib.util
import json
import math
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from kvstow.judge import main, match
from kvstow.judge.plan import parse
from kvstow.judge.plot import as_svg
from kvstow.judge.table import Row, as_json, as_text
from kvstow.judge.verdict import Cost, Verdict, verdict_of
from kvstow.models import is_auto


def test_torch_is_not_imported():
    code = "import sys, kvstow.judge; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "kvstow.judge", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith("usage: kvstow-judge")


def test_torch_that_is_missing_is_named(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else found(name, *rest)
    )
    assert main(["model", "--texts", __file__]) == 2
    said = capsys.readouterr().err
    assert "torch" in said and "pip install 'WHEEL[hf]'" in said


# Arguments.


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--texts", "/none/such.txt"], "--texts: there is no file /none/such.txt"),
        (["--calibrations", "/none"], "--calibrations: there is no file /none"),
        (["--statistics", "/none", "--recipes", "auto"], "--statistics: there is no file /none"),
        (["--tokens", "15"], "--tokens: 15 is less than 16"),
        (["--window", "1"], "--window: 1 is less than 2"),
        (["--page-tokens", "0"], "--page-tokens: 0 is less than 1"),
        (["--plot", "/none/such/file.svg"], "--plot: there is no folder /none/such"),
        (["--server", "127.0.0.1:1"], "--server and --space"),
        (["--space", "s"], "--server and --space"),
        (["--cold"], "--cold: needs --server"),
        (["--server", "127.0.0.1:1", "--space", "s", "--recipes", "raw"], "--server: .*leave out"),
        (["--held", __file__], "--held and --statistics: are for recipe auto"),
        (["--match", "auto"], "--match: auto"),
    ],
)
def test_wrong_arguments_are_errors_that_name_them(arguments, error):
    texts = [] if "--texts" in arguments else ["--texts", __file__]
    with pytest.raises(ValueError, match=error):
        parse(["model", *texts, *arguments])


def test_a_calibration_adds_the_recipe_that_needs_one():
    usual = parse(["model", "--texts", __file__]).judged
    assert "kvstow" in usual and "kvstow-cal" not in usual
    assert parse(["model", "--texts", __file__, "--calibrations", __file__]).judged == (*usual, "kvstow-cal")
    assert parse(["model", "--texts", __file__, "--recipes", "raw"]).judged == ("raw",)
    assert parse(["model", "--texts", __file__, "--server", "h:1", "--space", "s"]).judged == ()


def test_recipes_that_a_server_fits_are_known():
    assert is_auto("auto") and is_auto("auto(divergence=0.02)")
    assert is_auto("auto,hot=int8,cold=kvstow(keys=2)")
    assert not is_auto("automatic") and not is_auto("kvstow") and not is_auto("hot=int8,cold=kvstow")


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as end:
        parse(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert "examples:" in said and "kvstow-judge ./my-model" in said


# The step at which a recipe costs what another one does.


def test_a_step_goes_into_a_recipe():
    assert re.fullmatch(r"planes\(.*step=0\.75[,)].*", match.with_step("kvstow", 0.75))
    calibrated = match.with_step("kvstow-cal(run=10,step=2)", 3.5)
    assert "run=10" in calibrated and re.findall(r"step=([^,)]*)", calibrated) == ["3.5"]
    for recipe in ("int8", "turboquant4", "auto"):
        with pytest.raises(ValueError):
            match.with_step(recipe, 1.0)


@pytest.mark.parametrize("power", [1.2, 1.7, 2.4])
@pytest.mark.parametrize("factor", [0.0002, 0.005, 0.1])
def test_the_search_finds_the_step(power, factor):
    steps = []

    def judge(step):
        steps.append(step)
        return Verdict(ratio=5 * step, divergence=factor * step**power, same=1.0)

    best = match.search(0.0075, judge)
    assert best.verdict.divergence == pytest.approx(0.0075, rel=0.02)
    assert best.step in steps and len(steps) <= 5


def test_the_search_ends_where_a_recipe_costs_nothing():
    best = match.search(0.0075, lambda step: Verdict(ratio=1, divergence=0.0, same=1.0))
    assert best.verdict.divergence == 0


def test_the_search_ends_where_costs_do_not_follow_steps():
    def judge(step):
        return Verdict(ratio=1, divergence=0.02 + 0.001 * math.sin(step), same=1.0)

    assert 0.018 < match.search(0.0001, judge).verdict.divergence < 0.022


def test_the_search_ends_at_a_step_that_the_recipe_refuses():
    def judge(step):
        if step > 8:
            raise ValueError("step: must be a number from 0.01 to 8")
        return Verdict(ratio=step, divergence=1e-4 * step, same=1.0)

    best = match.search(0.01, judge)
    assert best.step <= 8 and best.verdict.divergence == 1e-4 * best.step


# What it prints.

COSTS = (Cost(share=0.5, divergence=0.01, same=1.0), Cost(share=0.125, divergence=0.03, same=0.9))


def test_bytes_are_averaged_and_not_ratios():
    verdict = verdict_of(COSTS)
    assert verdict.ratio == pytest.approx(3.2)
    assert verdict.divergence == pytest.approx(0.02) and verdict.same == pytest.approx(0.95)


def test_the_table_names_the_worst_text():
    plan = parse(["model", "--texts", __file__])
    said = as_text(plan, ["one.txt", "two.txt"], [Row("kvstow", COSTS, "a note")]).splitlines()
    assert said[0].startswith("model: 2 texts of 1024 tokens")
    assert said[3].split()[0] == "recipe"
    assert said[4].split() == ["kvstow", "3.20", "x", "0.0200", "95.0%", "0.0300", "two.txt"]
    assert said[5:] == ["kvstow: a note"]


def test_each_text_has_a_row_on_demand():
    plan = parse(["model", "--texts", __file__, "--by-text"])
    said = as_text(plan, ["one.txt", "two.txt"], [Row("kvstow", COSTS)]).splitlines()
    assert said[5].split() == ["one.txt", "2.00", "x", "0.0100", "100.0%"]
    assert said[6].split() == ["two.txt", "8.00", "x", "0.0300", "90.0%"]


def test_json_has_all_of_it():
    plan = parse(["model", "--texts", __file__, "--format", "json"])
    found = json.loads(as_json(plan, ["one.txt", "two.txt"], [Row("kvstow", COSTS)]))
    (row,) = found["rows"]
    assert row["recipe"] == "kvstow" and row["ratio"] == pytest.approx(3.2)
    assert [text["text"] for text in row["texts"]] == ["one.txt", "two.txt"]
    assert row["texts"][1]["divergence"] == 0.03


def test_the_drawing_joins_rows_that_differ_in_their_step():
    steps = [Row(f"kvstow-cal(run=10,step={step})", [Cost(0.1 / step, 0.002 * step, 1.0)]) for step in (2, 4)]
    others = [Row("a<b", [Cost(0.5, 0.0, 1.0)]), Row("auto(divergence=0.01)", [Cost(0.05, 0.01, 1.0)])]
    drawing = as_svg("two & more", [*steps, *others])
    root = ElementTree.fromstring(drawing)
    space = "{http://www.w3.org/2000/svg}"
    lines = [line.get("points", "").split() for line in root.iter(space + "polyline")]
    assert [len(points) for points in lines] == [2, 1, 1]
    names = [text.text for text in root.iter(space + "text")]
    assert names[0] == "two & more" and names[-3:] == ["kvstow-cal(run=10)", "a<b", "auto"]
    places = [tuple(map(float, point.split(","))) for points in lines for point in points]
    assert places[1][0] > places[0][0] and places[1][1] < places[0][1]  # smaller, and dearer
    assert all(70 <= x <= 550 and 50 <= y <= 390 for x, y in places)
