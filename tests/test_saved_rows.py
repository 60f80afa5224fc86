"""Rows of experiments that are not whole, saved in the repository: other machines go on from them."""

import dataclasses
import json
import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest

from experiments import __main__ as command_line
from experiments import claims, queue, results, saved_rows
from experiments.experiment import Experiment, Finding, Run, Sample, Verdict
from experiments.tuning import Tuned
from tests import saved

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAME = "made_up"
TUNED = Tuned(
    points=lambda scale: [{}],
    grid=lambda scale, point: (0.1, 0.2),
    recipe=lambda scale, *, rate: Run(
        labels={"data": "digits"}, spec="configs/digits.py", overrides={"optimizer.learning_rate": rate}
    ),
    seeds={"smoke": 1, "laptop": 2},
    tuning_seeds={"laptop": 1},
    extensions={"laptop": 0},
)
CLAIM = Experiment(
    number=99,
    title="Made up",
    claim="Runs end well.",
    source="nowhere",
    rule="Supported if they do.",
    hours={"smoke": 0.01, "laptop": 0.01},
    runs=TUNED.runs,
    tuned=TUNED,
    findings=lambda rows: [Finding("end", ours=Sample.of([row["accuracy"][-1] for row in rows]))],
    judge=lambda rows: Verdict.of(True, "As made up."),
    basis=lambda rows: TUNED.basis(rows, model="MLP"),
    draw=lambda rows, figure: figure.subplots().plot([row["accuracy"][-1] for row in rows]),
)
TUNING = [f"rate={rate},split=validation,seed=0,data=digits" for rate in (0.1, 0.2)]
FINAL = [f"rate=0.2,split=test,seed={seed},data=digits" for seed in (0, 1)]  # the stub ends higher at higher rates


COPY = "import shutil, sys; shutil.copytree(*sys.argv[1:], dirs_exist_ok=True)"


