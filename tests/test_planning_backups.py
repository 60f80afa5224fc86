"""The planner against formulas, a table worked out elsewhere, and what it refuses; traces written and replayed."""

import functools
import re

import jax
import numpy as np
import pytest

from experiments import arrivals as experiments_arrivals
from experiments import staleness
from planning import backups as planner
from planning import steps_to_target
from reducers import arrivals
from runs import TraceRecorder
from tests.refused import only_line_of, refused

LAW = steps_to_target.power_law(0.85)


# ---- plans ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shift", "best"), [(20.0, 96), (5.0, 86), (1.0, 63)])
def test_best_split_by_formula(shift, best):
    """The optima of shift + Exp(1) on 100 machines for N^-0.85, as computed apart from this code."""
    options = {"shift_seconds": shift, "scale_seconds": 1.0}
    made = planner.plan("shifted_exponential", num_machines=100, steps_to_target=LAW, **options)
    harmonic = np.cumsum(1 / np.arange(1, 101))
    by_hand = [(shift + harmonic[-1] - (harmonic[99 - n] if n < 100 else 0)) * n**-0.85 for n in range(1, 101)]
    np.testing.assert_allclose(made.target_seconds, by_hand)
    assert made.best == np.argmin(by_hand) + 1 == best and not made.step_error.any()


def test_measured_plans_agree_with_formulas_within_their_errors():
    options = {"shift_seconds": 1.0, "scale_seconds": 0.5}
    formula = planner.plan("shifted_exponential", num_machines=53, steps_to_target=LAW, **options)
    base = {"name": "shifted_exponential", **options}
    fewer, more = (
        planner.plan("scripted", num_machines=53, steps_to_target=LAW, base=base, num_steps=steps)
        for steps in (4_000, 64_000)
    )
    assert (more.step_error > 0).all()
    assert (np.abs(more.step_seconds - formula.step_seconds) < 4 * more.step_error).all()
    assert np.median(fewer.step_error / more.step_error) == pytest.approx(4, rel=0.2)


def planned_of(seconds, path, **options):
    np.savez(path, seconds=np.asarray(seconds, np.float32))
    return planner.plan(
        "trace", path=str(path), num_machines=seconds.shape[1], steps_to_target=LAW, num_steps=20_000, **options
    )


def test_steps_of_a_trace_that_are_drawn_again_tell_nothing_new(tmp_path):
    seconds = np.random.default_rng(0).exponential(0.1, (300, 8)) + 1
    made = planned_of(seconds, tmp_path / "short.npz")
    true = np.sort(seconds, axis=1).std(axis=0, ddof=1) / np.sqrt(300)
    np.testing.assert_allclose(made.step_error, true, rtol=0.5)  # 30 batches know it to an eighth or so
    low, high = made.best_interval
    assert low <= made.best <= high
    base = {"name": "trace", "path": str(tmp_path / "short.npz")}
    wrapped = planner.plan("slow_workers", base=base, num_machines=8, steps_to_target=LAW, num_steps=20_000)
    assert (wrapped.step_error > true / 2).all()


def test_steps_of_a_trace_that_depend_on_each_other_tell_less(tmp_path):
    rng = np.random.default_rng(0)
    phases = np.repeat(rng.exponential(1.0, (60, 1)), 10, axis=0) + rng.uniform(1, 1.01, (600, 4))
    made = planned_of(phases, tmp_path / "phases.npz")
    naive = np.sort(phases, axis=1).std(axis=0, ddof=1) / np.sqrt(600)
    assert (made.step_error > 2 * naive).all()


def test_short_and_constant_traces(tmp_path, capsys):
    rng = np.random.default_rng(0)
    five = planned_of(rng.uniform(1, 2, (5, 4)), tmp_path / "five.npz")
    assert (five.step_error > 1e-3).all() and five.best_interval is not None
    for count in (1, 2, 3):
        few = planned_of(rng.uniform(1, 2, (count, 4)), tmp_path / "few.npz")
        assert np.isnan(few.step_error).all() and few.best_interval is None
    assert any("fewer than 4 steps" in line for line in planner.findings(few))
    flat = planned_of(np.ones((50, 4)), tmp_path / "flat.npz")
    assert not flat.step_error.any() and flat.best_interval == (4, 4) and flat.best == 4


