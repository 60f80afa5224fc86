"""Published rows run again and compared, forecasts from their times, and dry runs."""

import json
import math
import os
import re
import shutil

import pytest

import runs as run_folders
from experiments import __main__ as command_line
from experiments import claims
from experiments.execution import progress, reruns, results, verify
from experiments.execution.finish import command_of, finish
from experiments.study import report
from experiments.study.run import Run, are_same
from runs import environment
from runs.reporting import done
from tests.claim_rows import ORIGIN

NAME, RUN = "convergence_constants", "dimension=2,num_points=3,steps=100,seed=0"
CLAIM = claims.load(NAME)


def row(measured=None, **origin):
    """A row of a run of train.py, which records its platform."""
    labels = {"reducer": "sum", "sizes": [4, 8], "seed": 0}
    recorded = {"config": {"spec": "configs/digits.py", "overrides": {"seed": 0}}, "flags": {"num_devices": 1}}
    name = Run(labels=labels).name
    return {
        "run": name,
        **labels,
        **(measured or {}),
        "origin": {**ORIGIN, "cpu": "mine", "cores": 1, **recorded, **origin},
    }


# ---- the run that a row records ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", claims.CLAIMS)
def test_published_rows_record_all_that_their_runs_need(name):
    rows = results.published(name)
    for published in rows:
        run = reruns.run_of(published)
        assert run.name == published["run"] and published["origin"]["scale"] in claims.load(name).hours
        assert all(published[key] == value for key, value in run.labels.items())
        assert not run.spec or published["origin"]["config"]["overrides"]["on_nonfinite"] == "ignore"
    for published in reruns.cheapest(rows, count=1):
        run = reruns.run_of(published)
        assert run.config["measure" if not run.spec else "seed"] is not None
        if run.spec:
            assert f"--num_devices={len(published['origin']['devices'])}" in run.arguments


def test_a_row_records_flags_scale_and_what_was_set_of_jax(tmp_path):
    run = Run(
        labels={"seed": 1}, spec="configs/digits.py:smoke", overrides={"num_workers": 2}, flags={"num_devices": 2}
    )
    start = {"commit": "c", "tree": "clean", "python": "3", "packages": {"jax": "1"}, "devices": ["cpu"], "cores": 3}
    start |= {"cpu": "mine", "settings": {"XLA_FLAGS": None, "jax_enable_x64": False}}
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "env.json").write_text(json.dumps({"starts": [{}, start]}))
    (tmp_path / "metrics.jsonl").write_text('{"kind": "eval", "step": 2, "wall_seconds": 7.0, "loss": 0.5}\n')
    (tmp_path / "DONE").write_bytes(done.content(tmp_path, {"step": 2}))
    made = results.row_of(run, tmp_path, scale="smoke")
    origin = made["origin"]
    assert origin["config"]["overrides"] == {"on_nonfinite": "ignore", "num_workers": 2}
    assert (origin["flags"], origin["scale"]) == ({"num_devices": 2}, "smoke")
    assert (origin["cpu"], origin["cores"]) == ("mine", 3)
    assert origin["settings"] == {"jax_enable_x64": False}
    again = reruns.run_of(made)
    assert sorted(again.arguments) == sorted([*run.arguments, "--config.late_workers=interrupt"])
    assert again.config == run.config
    (tmp_path / "DONE").write_bytes(done.content(tmp_path, {"step": 4}))  # of another copy of the folder
    with pytest.raises(ValueError, match=r"not whole .*metrics.jsonl ends at step 2, and the run at 4"):
        results.row_of(run, tmp_path)


def test_settings_of_jax_are_set_as_they_were():
    now = {key: value for key, value in environment.settings().items() if value is not None}
    assert reruns.environment_of(row(settings=now)) == []
    other = {**now, "jax_enable_x64": not now["jax_enable_x64"], "XLA_FLAGS": "--mine"}
    changed = {"env", f"JAX_ENABLE_X64={other['jax_enable_x64']}", "XLA_FLAGS=--mine"}
    assert set(reruns.environment_of(row(settings=other))) == changed
    now.pop("XLA_FLAGS", None)
    unset = ["env", "--unset=XLA_FLAGS"] if "XLA_FLAGS" in os.environ else []
    assert reruns.environment_of(row(settings=now)) == unset


