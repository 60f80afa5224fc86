"""Rows of experiments that are not whole, saved in the repository: other machines go on from them."""

import dataclasses
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from experiments import __main__ as command_line
from experiments import claims
from experiments.execution import queue, results, saved_rows, verify
from experiments.study.run import Run
from experiments.study.tuning import Tuned
from experiments.study.verdict import Verdict
from tests import ROOT, saved
from tests.claim_rows import FAILS, HOLDS, made_up, under

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
CLAIM = made_up(TUNED)
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


def test_a_row_has_a_hash_of_its_claims_code(tmp_path, monkeypatch):
    """A claim that no commit has, or a module beside it, changes what is measured; a page does not."""
    folder = tmp_path / "claims" / NAME
    folder.mkdir(parents=True)
    monkeypatch.setattr(claims, "__file__", str(folder.parent / "__init__.py"))
    found = []
    for name, text in [("claim.py", "1"), ("claim.py", "2"), ("recipe.py", "1"), ("claim.md", "1")]:
        (folder / name).write_text(text)
        out = tmp_path / f"{name}-{text}"
        call("run", out, "--shard=1/2")
        call("save", out)
        (row,) = results.read_rows(saved_file())
        found.append(row["origin"]["rule"]["code"])
        saved_file().unlink()
    assert len(set(found[:3])) == 3 and found[2] == found[3]


def test_machines_that_save_rows_divide_the_runs_and_publish_what_one_would(half, tmp_path, capsys):
    other, whole = tmp_path / "other", tmp_path / "whole"
    assert planned(other, capsys, "--shard=2/2") == TUNING[1:]
    assert planned(other, capsys, "--shard=1/2") == []
    call("run", other, "--shard=2/2")
    assert f"{NAME}: 1 runs are for other shards" in capsys.readouterr().err
    # The rate is picked from a saved row and from one of its own.
    assert runs_in(other) == sorted([TUNING[1], FINAL[1]])
    call("publish", other, code=2)
    said = capsys.readouterr().err.splitlines()[-1]
    assert "3 of 4 runs at scale laptop are finished" in said
    assert "`save`" in said
    assert saved_file().exists()
    call("save", other)
    assert capsys.readouterr().out.startswith(f"{NAME}: 3 of 4 runs at scale laptop are saved in {saved_file()}")
    assert names(saved_file()) == [*TUNING, FINAL[1]]
    call("run", half, "--shard=1/2")
    assert runs_in(half) == sorted([TUNING[0], FINAL[0]])
    call("run", half)
    assert len(runs_in(half)) == 2 and "4 of 4 runs" in capsys.readouterr().err.splitlines()[-1]
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
    claim = made_up(one_rate)
    assert published(claim) == ([HOLDS], []) == published(claim)
    failed = dataclasses.replace(claim, judge=lambda df: Verdict(FAILS, "As made up."))
    verdicts, (earlier,) = published(failed)
    assert verdicts == [HOLDS, FAILS]
    assert f"*{HOLDS}*" in earlier and "2 of the 2 runs" in earlier and "the same rule" in earlier
    later = dataclasses.replace(one_rate, first_seeds={"laptop": 2})
    fresh = under(made_up(later), "Supported if others do.")
    verdicts, earlier = published(fresh)
    assert verdicts[2:] == [HOLDS] and len(earlier) == 2
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
    assert said.startswith(f"{NAME}: 1 of 1 saved rows do not count")
    assert why in said
    assert said.count("\n") == 1
    call("report", half)
    assert capsys.readouterr().err.count("\n") == ("config" not in why)  # the run is finished, whatever was saved of it


