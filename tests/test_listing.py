"""The list of the runs below a folder, and how they are found."""

import math
import os
import re
import sys

import pytest

import runs as run_folders
from experiments import __main__ as command_line
from experiments.execution import listing
from runs import saved_runs
from runs.reporting import progress
from tests import saved
from tests.refused import line_of


def config(**changes):
    return {"seed": 0, "train_steps": 20, "train_epochs": None, "reducer": {"name": "mean"}, **changes}


def columns(text):
    return [line.split() for line in text.splitlines()]


def test_a_list_has_folder_differing_keys_steps_metric_and_state(tmp_path):
    record = saved.evaluated(20, loss=0.25, accuracy=0.9875)
    saved.save(tmp_path / "a" / "one", config(), [saved.evaluated(10, accuracy=0.5), record])
    saved.save(tmp_path / "a" / "two", config(seed=1), [{"kind": "train", "step": 5, "loss": 1.0}], state="begun")
    saved.save(tmp_path / "b", config(reducer={"name": "krum", "f": 1}), [], state="begun")
    assert columns(listing.of_folder(tmp_path)) == [
        ["folder", "reducer", "seed", "steps", "last", "evaluation", "state"],
        ["a/one", "mean", "0", "20", "of", "20", "loss", "0.2500,", "accuracy", "98.75%", "finished"],
        ["a/two", "mean", "1", "5", "of", "20", "-", "begun"],
        ["b", "krum", "0", "-", "-", "begun"],
    ]
    assert columns(listing.of_folder(tmp_path / "b")) == [
        ["folder", "steps", "last", "evaluation", "state"],
        [".", "-", "-", "begun"],
    ]


def test_a_list_says_when_each_run_first_reached_a_value(tmp_path, capsys):
    def at(step, accuracy):
        times = {"wall_seconds": step / 10, "simulated_seconds": 2.0 * step, "loss": 1 - accuracy}
        return saved.evaluated(step, accuracy=accuracy, **times)

    saved.save(tmp_path / "a", config(), [at(5, 0.5), at(10, 0.97), at(15, 0.9), at(20, 0.99)])
    saved.save(tmp_path / "b", config(seed=1), [at(5, 0.5), at(10, math.nan)], state="begun")
    saved.save(tmp_path / "c", config(seed=2), [], state="begun")
    untimed = {**at(20, 0.98), "simulated_seconds": 0.0}
    saved.save(tmp_path / "d", config(seed=3), [{"kind": "train", "step": 3, "accuracy": 0.99}, untimed])

    def column(*given):
        assert command_line.main(["ls", str(tmp_path), *given]) == 0
        head, *lines = (re.split(r"  +", line) for line in capsys.readouterr().out.splitlines())
        return head[-2], [line[-2] for line in lines]

    reached = ["step 10, 1.0 s, simulated 20.0 s", "not reached", "-", "step 20, 2.0 s"]
    assert column("--until=accuracy=0.97") == ("until accuracy=0.97", reached)
    assert column("--until", "loss=0.5")[1][:2] == ["step 5, 0.5 s, simulated 10.0 s"] * 2
    assert column("--until=accuracy=0.9", "--goal=min")[1][0] == "step 5, 0.5 s, simulated 10.0 s"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("accuracy", "until='accuracy': must be NAME=VALUE with a finite number"),
        ("=0.9", "until='=0.9': must be NAME=VALUE"),
        ("loss=nan", "until='loss=nan': must be NAME=VALUE"),
        ("acuracy=0.9", "until='acuracy': no run below .* has evaluations with this quantity"),
    ],
)
def test_a_value_that_no_run_can_reach_is_refused_in_one_line(given, said, tmp_path, capsys):
    saved.save(tmp_path / "a", config(), [saved.evaluated(20, accuracy=0.5)])
    assert command_line.main(["ls", str(tmp_path), f"--until={given}"]) == 2
    assert re.search(said, line_of(capsys))


def test_a_run_of_epochs_says_of_how_many_steps(tmp_path):
    records = [{"kind": "train", "step": 10, "epoch": 10 / 46.875}]
    saved.save(tmp_path / "a", config(train_steps=None, train_epochs=2), records, state="begun")
    assert "10 of 94" in listing.of_folder(tmp_path)


