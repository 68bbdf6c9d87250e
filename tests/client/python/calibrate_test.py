"""kvstow-calibrate without torch: its arguments, its texts, and the folder that a run goes on from."""

import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kvstow import mix
from kvstow.calibrate import main
from kvstow.calibrate.plan import Plan, parse
from kvstow.calibrate.work import Work
from kvstow.progress import Progress


def test_torch_is_not_imported():
    code = "import sys, kvstow.calibrate; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "kvstow.calibrate", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith("usage: kvstow-calibrate")


def test_torch_that_is_missing_is_named(tmp_path, monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else found(name, *rest)
    )
    assert main(["model", "--out", str(tmp_path / "x")]) == 2
    said = capsys.readouterr().err
    assert "torch" in said and "pip install 'WHEEL[hf]'" in said


# Arguments.


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--context", "100"], "--context: 100 is no multiple of 8 in 128"),
        (["--context", "132"], "--context: 132 is no multiple of 8"),
        (["--context", "65536"], "--context: 65536 is no multiple"),
        (["--tokens", "2047"], "--tokens: 2047 is less than --context 2048"),
        (["--tokens", "-1"], "--tokens: -1 is less"),
        (["--texts", "/none/such.txt"], "--texts: there is no file /none/such.txt"),
        (["--recipe", "int8"], "--recipe: .*needs no calibration"),
        (["--recipe", "kvstow-cal(steps=3)"], "--recipe: .*steps"),
        (["--out", "/none/such/file"], "--out: there is no folder /none/such"),
        (["--out", "/"], "--out: / is a folder"),
        (["--work", __file__], "--work: .*calibrate_test.py is no folder"),
    ],
)
def test_wrong_arguments_are_errors_that_name_them(tmp_path, arguments, error):
    with pytest.raises(ValueError, match=error):
        parse(["model", "--out", str(tmp_path / "x"), *arguments])
    assert not list(tmp_path.iterdir())


