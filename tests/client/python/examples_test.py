"""The examples run as a user runs them, and so does the one in the package's README."""

import re
import runpy
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "client" / "python"


@pytest.mark.parametrize("example", sorted((PACKAGE / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_an_example_runs(example, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", [str(example)])
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out


def test_the_second_session_finds_the_shared_prefix(capsys, monkeypatch):
    example = PACKAGE / "examples" / "prefix.py"
    monkeypatch.setattr("sys.argv", [str(example)])
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[1].startswith("768 tokens: 512 from the cache")


def test_the_readmes_example_runs(capsys):
    code = re.search(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(), re.DOTALL).group(1)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == "128 tokens, ['HIT', 'HIT']\n"