def test_the_interval_of_the_best_covers_it():
    """Of 20 samples of a model whose best N is known, most intervals have it."""
    true = planner.plan("shifted_exponential", num_machines=20, steps_to_target=LAW, shift_seconds=2.0).best
    base = {"name": "shifted_exponential", "shift_seconds": 2.0}
    options = {"num_machines": 20, "steps_to_target": LAW, "num_steps": 100, "base": base}
    intervals = [planner.plan("scripted", seed=seed, **options).best_interval for seed in range(20)]
    assert sum(low <= true <= high for low, high in intervals) >= 16
    assert np.mean([high - low for low, high in intervals]) > 0.5


# ---- steps to the target -------------------------------------------------------------------------------------------


def test_steps_to_target(tmp_path):
    parse = lambda text: steps_to_target.parse_steps(text, num_machines=100)(np.array([25, 50, 100]))  # noqa: E731
    np.testing.assert_allclose(parse("power_law:1,300"), [1200, 600, 300])
    np.testing.assert_allclose(parse("power_law:0.5"), [2, np.sqrt(2), 1])
    path = tmp_path / "steps.csv"
    path.write_text("num_required,steps\n100,70\n50,140\n")
    np.testing.assert_allclose(parse(str(path)), [np.nan, 140, 70])
    made = planner.plan(
        "constant", num_machines=100, steps_to_target=steps_to_target.parse_steps(str(path), num_machines=100)
    )
    assert made.best == 100 and np.isfinite(made.target_seconds).sum() == 51
    assert made.target_seconds[74] == pytest.approx(140 * 50 / 75)  # between the rows a power law, here of exponent 1


BROKEN = {
    "--model=normal": "name='normal'",
    "--model=lognormal --sigma=-1": "sigma=-1",
    "--model=lognormal --num_machines=3": "num_machines: unknown key",
    "--model=constant --name=pareto": "name: is no option; --model names",
    "--model=constant --self=1": "self: unknown key",
    "--model=constant --machines=0": "machines=0: must be in [1, 65536]",
    "--model=constant --steps=1000000000000": "steps=1000000000000: must be in [1, 10000000]",
    "--model=pareto --steps=10000000": "steps=10000000, machines=100: their product must be at most 134217728",
    "--model=pareto --machines=20000 --steps=2": "machines=20000, choices=20000: their product must be at most",
    "--model=constant --steps_to_target=power_law:500": "(EXPONENT from 0 to 10, STEPS from 1e-30 to 1e+30)",
    "--model=constant --steps_to_target=power_law:1,1e-320": "(EXPONENT from 0 to 10, STEPS from 1e-30 to 1e+30)",
    "--model=constant --steps_to_target={many}": "num_required and steps, num_required from 1 to 65536",
    "--model=constant --steps_to_target={tiny}": "num_required and steps, steps from 1e-30 to 1e+30",
    "--model=constant --reducer=quorum --grace_seconds=1e308": "grace_seconds='1e308': must be a number in [0, 1e+30]",
    "--model=constant --steps_to_target={twice}": "(a num_required has two rows)",
    "--model=none": "no time passes",
    "--model=constant --steps_to_target=power_law": "steps_to_target='power_law': must be power_law:EXPONENT",
    "--model=constant --steps_to_target=nowhere.csv": "steps_to_target='nowhere.csv'",
    "--model=constant --steps_to_target={csv}": "columns num_required and steps",
    "--model=constant --machines=10 --steps_to_target={far}": "says nothing of 1 to machines=10",
    "--model=trace --path={csv}": "path=",
    "--model=constant --figure={csv}/x.png": "x.png",
    "--machines=3": "model",
    "--model=constant --seed=4294967296": "seed=4294967296: must be in [0, 4294967295]",
    "--model=constant --steps_to_target={long}": "columns num_required and steps",
    "--model=constant --reducer=quorum": "grace_seconds: is needed by --reducer=quorum",
    "--model=constant --grace_seconds=1": "grace_seconds: is needed by --reducer=quorum, and no option of another",
    "--model=constant --deadlines=1": "deadlines: is an option of --reducer=deadline alone",
    "--model=constant --reducer=deadline --deadlines=0": "deadlines='0': must be a number in [1e-30",
    "--model=lognormal --machines=10 --reducer=deadline --steps_to_target={near}": "that a step of deadline may count",
    "--model=constant --reducer=mean": "invalid choice: 'mean'",
}