def test_the_plan_follows_from_the_arguments(tmp_path):
    plan = parse(["model", "--out", str(tmp_path / "x.kvcal")])
    assert plan.work == tmp_path / "x.kvcal.partial" and plan.gradients and plan.texts == ()
    assert (plan.cases, plan.prefixes, plan.window) == (12, (1024, 1792), 256)
    assert (plan.probed, plan.probe_window) == (640, 80)
    small = Plan("model", tmp_path, tmp_path, (), tokens=500, context=128)
    assert (small.cases, small.prefixes, small.window) == (3, (64, 112), 16)
    assert (small.probed, small.probe_window) == (64, 16)
    assert not parse(["model", "--out", str(tmp_path / "x"), "--no-gradients"]).gradients


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as end:
        parse(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert "examples:" in said and "kvstow-calibrate ./my-model" in said


# Texts.


def test_the_mix_is_good_for_the_usual_tokens():
    texts = dict(mix.read(()))
    kinds = {"prose", "chat", "json", "tables", "languages", "logs", "cpp", "python", "web", "docs", "system"}
    assert texts.keys() == {f"{kind}.txt" for kind in kinds}
    # A token of the largest vocabularies is some 4.5 characters of English or code.
    assert sum(map(len, texts.values())) / 4.5 > Plan.tokens
    assert min(map(len, texts.values())) > 2000


def test_chats_are_in_the_models_own_words():
    text = dict(mix.read(()))["chat.txt"]
    chats = mix.conversations(text)
    assert len(chats) > 5
    for chat in chats:
        speakers = [message["role"] for message in chat if message["role"] != "system"]
        assert speakers == ["user", "assistant"] * (len(speakers) // 2)
    assert sum(len(message["content"]) for chat in chats for message in chat) > len(text) * 0.9

    class Tokenizer:
        chat_template = "a template"

        def apply_chat_template(self, chat, tokenize):
            assert not tokenize
            return "".join(f"<{message['role']}>{message['content']}" for message in chat)

    class Refusing(Tokenizer):
        def apply_chat_template(self, chat, tokenize):
            raise TypeError("no system role")

    assert mix.in_the_models_words("chat.txt", text, Tokenizer()).startswith("<system>You are")
    assert mix.in_the_models_words("chat.txt", text, Refusing()) == text
    assert mix.in_the_models_words("chat.txt", text, object()) == text
    assert mix.in_the_models_words("prose.txt", "User: hi", Tokenizer()) == "User: hi"


def test_files_of_the_users_are_read(tmp_path):
    (tmp_path / "a.md").write_text("Größe", encoding="utf-8")
    assert mix.read([tmp_path / "a.md"]) == [("a.md", "Größe")]
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="--texts: .*b is not UTF-8"):
        mix.read([tmp_path / "a.md", tmp_path / "b"])


def test_texts_are_cut_in_turn():
    long, short, middle = range(100, 200), range(200, 205), range(300, 330)
    pieces = mix.cut([long, short, middle], [1], 4, 16)
    assert len(pieces) == 9, "all that there are"
    assert all(len(piece) == 16 and piece[0] == 1 for piece in pieces)
    assert [piece[1] for piece in pieces[:4]] == [100, 300, 190, 115]  # 190: where the rests begin
    inner = [token for piece in pieces for token in piece[1:]]
    assert len(set(inner)) == len(inner)  # no token is in two pieces
    assert pieces[2] == [1, *range(190, 200), *range(200, 205)]


def test_too_few_tokens_are_an_error_that_names_the_argument():
    assert len(mix.cut([range(64), range(64)], [], 8, 16)) == 8
    with pytest.raises(ValueError, match="--tokens: the texts are good for 128, not for 144"):
        mix.cut([range(64), range(64)], [], 9, 16)


# The folder.

SETTINGS = {"MODEL": "m", "--tokens": 4096}


def test_a_run_finds_what_an_earlier_one_kept(tmp_path):
    with Work(tmp_path / "work") as work:
        work.begin(SETTINGS)
        assert not work.has("text")
        work.save("text", np.arange(6).reshape(2, 3))
    with Work(tmp_path / "work") as work:
        work.begin(SETTINGS)
        assert work.has("text")
        np.testing.assert_array_equal(work.load("text"), [[0, 1, 2], [3, 4, 5]])


def test_an_array_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    with Work(tmp_path / "work") as work:
        work.begin(SETTINGS)

        def save(path, array):
            path.write_bytes(b"half of it")
            raise OSError("No space left on device")

        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr(np, "save", save)
            work.save("text", np.zeros(3))
        assert not work.has("text")
        work.save("text", np.ones(3))
        assert work.load("text").sum() == 3


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"MODEL": "m", "--tokens": 8192}, "--tokens: 8192, but .* was begun with 4096"),
        ({"MODEL": "other", "--tokens": 4096}, "MODEL: other, but .* was begun with m"),
        ({**SETTINGS, "--context": 128}, "--context: 128, but .* was begun with None"),
        ({"MODEL": "m"}, "--tokens: None, but .* was begun with 4096"),
    ],
)
def test_other_arguments_are_refused_by_name(tmp_path, settings, error):
    with Work(tmp_path / "work") as work:
        work.begin(SETTINGS)
    with Work(tmp_path / "work") as work:
        with pytest.raises(ValueError, match=error):
            work.begin(settings)
        assert json.loads(work.path("settings.json").read_text()) == SETTINGS


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with Work(tmp_path) as work:
        with pytest.raises(ValueError, match="--work: .* holds other files, thesis.tex"):
            work.begin(SETTINGS)
        work.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_one_process_has_the_folder(tmp_path):
    with Work(tmp_path / "work"):
        with pytest.raises(ValueError, match="--work: another process is at work"):
            Work(tmp_path / "work").__enter__()
    with Work(tmp_path / "work") as work:
        work.begin(SETTINGS)
        work.save("text", np.zeros(1))
        work.remove()
    assert not (tmp_path / "work").exists()


def test_a_full_disk_is_told_before_the_work(tmp_path):
    with Work(tmp_path / "work") as work:
        work.need(1)
        with pytest.raises(ValueError, match="--work: .* needs 1000000000.0 GB more"):
            work.need(10**18)


# Progress.


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_a_bar_at_a_terminal_and_lines_elsewhere():
    for out in (Terminal(), io.StringIO()):
        progress = Progress(out)
        progress.step("reading", 4, 1)
        for _ in range(3):
            progress.advance()
        progress.end()
        said = out.getvalue()
        assert "reading: 1 of 4" in said and "reading: 4 of 4" in said and said.endswith("\n")
        assert ("[#######" in said) == out.isatty()
        assert ("2 of 4" in said) == out.isatty()  # lines come now and then only


@pytest.mark.parametrize("more", [["--statistics"], ["--recipe", "rotate(bits=4)"], ["--no-vocabulary"]])
def test_other_results_have_no_vocabulary(more: list[str], tmp_path: Path) -> None:
    arguments = ["m", "--out", str(tmp_path / "o")]
    assert parse(arguments).foretells
    assert not parse([*arguments, *more]).foretells
