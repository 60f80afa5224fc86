"""The page "Before you train": its commands run, and print what it says; the old command says where to go."""

import re
import shlex

import pytest

from planning import __main__ as planning
from tests import ROOT

PAGE = (ROOT / "docs" / "before_you_train.md").read_text()
SHOWN = re.findall(r"```sh\n(\S+ -m planning ([^\n]*))\n```\n\n```text\n(.*?)\n```", PAGE, re.DOTALL)
NUMBER = re.compile(r"\d[\d,]*\.?\d*(?:e-?\d+)?")


def test_the_page_has_the_four_commands_and_the_readme_names_it():
    assert [arguments.split()[0] for _, arguments, _ in SHOWN] == list(planning.COMMANDS)
    assert "docs/before_you_train.md" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown[1].split()[0])
def test_commands_print_what_the_page_says(shown, tmp_path, capsys, monkeypatch):
    """Words are the same; numbers may differ by 5 %, as releases of JAX and scikit-learn round otherwise."""
    _, arguments, promised = shown
    monkeypatch.chdir(ROOT)
    words = [word.replace("--figure=", f"--figure={tmp_path}/") for word in shlex.split(arguments)]
    assert planning.main(words) == 0
    lines = promised.split("\n")
    printed = capsys.readouterr().out.rstrip("\n").split("\n")
    if lines[-1] == "...":
        lines, printed = lines[:-1], printed[: len(lines) - 1]
    assert len(printed) == len(lines)
    for line, other in zip(lines, printed, strict=True):
        one, two = ([float(n.replace(",", "")) for n in NUMBER.findall(text)] for text in (line, other))
        assert NUMBER.sub("", line).split() == NUMBER.sub("", other).split()
        assert two == pytest.approx(one, rel=0.05, abs=1.0 if "%" in line else 0)
    assert not any("--figure" in word for word in words) or list(tmp_path.glob("*.png"))