def test_rows_of_another_rule_are_not_saved(half, tmp_path, monkeypatch, capsys):
    before = saved_file().read_bytes()
    state(under(CLAIM, "Supported otherwise."), monkeypatch)
    call("save", half, code=2)
    said = capsys.readouterr().err.splitlines()
    assert "0 of 2 runs" in said[-1] and "1 more" in said[-1] and saved_file().read_bytes() == before
    call("run", half)
    call("save", half)
    assert capsys.readouterr().out.startswith(f"{NAME}: 3 of 4 runs")
    assert names(saved_file()) == [TUNING[1], *FINAL]


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
    assert names(saved_rows.path_of(NAME, "smoke")) == [*TUNING, FINAL[0]]
    assert names(saved_file()) == TUNING[:1]
    results.write_rows(saved_file(), 2 * results.read_rows(saved_file()))  # as after a merge
    capsys.readouterr()
    assert command_line.main(["list", f"--out={tmp_path / 'other'}"]) == 0
    said = capsys.readouterr().out
    assert "3 runs saved at smoke" in said
    assert "1 runs saved at laptop" in said
    assert "runs here" not in said


def test_who_reproduces_or_verifies_makes_every_row(half, tmp_path, capsys):
    assert planned(tmp_path / "other", capsys, command="reproduce") == TUNING
    call("reproduce", tmp_path / "other")
    assert runs_in(tmp_path / "other") == sorted([*TUNING, *FINAL])
    for command in ("publish", "save"):
        call(command, tmp_path / "other")
    call("verify", tmp_path / "verify", "--rows=1")
    assert runs_in(tmp_path / "verify", "1") == TUNING[:1]


@pytest.mark.parametrize("line", [b"", b"<<<<<<< a"])
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


# ---- rows that somebody has edited ----------------------------------------------------------------------------------

WITHOUT = object()
FAULTS = {
    "run": [WITHOUT, 3, None, "", ["x"]],
    "origin": [WITHOUT, None, [], "x", {}],
    "origin.config": [WITHOUT, None, "x", {}, {"spec": "configs/digits.py"}],
    "origin.flags": [None, [], "x"],
    "origin.scale": ["huge", 3, ["laptop"], None],
    "origin.devices": [WITHOUT, None, "cpu", {}],
    "origin.settings": ["x", [1]],
    "origin.wall_seconds": [WITHOUT, "x", [], {}],
    "origin.commit": [WITHOUT, 3, {}],
    "origin.tree": [WITHOUT, []],
    "origin.jax": [WITHOUT, 3],
    "accuracy": [WITHOUT, None, 3, "x", [], ["x"], [None], {}, [[0.5]]],
    "split": [WITHOUT, None, 3, {}],
    "rate": [WITHOUT, None, "x", [], {}],
    "seed": [WITHOUT, "x", None, {}],
}
COMMANDS = [
    ["list"],
    ["list", NAME],
    ["report", NAME],
    ["list", "--readme"],
    ["run", NAME, "--dry_run"],
    ["reproduce", NAME, "--dry_run"],
    ["save", NAME],
    ["publish", NAME],
    ["verify", NAME],
    ["verify", f"{NAME}/x"],
]


def edited(row, key, value):
    row = json.loads(json.dumps(row))
    of, _, last = key.rpartition(".")
    at = row[of] if of else row
    if value is WITHOUT:
        at.pop(last, None)
    else:
        at[last] = value
    return row


MADE: dict[str, bytes] = {}


@pytest.fixture
def published(tmp_path):
    """The rows of the claim, published; they are made once."""
    folder = results.PUBLISHED / NAME
    if not MADE:
        call("run", tmp_path)
        call("publish", tmp_path)
        MADE.update({path.name: path.read_bytes() for path in folder.iterdir()})
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in MADE.items():
        (folder / name).write_bytes(content)
    return results.read_rows(folder / "rows.jsonl")


@pytest.mark.parametrize("key", [key for key in FAULTS if key.startswith(("run", "origin"))])
def test_an_edited_run_or_origin_is_refused_where_rows_are_read(key, published):
    for value in FAULTS[key]:
        for path in (results.PUBLISHED / NAME / "rows.jsonl", saved_file()):
            results.write_rows(path, [*published[:-1], edited(published[-1], key, value)])
            with pytest.raises(ValueError, match="line 4 is not the row of a run: ") as caught:
                results.published(NAME) if path.name == "rows.jsonl" else saved_rows.read(NAME, "laptop")
            said = str(caught.value)
            assert "\n" not in said and re.search(rf": {re.escape(key)}\b|: {re.escape(key)}[.=]", said), (value, said)