@pytest.mark.parametrize("flags", BROKEN)
def test_refused_in_one_line(flags, tmp_path, capsys):
    (tmp_path / "csv").write_text("n,steps\n1,2\n")
    (tmp_path / "far").write_text("num_required,steps\n50,2\n60,2\n")
    (tmp_path / "near").write_text("num_required,steps\n5,2\n")
    (tmp_path / "long").write_text("num_required,steps\n" + "1" * 200_000)
    (tmp_path / "many").write_text("num_required,steps\n5,2\n1" + "0" * 30 + ",2\n")
    (tmp_path / "tiny").write_text("num_required,steps\n5,1e-320\n")
    (tmp_path / "twice").write_text("num_required,steps\n5,2\n6,2\n5,3\n")
    files = {path.stem: path for path in tmp_path.iterdir()}
    arguments = [argument.format(**files) for argument in flags.split()]
    assert planner.main(arguments) == 2
    assert BROKEN[flags] in only_line_of(capsys)


def test_command(tmp_path, capsys):
    figure = tmp_path / "plan.png"
    arguments = ["--model=shifted_exponential", "--machines=10", "--steps_to_target=power_law:0.85"]
    assert planner.main([*arguments, f"--figure={figure}"]) == 0
    finish, interrupt, given, *tables = capsys.readouterr().out.splitlines()
    assert "power_law:0.85" in given and figure.stat().st_size > 1000
    assert finish.startswith("best: 9 + 1 (95 % interval of N: 9 to 9)")
    assert finish.endswith("; late workers finish")
    assert interrupt == "best: 8 + 2; late workers are interrupted" and len(tables) == 2 * (2 + 10)
    for name, heads, *rows, best in ((*tables[:12], "9"), (*tables[12:], "8")):
        assert name.startswith("late workers ") and "speed-up" in heads
        (marked,) = [row for row in rows if row.startswith("*")]
        assert marked.split()[1] == best
    finished, interrupted = tables[2], tables[14]
    assert float(finished.split()[2]) == pytest.approx(float(interrupted.split()[2]), rel=0.02)  # all are waited for


QUORUM = ["--reducer=quorum", "--grace_seconds=0.5"]


@pytest.mark.parametrize(
    ("flags", "words", "head"),
    [
        (QUORUM, r"best: N = \d+, [\d.]+ of 10 counted \(95 % interval of N: ", "N"),
        (["--reducer=deadline"], r"best: a deadline of [\d.]+ s, [\d.]+ of 10 counted \(95 % interval of D: ", "D s"),
    ],
)
def test_command_for_other_reducers(flags, words, head, tmp_path, capsys):
    arguments = ["--model=shifted_exponential", "--machines=10", "--steps=500", f"--figure={tmp_path / 'plan.png'}"]
    assert planner.main([*arguments, "--steps_to_target=power_law:0.85", *flags]) == 0
    finish, interrupt, about, _, heads, *_ = capsys.readouterr().out.splitlines()
    assert re.match(words, finish) and re.match(words, interrupt) and flags[0].partition("=")[2] in about
    assert heads.strip().startswith(head) and "counted" in heads