@pytest.fixture(autouse=True)
def made_up_claim(tmp_path, monkeypatch):
    """The only claim, whose runs train nothing, and a folder for what is published."""

    def command(run, folder):
        made = tmp_path / "made" / folder.name
        saved.train_command(run, made)
        return [sys.executable, "-S", "-c", COPY, str(made), str(folder)]

    monkeypatch.setattr(results, "PUBLISHED", tmp_path / "published")
    monkeypatch.setattr(queue, "train_command", command)
    monkeypatch.setattr(queue, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(claims, "CLAIMS", (NAME,))
    state(CLAIM, monkeypatch)
    monkeypatch.chdir(ROOT)


def state(claim, monkeypatch):
    monkeypatch.setattr(claims, "load", lambda name: claim)


def call(command, out, *options, code=0):
    assert command_line.main([command, NAME, f"--out={out}", *options]) == code


def runs_in(out, scale="laptop"):
    return sorted(path.parent.name.rpartition("-")[0] for path in (out / NAME / scale).glob("*/DONE"))


def planned(out, capsys, *options, command="run"):
    """The names of the runs that would be run."""
    capsys.readouterr()
    call(command, out, "--dry_run", *options)
    lines = capsys.readouterr().out.splitlines()
    return [pathlib.Path(shlex.split(line)[-1]).name.rpartition("-")[0] for line in lines if str(out) in line]


def saved_file():
    return saved_rows.path_of(NAME, "laptop")


def names(path):
    return [row["run"] for row in results.read_rows(path)]


@pytest.fixture
def half(tmp_path):
    """The folder of a machine that has finished and saved one of the two tuning runs, and nothing else."""
    call("run", tmp_path / "half", "--shard=1/2")
    call("save", tmp_path / "half")
    assert runs_in(tmp_path / "half") == TUNING[:1] == names(saved_file())
    return tmp_path / "half"


def test_machines_that_save_rows_divide_the_runs_and_publish_what_one_would(half, tmp_path, capsys):
    other, whole = tmp_path / "other", tmp_path / "whole"
    assert planned(other, capsys, "--shard=2/2") == TUNING[1:] and planned(other, capsys, "--shard=1/2") == []
    call("run", other, "--shard=2/2")
    assert runs_in(other) == sorted(
        [TUNING[1], FINAL[1]]
    )  # the rate is picked from a saved row and from one of its own
    call("publish", other, code=2)
    said = capsys.readouterr().err.splitlines()[-1]
    assert "3 of 4 runs at scale laptop are finished" in said and "`save`" in said and saved_file().exists()
    call("save", other)
    assert capsys.readouterr().out.startswith(f"{NAME}: 3 of 4 runs at scale laptop are saved in {saved_file()}")
    assert names(saved_file()) == [*TUNING, FINAL[1]]
    call("run", half, "--shard=1/2")
    assert runs_in(half) == sorted([TUNING[0], FINAL[0]])
    call("run", half)
    assert len(runs_in(half)) == 2 and "2 of 2 runs" in capsys.readouterr().err.splitlines()[-1]
    call("report", half)
    of_both = (half / NAME / "laptop" / "report.md").read_text()
    assert "4 runs" in of_both
    call("publish", half)
    rows = results.PUBLISHED / NAME / "rows.jsonl"
    published = rows.read_bytes()
    assert names(rows) == [*TUNING, *FINAL] and not saved_file().exists()
    for out in (half, other):
        shutil.copytree(out / NAME, whole / NAME, dirs_exist_ok=True)
    call("publish", whole)
    assert rows.read_bytes() == published
    assert (rows.parent / "report.md").read_text() == of_both


def test_what_was_published_under_another_rule_stays_in_the_report(tmp_path, monkeypatch):
    """So does a verdict that turned round under the same rule, each with how many of the runs were known then."""

    def published(claim):
        state(claim, monkeypatch)
        call("run", tmp_path)
        call("publish", tmp_path)
        log = [json.loads(line) for line in (results.PUBLISHED / NAME / "log.jsonl").read_text().splitlines()]
        lines = (results.PUBLISHED / NAME / "report.md").read_text().splitlines()
        return [entry["verdict"] for entry in log], [line for line in lines if line.startswith("**Before.**")]

    one_rate = dataclasses.replace(TUNED, grid=lambda scale, point: (0.2,))  # so that no pick is at an edge
    claim = dataclasses.replace(CLAIM, tuned=one_rate, runs=one_rate.runs)
    assert published(claim) == (["supported at this scale"], []) == published(claim)
    failed = dataclasses.replace(claim, judge=lambda rows: Verdict.of(False, "As made up."))
    verdicts, (earlier,) = published(failed)
    assert verdicts == ["supported at this scale", "not supported at this scale"]
    assert "*supported at this scale*" in earlier and "2 of the 2 runs" in earlier and "the same rule" in earlier
    later = dataclasses.replace(one_rate, first_seeds={"laptop": 2})
    fresh = dataclasses.replace(CLAIM, rule="Supported if others do.", tuned=later, runs=later.runs)
    verdicts, earlier = published(fresh)
    assert verdicts[2:] == ["supported at this scale"] and len(earlier) == 2
    assert all("0 of the 2 runs" in line and "by the rule: Supported if they do." in line for line in earlier)


def test_a_saved_row_yields_to_the_folder_of_its_run(half, tmp_path):
    (row,) = results.read_rows(saved_file())
    results.write_rows(saved_file(), [{**row, "accuracy": [0.7]}])
    for command in ("run", "publish"):
        call(command, half)
    assert results.published(NAME)[0]["accuracy"] == row["accuracy"]


def changed(row, **origin):
    return {**row, "origin": {**row["origin"], **origin}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda row: changed(row, rule={"hash": "0" * 12, "text": "Another."}), "rule"),
        (lambda row: changed(row, rule=None), "rule"),
        (lambda row: changed(row, scale="smoke"), "scale"),
        (lambda row: changed(row, fingerprint="0" * 64), "config"),
        (lambda row: changed(row, flags={"num_devices": 2}), "config"),
        (lambda row: changed(row, config={**row["origin"]["config"], "spec": "configs/mnist.py"}), "config"),
        (lambda row: {**row, "run": "rate=0.3"}, "does not have"),
    ],
)
def test_a_row_of_another_run_does_not_count_and_a_note_says_so(change, why, half, tmp_path, capsys):
    (row,) = results.read_rows(saved_file())
    assert planned(tmp_path / "other", capsys) == TUNING[1:]
    results.write_rows(saved_file(), [change(row)])
    assert planned(tmp_path / "other", capsys) == TUNING
    call("report", tmp_path / "other")
    said = capsys.readouterr().err
    assert said.startswith(f"{NAME}: 1 of 1 saved rows do not count") and why in said and said.count("\n") == 1
    call("report", half)
    assert capsys.readouterr().err.count("\n") == ("config" not in why)  # the run is finished, whatever was saved of it