def test_a_run_that_a_process_works_on_is_held(tmp_path):
    with run_folders.open_run(str(tmp_path / "a"), config()):
        assert columns(listing.of_folder(tmp_path))[1][-1] == "held"
    assert columns(listing.of_folder(tmp_path))[1][-1] == "begun"


def test_damaged_folders_get_a_note_and_the_rest_is_listed(tmp_path):
    saved.save(tmp_path / "good", config(), [saved.evaluated(20, accuracy=0.5)])
    saved.save(tmp_path / "lines", config(seed=1), []).joinpath("metrics.jsonl").write_text("x\n{}\n")
    saved.save(tmp_path / "none", config(), [saved.evaluated(3)], state="begun").joinpath("config.json").unlink()
    saved.save(tmp_path / "text", config(), [saved.evaluated(3, accuracy="many")])
    text = listing.of_folder(tmp_path)
    assert {line[0]: line[-1] for line in columns(text)[1:5]} == {
        "good": "finished",
        "lines": "damaged",
        "none": "new",
        "text": "damaged",
    }
    notes = [line.partition(": ") for line in text.splitlines()[5:]]
    assert [name for name, _, _ in notes] == ["lines", "none", "text"]
    assert all(reason for _, _, reason in notes)


def test_what_belongs_to_a_run_is_no_run_and_fresh_starts_are(tmp_path):
    run = saved.save(tmp_path / "run", config(), [])
    saved.save(run / "checkpoints" / "20", config(), [])
    saved.save(run / "fresh-1", config(), [])
    saved.save(tmp_path / ".hidden", config(), [])
    assert list(saved_runs.below(tmp_path)) == [run, run / "fresh-1"]


@pytest.mark.parametrize(("folder", "said"), [("none", "no such folder"), ("", "holds no runs")])
def test_nothing_to_list_is_one_line(folder, said, tmp_path, capsys):
    assert command_line.main(["ls", str(tmp_path / folder)]) == 2
    assert said in line_of(capsys)


HOSTILE = "a\x1b[2J\rb\nc\u202ed\x9b31m"


def test_names_cannot_control_the_terminal(tmp_path, capsys):
    """Those of folders, of keys and values of a config, in a table as in the notes below it and in errors."""
    saved.save(tmp_path / HOSTILE, config(), [saved.evaluated(20, accuracy=0.5)])
    saved.save(tmp_path / "other", config(seed=HOSTILE, **{HOSTILE: HOSTILE}), [saved.evaluated(20, accuracy=0.5)])
    saved.save(tmp_path / f"{HOSTILE}2", config(), []).joinpath("config.json").write_text("{")
    assert command_line.main(["ls", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.removesuffix("\n").split("\n")
    assert len(lines) == 5 and all(line.isprintable() for line in lines), lines
    assert r"a\x1b[2J\rb\nc\u202ed\x9b31m" in lines[1]
    assert command_line.main(["ls", str(tmp_path / HOSTILE / HOSTILE)]) == 2
    progress.Progress(1, stream=sys.stderr).message(f"{tmp_path / HOSTILE}: going on")
    said = capsys.readouterr().err.removesuffix("\n").split("\n")
    assert len(said) == 3 and all(line.isprintable() for line in said), said


@pytest.mark.parametrize(("key", "value"), [("seed", "x"), ("k" * 5, "{"), ("reducer", {"name": "y"})])
def test_a_long_value_pads_no_line(key, value, tmp_path):
    """Nor does a damaged file of such a length, which is noted below the table."""
    long = {"name": "y" * 10**6} if isinstance(value, dict) else value * 10**6
    saved.save(tmp_path / "a", config(), [saved.evaluated(20, accuracy=0.5)])
    saved.save(tmp_path / "b", config(**{key: long}), [saved.evaluated(20, accuracy=long)])
    lines = listing.of_folder(tmp_path).splitlines()
    assert len(lines) >= 3 and max(map(len, lines)) < 500


@pytest.mark.parametrize("name", ["DONE", "lock", "queue.lock"])
def test_a_pipe_in_a_folder_is_not_waited_for(name, tmp_path):
    folder = saved.save(tmp_path / "a", config(), [saved.evaluated(20, accuracy=0.5)], state="begun")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert "a " in listing.of_folder(tmp_path)