def test_a_quorum_without_grace_is_backup_workers_and_a_late_deadline_waits_for_all():
    options = {"num_machines": 8, "steps_to_target": LAW, "num_steps": 2_000, "late_workers": "finish"}
    model = functools.partial(planner.plan, "pareto", **options)
    waits = ("backup_workers", 0.0, ()), ("quorum", 0.0, ()), ("deadline", 0.0, [1e9])
    backups, quorum, late = (model(waiting=planner.Waiting(*each)) for each in waits)
    for name in ("choices", "counted", "step_seconds", "step_error", "steps", "target_error"):
        np.testing.assert_array_equal(getattr(backups, name), getattr(quorum, name))
        if name != "choices":
            np.testing.assert_allclose(getattr(late, name)[0], getattr(backups, name)[-1], rtol=1e-6)


def test_errors_of_steps_that_count_differently_are_those_of_seeds():
    """With a deadline both the time of a step and what it is worth vary, together."""
    waiting = planner.Waiting("deadline", deadlines=[1.3, 1.6])
    options = {"num_machines": 8, "steps_to_target": LAW, "waiting": waiting}
    plans = [planner.plan("pareto", seed=seed, num_steps=400, **options) for seed in range(60)]
    spread = np.std([one.target_seconds for one in plans], axis=0, ddof=1)
    np.testing.assert_allclose(np.mean([one.target_error for one in plans], axis=0), spread, rtol=0.3)
    counted = np.mean([one.counted for one in plans], axis=0)
    np.testing.assert_allclose(counted, [8 * (1 - d**-3) for d in (1.3, 1.6)], rtol=0.02)  # of Pareto, alpha 3


def test_findings_name_what_is_equal_within_the_error_and_what_is_left_out():
    total = np.full(100, 9.0)
    total[94:97] = [1.0, 1.1, 1.2]
    error, n = np.full(100, 0.01), np.arange(1, 101)
    made = planner.Plan("backup_workers", 100, n, n, total, error, np.ones(100), error)
    assert planner.findings(made) == ["best: 95 + 5"]
    total[95] = 0.99
    assert planner.findings(made) == ["best: 96 + 4; within two standard errors of it: N = 95, 96"]
    made.steps[95] = np.nan
    assert planner.findings(made)[1].startswith("left out: 1 of 100 choices")


# ---- traces --------------------------------------------------------------------------------------------------------


def save_text(recorder, path):
    np.savetxt(path, recorder.seconds, fmt="%.9g", delimiter=",", header="a line per step, a column per worker")


@pytest.mark.parametrize(("write", "name"), [(TraceRecorder.write, "trace.npz"), (save_text, "trace.csv")])
def test_what_is_recorded_is_replayed_to_the_bit(write, name, tmp_path):
    seconds = np.random.default_rng(0).lognormal(0, 2, (7, 5)).astype(np.float32)
    recorder = TraceRecorder(num_workers=5)
    for row in seconds:
        recorder.add(row)
    path = tmp_path / name
    write(recorder, path)
    np.testing.assert_array_equal(arrivals.read_trace(path), seconds)
    model = arrivals.make("trace", path=str(path))
    replayed = arrivals.sample(model, jax.random.key(0), num_workers=5, num_steps=16)
    np.testing.assert_array_equal(replayed, np.concatenate([seconds, seconds, seconds[:2]]))  # it starts over
    np.testing.assert_array_equal(model(jax.random.key(1), 3, 2), seconds[3, :2])
    with pytest.raises(ValueError, match="holds 5 workers, fewer than num_workers=6"):
        model(jax.random.key(0), 0, 6)


@pytest.mark.parametrize("row", [[1.0], [1.0, 0.0], [1.0, -1.0], [1.0, np.nan], [[1.0, 2.0]]])
def test_what_a_recorder_refuses(row):
    recorder = TraceRecorder(num_workers=2)
    with pytest.raises(ValueError, match="must be 2 numbers above 0"):
        recorder.add(row)
    assert recorder.num_steps == 0