def test_rows_of_another_rule_are_not_saved(half, tmp_path, monkeypatch, capsys):
    before = saved_file().read_bytes()
    state(dataclasses.replace(CLAIM, rule="Supported otherwise."), monkeypatch)
    call("save", half, code=2)
    said = capsys.readouterr().err.splitlines()
    assert "0 of 4 runs" in said[-1] and "1 more" in said[-1] and saved_file().read_bytes() == before
    call("run", half)
    call("save", half)
    assert capsys.readouterr().out.startswith(f"{NAME}: 3 of 4 runs") and names(saved_file()) == [TUNING[1], *FINAL]


def test_saved_rows_of_runs_that_are_not_wanted_now_are_kept(half, tmp_path, capsys):
    (row,) = results.read_rows(saved_file())
    later = {**row, "run": "rate=0.1,split=validation,seed=0,data=mnist"}
    results.write_rows(saved_file(), [later, row, row])  # a row may be there twice, after a merge
    call("run", tmp_path / "other", "--shard=2/2")
    call("save", tmp_path / "other")
    assert names(saved_file()) == [*TUNING, FINAL[1], later["run"]]


def test_scales_are_saved_apart_and_listed(half, tmp_path, capsys):
    for command in ("run", "save"):
        call(command, half, "--scale=smoke")
    assert names(saved_rows.path_of(NAME, "smoke")) == [*TUNING, FINAL[0]] and names(saved_file()) == TUNING[:1]
    results.write_rows(saved_file(), 2 * results.read_rows(saved_file()))  # as after a merge
    capsys.readouterr()
    assert command_line.main(["list", f"--out={tmp_path / 'other'}"]) == 0
    said = capsys.readouterr().out
    assert "3 runs saved at smoke" in said and "1 runs saved at laptop" in said and "runs here" not in said


def test_who_reproduces_or_verifies_makes_every_row(half, tmp_path, capsys):
    assert planned(tmp_path / "other", capsys, command="reproduce") == TUNING
    call("reproduce", tmp_path / "other")
    assert runs_in(tmp_path / "other") == sorted([*TUNING, *FINAL])
    for command in ("publish", "save"):
        call(command, tmp_path / "other")
    call("verify", tmp_path / "verify", "--rows=1")
    assert runs_in(tmp_path / "verify", "1") == TUNING[:1]


@pytest.mark.parametrize("line", [b"", b"{}", b'{"run": 1, "origin": {}}', b'{"run": "a", "origin": 2}', b"<<<<<<< a"])
def test_a_damaged_line_is_named(line, half, capsys):
    with open(saved_file(), "ab") as file:
        file.write(line + b"\n")
    call("run", half, "--dry_run", code=2)
    said = capsys.readouterr().err
    assert str(saved_file()) in said and "line 2" in said and said.count("\n") == 1


def test_branches_on_which_rows_were_saved_are_merged(half, tmp_path):
    repository = tmp_path / "repository"
    (row,) = results.read_rows(saved_file())
    file = repository / "experiments" / "published" / NAME / saved_file().name

    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], cwd=repository, check=True, capture_output=True)

    repository.mkdir()
    shutil.copy(ROOT / ".gitattributes", repository)
    git("init", "--initial-branch=main")
    git("add", ".")
    git("commit", "--message=both")
    for branch, own in (("one", TUNING[:1]), ("two", [TUNING[1], FINAL[1]])):
        git("checkout", "-b", branch, "main")
        file.parent.mkdir(parents=True)
        results.write_rows(file, [{**row, "run": name} for name in own])
        git("add", ".")
        git("commit", "--message=mine")
    git("merge", "one")
    assert sorted(names(file)) == sorted([*TUNING, FINAL[1]])
    assert json.loads(file.read_text().splitlines()[0])["origin"] == row["origin"]