@pytest.mark.parametrize("key", FAULTS)
def test_an_edited_row_is_at_most_one_line_in_every_command(key, published, tmp_path, monkeypatch, capsys):
    """Whether it is published or saved. Each value meets every third command, the next value the next ones."""
    monkeypatch.setattr(verify, "verify", lambda rows_of, **_: [(str(rows_of), True)])
    for number, value in enumerate(FAULTS[key]):
        for name in ("rows.jsonl", saved_file().name):
            results.write_rows(results.PUBLISHED / NAME / "rows.jsonl", published)
            results.write_rows(results.PUBLISHED / NAME / name, [*published[:-1], edited(published[-1], key, value)])
            for argv in COMMANDS[number % 3 :: 3]:
                capsys.readouterr()
                code = command_line.main([*argv, f"--out={tmp_path / 'new'}"])
                said = capsys.readouterr().err.splitlines()
                assert code == 0 or (code == 2 and said[-1].startswith("experiments: ")), (argv, said)
                reads_all = argv[0] != "publish" and argv not in (["report", NAME], ["save", NAME])
                if name == "rows.jsonl" and key == "origin" and reads_all:
                    assert code == 2 and "line 4 is not" in said[-1], (argv, said)


def test_a_claim_that_cannot_read_its_rows_publishes_nothing(published, tmp_path, monkeypatch, capsys):
    before = saved.contents(results.PUBLISHED)
    state(dataclasses.replace(CLAIM, facts=lambda df: {"end": df["other"]}), monkeypatch)
    call("run", tmp_path)
    capsys.readouterr()
    call("publish", tmp_path, code=2)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "Made up: its code fails on these rows" in said
    assert "'other', at test_saved_rows" in said
    assert saved.contents(results.PUBLISHED) == before


@pytest.mark.parametrize(
    "line", [{}, {"commit": 3}, {"commit": "x", "verdict": "x", "rule": "x", "runs": "x"}, WITHOUT]
)
def test_an_edited_log_is_one_line(line, published, tmp_path, capsys):
    log = results.PUBLISHED / NAME / "log.jsonl"
    good = json.loads(log.read_text())
    log.write_text(json.dumps({**good, "more": 1} if line is WITHOUT else line) + "\n")
    capsys.readouterr()
    assert command_line.main(["report", NAME, f"--out={tmp_path}"]) == 2
    assert "log.jsonl': line 1 must have" in capsys.readouterr().err.splitlines()[-1]


def test_rows_of_code_that_no_commit_has_are_not_published(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(saved.START, "tree", "dirty")
    call("run", tmp_path)
    capsys.readouterr()
    call("publish", tmp_path, code=2)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "4 of 4 runs are of code that no commit has" in said and "--out" in said
    assert not (results.PUBLISHED / NAME).exists()


def test_two_published_rows_of_a_run_are_refused(published, capsys):
    results.write_rows(results.PUBLISHED / NAME / "rows.jsonl", [*published, published[0]])
    assert command_line.main(["list"]) == 2
    assert f"has 2 rows of run {published[0]['run']!r}" in capsys.readouterr().err


def test_a_smaller_scale_replaces_published_rows_of_a_larger_one_only_if_that_is_accepted(published, tmp_path, capsys):
    folder = results.PUBLISHED / NAME
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    call("run", tmp_path, "--scale=smoke")
    capsys.readouterr()
    call("publish", tmp_path, "--scale=smoke", code=2)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "scale='smoke'" in said
    assert "--accept_scale_change" in said
    assert "4 rows" in said
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    call("run", tmp_path)
    call("publish", tmp_path)  # the same scale
    call("publish", tmp_path, "--scale=smoke", "--accept_scale_change")
    assert {row["origin"]["scale"] for row in results.published(NAME)} == {"smoke"}
    call("publish", tmp_path)  # a larger one
    assert (folder / "rows.jsonl").read_bytes() == before["rows.jsonl"]