def test_who_does_not_arrive_is_recorded_and_planned_for_by_nobody(tmp_path, capsys):
    recorder = TraceRecorder(num_workers=2)
    recorder.add([1.0, 2.0])
    recorder.add([1.0, np.inf])
    recorder.write(tmp_path / "trace.npz")
    assert np.isinf(arrivals.read_trace(tmp_path / "trace.npz")[1, 1])
    options = ["--model=trace", f"--path={tmp_path / 'trace.npz'}", "--machines=2", "--steps_to_target=power_law:0.85"]
    assert planner.main(options) == 2
    assert "worker 1 does not arrive at step 1; all must, to be sampled" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["1,2\n3,4\n", "worker 0,worker 1\n1,2\n3,4\n", "\ufeff1,2\r\n\r\n3,4\r\n", "\ufeffa,b\n# more\n1, 2\n3 ,4"],
)
def test_csv_with_names_blank_lines_and_marks(text, tmp_path):
    (tmp_path / "trace.csv").write_text(text, encoding="utf-8")
    np.testing.assert_array_equal(arrivals.read_trace(tmp_path / "trace.csv"), [[1, 2], [3, 4]])


@pytest.mark.parametrize("model", [["trace", "--path={}"], ["scripted", "--base={{'name': 'trace', 'path': '{}'}}"]])
@pytest.mark.parametrize("command", ["backups", "arrivals", "staleness"])
def test_a_trace_has_as_many_machines_as_columns(command, model, tmp_path, capsys):
    """By default; one more is refused by the name of the flag."""
    path = tmp_path / "num_workers=3.csv"
    trace = np.random.default_rng(0).lognormal(0, 0.3, (50, 16))
    np.savetxt(path, trace, delimiter=",")
    main, flag, short = {
        "backups": (planner.main, "machines", "--steps=50"),
        "arrivals": (experiments_arrivals.main, "workers", "--steps=50"),
        "staleness": (staleness.main, "workers", "--gradients=50"),
    }[command]
    given = [f"--model={model[0]}", model[1].format(path), short]
    assert main(given) == 0
    assert f", 16 {flag}" in capsys.readouterr().out
    assert main([*given, f"--{flag}=17"]) == 2
    assert f"num_workers=3.csv': holds 16 workers, fewer than {flag}=17\n" in capsys.readouterr().err
    assert main(["--model=slow_workers", "--num_slow=3", f"--{flag}=2", short]) == 2
    assert f"num_slow=3: exceeds {flag}=2" in capsys.readouterr().err


BAD_TRACES = {
    "o.csv": ("1;2\n3;4\n", "separated by commas|holds float64"),
    "p.csv": ("a,b\n1,2\nc,d\n", "must have the seconds of each worker, separated by commas"),
    "a.csv": ("1,2\n3\n", "step 1 has 1 workers, step 0 has 2"),
    "b.csv": ("1,x\n", "could not convert"),
    "c.csv": ("# nothing\n", r"holds float64 \[0\]"),
    "d.csv": ("1,2\n3,0\n", "0.0 seconds of worker 1 at step 1"),
    "e.csv": ("1,nan\n", "nan seconds of worker 1 at step 0"),
    "f.csv": ("1,1e99\n", "inf seconds"),
    "g.txt": ("1\n", "must end in .csv or .npz"),
    "run": ({}, "is a folder, must be a file, such as one of worker_seconds-2.npz"),
    "h.npz": ("no archive", "not a trace of seconds"),
    "i.csv": (None, "no such file"),
    "j.npz": ({"times": np.ones((2, 2))}, "no array 'seconds'"),
    "k.npz": ({"seconds": np.ones(3)}, r"holds float64 \[3\]"),
    "l.npz": ({"seconds": np.ones((2, 2), complex)}, "holds complex128"),
    "m.npz": ({"seconds": np.array([[None]])}, "not a trace of seconds"),
}


@pytest.mark.parametrize("name", BAD_TRACES)
def test_bad_traces_are_refused_in_one_line(name, tmp_path):
    content, message = BAD_TRACES[name]
    if isinstance(content, str):
        (tmp_path / name).write_text(content)
    elif name == "run":
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "worker_seconds-2.npz")
    elif content is not None:
        np.savez(tmp_path / name, **content)
    with refused(ValueError, f"^path=.*({message})"):
        arrivals.make("trace", path=str(tmp_path / name))