# ---- numbers side by side ----------------------------------------------------------------------------------------

TINY = 1 + 2**-23
NESTED = [{"a": [1.0], "b": [[1, 2], [last]]} for last in (3, 4)]
COMPARED = [
    ([1.0, math.nan, math.inf], [1.0, math.nan, math.inf], "equal bit for bit"),
    ([2, "a", None], (2, "a", None), "equal bit for bit"),
    ([1.0, 3.0], [TINY, 3.0], "equal to 0.001; x[0] 1 published, 1.00000012 now (relative difference 1e-07)"),
    ([8.0, 0.0], [8.0, 1e-9], "equal to 0.001; x[1] 0 published, 1e-09 now (relative difference 1e-09)"),
    ([8.0, 0.001], [8.0, 0.01], "x[1] 0.001 published, 0.01 now (relative difference 0.01)"),
    (*NESTED, "x.b[1][0] 3 published, 4 now (relative difference 0.3)"),
    ({"a": 9.0, "count": 9e9}, {"a": 9.1, "count": 9e9}, "x.a 9 published, 9.1 now (relative difference 0.01)"),
    ([1.0, 2.0], [1.0], "x 2 values published, 1 values now"),
    ([1.0], [math.nan], "x[0] 1 published, nan now"),
    ([1.0], None, "x [1.0] published, None now"),
    ("a", "b", "x a published, b now"),
]


@pytest.mark.parametrize(("published", "now", "said"), COMPARED)
def test_numbers_are_compared_place_by_place(published, now, said):
    found = reruns.compare(row({"x": published, "y": 2.0}), row({"x": now, "y": 2.0, "new": 3}))
    assert found.is_equal == said.startswith("equal") and str(found).partition(": ")[2].endswith(said)
    assert reruns.compare(row({"x": published}), row({"x": published})).word == "equal bit for bit"


def test_measured_times_and_live_runs_are_not_judged():
    """Of a live run it is said how the numbers differ, since no two take the same gradients."""
    old = row({"x": 1.0, "seconds": [1.0, 2.0]})
    new = row({"x": 1.0, "seconds": [1.0, 8.0]})
    assert not reruns.compare(old, new).is_equal
    assert reruns.compare(old, new, timings=["seconds"]).word == "equal bit for bit"
    assert reruns.compare(old, new, timings=["seconds", "x"]).word == "measured anew"
    published = row({"accuracy": 0.5}, flags={"live": True})
    now = row({"accuracy": 0.6}, flags={"live": True})
    found = reruns.compare(published, now)
    assert found.is_equal and "measured anew; accuracy 0.5 published, 0.6 now" in str(found)
    assert reruns.summary([found]) == "1 measured anew"


def test_a_difference_comes_with_what_else_differs():
    published = {"jax": "1", "cores": 1, "commit": "a" * 40}
    now = {"jax": "2", "cores": 2, "commit": "b" * 40}
    found = reruns.compare(row({"x": 1.0}, **published), row({"x": 2.0}, **now))
    assert str(found).endswith(f"run with commit {'b' * 10}, not {'a' * 10}, with jax 2, not 1, with cores 2, not 1")


@pytest.mark.parametrize("before", [{"cpu": "yours"}, {"cpu": None}, {"cores": 2}, {"jax": "1"}, {"devices": ["gpu"]}])
def test_a_difference_names_the_platform(before):
    found = reruns.compare(row({"x": 1.0}, **before), row({"x": 1.0005}))
    (key,) = before
    assert found.is_equal
    assert "x 1 published, 1.0005 now" in str(found)
    assert f"run with {key} " in str(found)
    assert not reruns.compare(row({"x": 1.0}, **before), row({"x": 1.002})).is_equal


def test_rows_of_one_name_and_other_configs_are_not_the_same():
    assert are_same(row(), row({"x": 1}))
    assert are_same(row(fingerprint="a"), row(fingerprint="b"))  # configs have got a new key with a default
    assert not are_same(row(), row(flags={"num_devices": 2}))


# ---- the commands ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which an experiment was reproduced at smoke scale, and published."""
    root = tmp_path_factory.mktemp("verify")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "PUBLISHED", root / "published")
        patch.setenv("GIT_DIR", str(root))  # so that it is not known whether this code is committed
        for command in ("reproduce", "publish"):
            assert command_line.main([command, NAME, "--scale=smoke", f"--out={root / 'out'}"]) == 0
    return root


