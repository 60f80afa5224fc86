"""The form that benchmarks share: turns, children, files, the page of results."""

import functools

import pytest

import benchmarks.__main__ as program
from benchmarks.kit import command, drawing, report, result, taking_turns
from benchmarks.kit.result import Measured, Target

CHILD = """
import sys
from benchmarks.kit import taking_turns
print("what libraries print")
turns = iter([0.5, 1.5])
taking_turns.serve(lambda line: next(turns))
"""


def found(**values):
    return [Measured(name, v, target=Target("<=", 1.3) if name == "ratio" else None) for name, v in values.items()]


def write(folder, *, devices=("cpu:0 cpu",), **values):
    path = folder / "reducers.json"
    environment = {**result.environment_of(), "devices": list(devices)}
    result.write("reducers", found(**values), environment=environment, path=path)
    return path


# ---- turns -------------------------------------------------------------------------------------------------------


def test_each_takes_its_turn_and_the_first_round_is_not_counted():
    order, clock = [], iter(range(100))

    def turn(name):
        order.append(name)
        return float(next(clock))

    seconds = taking_turns.in_turns({n: lambda n=n: turn(n) for n in "ab"}, repeats=3)
    assert "".join(order) == "abbaabba"
    assert seconds == {"a": [3.0, 4.0, 7.0], "b": [2.0, 5.0, 6.0]}
    assert taking_turns.ratios(seconds, "a", "b") == [1.5, 0.8, 7 / 6]


def test_a_child_takes_turns_until_it_is_closed():
    with taking_turns.Child("-c", CHILD) as child:
        assert [child(), child()] == [0.5, 1.5]
        with pytest.raises(RuntimeError, match="ended with code 1"):  # it has no third turn
            child()


def test_a_child_says_why_it_failed_and_is_killed_at_its_limit():
    fails = "from benchmarks.kit import taking_turns\ntaking_turns.serve(lambda line: float(line))"
    with taking_turns.Child("-c", fails) as child:
        assert child("2") == 2.0
        with pytest.raises(RuntimeError, match=r"ended with code 1, and said: ValueError: could not .*'two'"):
            child("two")
    ended = pytest.raises(RuntimeError, match="ended with code -9")
    with taking_turns.Child("-c", "import sys; sys.stdin.read()", limit_seconds=0.1) as child, ended:
        child()


# ---- files and the page ------------------------------------------------------------------------------------------


def test_a_file_holds_what_was_measured(tmp_path):
    environment, read = result.read(write(tmp_path, ratio=[1.0, 2.0, 4.0], other=[1.0]))
    assert read == found(ratio=[1.0, 2.0, 4.0], other=[1.0])
    assert environment["packages"]["jax"] and environment["cpu_count"] >= 1
    assert result.environment_of(packages=["pytest", "no_such_package"])["packages"]["pytest"]
    assert read[0].median == 2.0 and read[0].quartiles == (1.5, 3.0)


def test_the_page_says_what_is_missed_and_links_its_paragraph(tmp_path, monkeypatch):
    write(tmp_path, ratio=[1.5, 1.6, 1.7], other=[1.0])
    monkeypatch.setattr(report, "NOTES", tmp_path)
    assert "| ratio | 1.6 x | 1.55 to 1.65 | 3 | <= 1.3 | missed |" in report.page(["reducers"], folder=tmp_path)
    (tmp_path / "reducers.md").write_text("### ratio\n\nBound by memory.\n")
    page = report.page(["reducers", "not measured"], folder=tmp_path)
    assert "| <= 1.3 | [missed](#ratio) |" in page
    assert "Bound by memory." in page
    assert "1 x cpu:0 cpu" in page


def test_what_was_not_measured_is_said(tmp_path):
    one = Measured("ratio", [], target=Target(">=", 1), missing="torch is not installed")
    result.write("reducers", [one], environment=result.environment_of(), path=tmp_path / "reducers.json")
    assert result.read(tmp_path / "reducers.json")[1] == [one] and one.verdict == ""
    page = report.page(["reducers"], folder=tmp_path)
    assert "| ratio |  |  | 0 | >= 1 | not measured: torch is not installed |" in page
    assert result.in_words(one) == "ratio: not measured: torch is not installed"
    (tmp_path / "old").mkdir()
    write(tmp_path / "old", ratio=[1.0])
    assert report.moved(["reducers"], new=tmp_path, old=tmp_path / "old") == []


def test_what_has_moved(tmp_path):
    for folder, middle in (("old", 1.0), ("new", 2.0)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, ratio=[middle - 0.1, middle, middle + 0.1], other=[0.0, middle, 3.0])
    assert report.moved(["reducers"], new=tmp_path / "new", old=tmp_path / "old") == ["reducers: ratio: 1 -> 2 x"]
    assert report.moved(["reducers"], new=tmp_path / "new", old=tmp_path / "nothing") == []


def test_the_published_page_is_that_of_the_published_files():
    there = sorted(path.stem for path in report.PUBLISHED.glob("*.json"))
    assert set(there) <= set(program.BENCHMARKS)
    if there:
        assert report.PAGE.read_text() == report.page(program.BENCHMARKS)


def test_the_figure_has_each_reducer_once():
    over = {"quick over mean, 8 devices": [1.5, 2.0, 2.5], "slow over mean, 8 devices": [4.0, 5.0]}
    figure = drawing.reducers(found(**over, **{"quick sends": [1.75], "slow sends": [7.0]}, ratio=[1.1]))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["slow  (7.00)", "quick  (1.75)"]
    assert list(axes.containers[0].lines[0].get_xdata()) == [4.5, 2.0]


@pytest.mark.parametrize("name", program.BENCHMARKS)
def test_what_misses_its_target_is_explained(name):
    path = report.PUBLISHED / f"{name}.json"
    notes = report.NOTES / f"{name}.md"
    if not path.exists():
        pytest.skip(f"{name}: not published yet")
    explained = notes.read_text() if notes.exists() else ""
    missed = [one.name for one in result.read(path)[1] if one.verdict == "missed"]
    assert [name for name in missed if f"### {name}\n" not in explained] == []


# ---- commands ----------------------------------------------------------------------------------------------------


def test_a_command_prints_and_writes_beside_what_the_same_commit_and_devices_gave(tmp_path, capsys):
    def one(*, repeats, log):
        yield from found(ratio=[1.0] * repeats)

    path = tmp_path / "x.json"
    run = functools.partial(command.run, one, name="x", doc="", argv=[f"--json={path}"], repeats=3)
    assert run() == 0
    assert capsys.readouterr().out == "ratio: 1 x (quartiles 1 to 1, 3 rounds); target <= 1.3: met\n"
    environment, read = result.read(path)
    assert read == found(ratio=[1.0] * 3)
    old = found(other=[1.0], ratio=[2.0])
    for written, expected in ((environment, found(other=[1.0], ratio=[1.0] * 3)), ({"devices": ["H200"]}, read)):
        result.write("x", old, environment={**environment, **written}, path=path)
        assert run() == 0 and result.read(path)[1] == expected


def test_an_unknown_benchmark_is_refused(capsys):
    assert program.main(["benchmarks", "run", "nothing"]) == 2
    assert "names='nothing': must be of step, " in capsys.readouterr().err