@pytest.fixture
def published(folder, monkeypatch, tmp_path):
    """The path of the published rows, which may be changed."""
    monkeypatch.setattr(results, "PUBLISHED", tmp_path / "published")
    return shutil.copytree(folder / "published", tmp_path / "published") / NAME / "rows.jsonl"


@pytest.fixture(scope="module")
def verified(folder):
    """The folder of a verification that found all equal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "PUBLISHED", folder / "published")
        assert command_line.main(["verify", NAME, f"--out={folder / 'verify'}"]) == 0
    return folder / "verify"


def test_what_a_rerun_gave_is_said_and_kept(published, verified):
    (of_run,) = results.read_rows(published)
    said = (verified / NAME / "1" / "verified.txt").read_text()
    assert said == f"{NAME}/{of_run['run']}: equal bit for bit\n"
    (again,) = results.finished([reruns.run_of(of_run)], root=verified / NAME / "1")
    assert again["worst_cosine"] == of_run["worst_cosine"]


def test_an_interrupted_rerun_is_gone_on_with_and_differences_fail(published, verified, tmp_path, capsys):
    (of_run,) = results.read_rows(published)
    results.write_rows(published, [{**of_run, "longest": 2 * of_run["longest"]}])
    root = shutil.copytree(verified, tmp_path / "verify")
    (root / NAME / "1" / "verified.txt").unlink()
    begun = len(json.loads(next(root.glob(f"{NAME}/1/*/env.json")).read_text())["starts"])
    for arguments in (["verify", NAME, "--rows=9"], ["verify", f"{NAME}/{of_run['run']}"]):
        assert command_line.main([*arguments, f"--out={root}"]) == 1
        assert f"{of_run['run']}: different; longest {2 * of_run['longest']:.9g} published" in capsys.readouterr().out
        (root / NAME / "1" / "verified.txt").unlink()
    assert len(json.loads(next(root.glob(f"{NAME}/1/*/env.json")).read_text())["starts"]) == begun == 1


def test_what_is_reproduced_is_reported_listed_and_compared_with_what_is_published(published, folder, tmp_path, capsys):
    (of_run,) = results.read_rows(published)
    assert of_run["origin"]["fingerprint"] == run_folders.fingerprint(
        {"measure": of_run["origin"]["config"]["measure"]}
    )
    out = shutil.copytree(folder / "out", tmp_path / "out")
    again = ["reproduce", NAME, "--scale=smoke", f"--out={out}"]
    assert command_line.main(again) == 0
    said, at = capsys.readouterr().out, out / NAME / "smoke"
    assert "(smoke: drawn gradients, no model, n = 1).**" in said
    assert (at / "figure.png").stat().st_size > 10_000
    assert said.startswith((at / "report.md").read_text())
    assert said.endswith("1 of the 1 finished runs are published: 1 equal bit for bit\n")
    assert command_line.main(["ls", str(out)]) == 0
    listed = capsys.readouterr().out.splitlines()[1].split()
    assert listed[0].startswith(f"{NAME}/smoke/") and listed[1:] == ["-", "-", "finished"]
    results.write_rows(published, [{**of_run, "longest": 2 * of_run["longest"]}])
    assert command_line.main(again) == 0
    assert ": 1 different\n  " in capsys.readouterr().out
    results.write_rows(published, [{**of_run, "origin": {**of_run["origin"], "scale": "laptop"}}])
    assert command_line.main(again) == 0
    assert capsys.readouterr().out.endswith("is published at scale smoke: nothing to compare with.\n")


def test_rows_are_listed_by_the_names_that_verify_takes(published, tmp_path, capsys):
    (of_run,) = results.read_rows(published)
    assert command_line.main(["list", NAME]) == 0
    listed = capsys.readouterr().out.split()[-1]
    assert listed == f"{NAME}/{of_run['run']}"
    assert verify.chosen(listed, count=2) == {NAME: [of_run]}
    assert command_line.main(["verify", listed[:-1] + "7", f"--out={tmp_path / 'out'}"]) == 2
    said = capsys.readouterr().err
    assert f"did you mean {of_run['run']!r}?" in said and said.count("\n") == 1
    published.unlink()
    assert command_line.main(["verify", NAME]) == 2
    assert "has no published rows" in capsys.readouterr().err


def test_a_training_run_is_the_same_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results, "PUBLISHED", tmp_path / "published")
    name = "reducers_compared"
    (run, *_) = claims.load(name).runs("smoke", [])
    assert finish(name, lambda rows: [run], root=tmp_path, command=command_of(name)) == []
    rows = results.finished([run], root=tmp_path, reduce=claims.load(name).reduce, scale="smoke")
    (tmp_path / "published" / name).mkdir(parents=True)
    results.write_rows(tmp_path / "published" / name / "rows.jsonl", rows)
    assert command_line.main(["verify", f"{name}/{run.name}", f"--out={tmp_path / 'verify'}"]) == 0
    assert capsys.readouterr().out == f"{name}/{run.name}: equal bit for bit\n"


# ---- forecasts and dry runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "seconds", "words"),
    [
        ([10.0, 50.0], 60.0, "1 min (measured on cpu (2 cores))"),
        ([0.0], 0.0, "0 min (measured on cpu (2 cores))"),  # times are rounded; those of arithmetic are 0
        ([10.0, None], 10.0, "0.17 min (measured on cpu (2 cores))"),
        ([], 3600 * CLAIM.hours["laptop"], f"{60 * CLAIM.hours['laptop']:.2g} min (estimated, never measured)"),
    ],
)
def test_times_are_those_of_published_rows_where_there_are_some(times, seconds, words):
    scales = [("laptop", each) for each in times] + [("gpu", 7.0)]
    published = [row(scale=scale, wall_seconds=each, cores=2) for scale, each in scales]
    assert progress.time_of(CLAIM, "laptop", published=published) == (pytest.approx(seconds), words)


BIG = [(name, scale) for name in claims.CLAIMS for scale in claims.load(name).hours if scale in ("gpu", "paper")]


@pytest.mark.parametrize(("name", "scale"), BIG)
def test_what_this_machine_cannot_run_can_be_planned(name, scale, tmp_path, capsys):
    assert command_line.main(["run", name, f"--scale={scale}", "--dry_run", f"--out={tmp_path / 'out'}"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    if claims.load(name).tuned:
        assert lines.pop() == "and runs with values that are picked from these"
    assert first.startswith(f"{name} at scale {scale}: 0 of {len(lines)} runs are finished; all take ")
    assert re.search(r"[\d.,]+ (min|h) \((estimated, never measured|measured on .*)\)$", first)
    assert lines and all("train.py --config=configs/" in line for line in lines)
    assert not (tmp_path / "out").exists()


def test_a_dry_run_leaves_out_what_is_finished(folder, capsys):
    assert command_line.main(["run", NAME, "--scale=smoke", "--dry_run", f"--out={folder / 'out'}"]) == 0
    (only,) = capsys.readouterr().out.splitlines()
    assert "1 of 1 runs are finished; all take " in only


# ---- several machines --------------------------------------------------------------------------------------------


def test_runs_of_two_machines_in_one_folder_are_one_experiment(folder, tmp_path):
    here = folder / "out" / NAME / "smoke"
    (run,) = CLAIM.runs("smoke", [])
    at = results.folder_of(run, here)
    shutil.copytree(at, tmp_path / at.name)
    other = Run(labels={**run.labels, "seed": 1})
    there = shutil.copytree(at, tmp_path / "there" / results.folder_of(other, tmp_path).name)
    env = json.loads((there / "env.json").read_text())
    env["starts"][-1] |= {"devices": ["cuda:0 NVIDIA H100"], "commit": "b" * 40, "tree": "dirty"}
    (there / "env.json").write_text(json.dumps(env))
    shutil.copytree(there, tmp_path / there.name)  # as one copies folders of another machine
    rows = results.finished([run, other], root=tmp_path, scale="smoke")
    assert [of_run["seed"] for of_run in rows] == [0, 1]
    text = report.section(CLAIM, rows)
    assert "2 runs" in text and "1 x cpu (1)" in text and "1 x cuda:0 NVIDIA H100 (1)" in text
    assert f"{'b' * 10}, changed (1)" in text
