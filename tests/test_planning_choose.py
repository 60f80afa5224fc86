"""``scale`` and ``choose`` find the laws of made-up runs, mark what they extrapolate, and refuse runs that differ."""

import json
import os

import numpy as np
import pytest

from experiments.execution import results
from planning import __main__ as planning
from planning import choose, scale, sources
from planning.sources import Run
from runs.reporting import done
from tests import saved
from tests.refused import only_line_of

pytestmark = pytest.mark.filterwarnings("error")
THETA = np.array([0.1, 1.0, 0.05, 0.02])
BEST = 0.1


# ---- seconds of a step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_scale_recovers_constants_from_noise(seed):
    """Of 400 measurements on each of 16 sizes: the terms are alike, so that few would not tell them apart."""
    draw = np.random.default_rng(seed)
    machines = np.repeat([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256], 400)
    seconds = scale.features(machines) @ THETA * np.exp(0.05 * draw.normal(size=len(machines)))
    found = scale.fit(machines, seconds)
    np.testing.assert_allclose(found.theta, THETA, rtol=0.1)
    assert 0.035 < found.error < 0.05 and found.points == len(machines)


def test_no_time_is_negative_whatever_was_measured():
    draw = np.random.default_rng(0)
    for _ in range(100):
        sizes = draw.choice(np.arange(1, 65), size=int(draw.integers(4, 9)), replace=False)
        found = scale.fit(sizes, draw.lognormal(0, 2, len(sizes)))
        assert (found.theta >= 0).all() and (found.seconds(np.arange(1, 1000)) > 0).all()


def test_the_error_of_leaving_out_is_that_of_fits_without_one_size():
    machines = np.array([1, 2, 4, 8, 16])
    seconds = np.array([1.0, 0.7, 0.5, 0.6, 0.9])
    misses = []
    for m, s in zip(machines, seconds, strict=True):
        rest = scale.fit([*machines[machines != m]], [*seconds[machines != m]])
        misses.append(abs(float(rest.seconds(m)) / s - 1))
    assert scale.fit(machines, seconds).error == pytest.approx(np.mean(misses))


# ---- method and number of machines -----------------------------------------------------------------------------------


SIZES = (1, 2, 4, 8, 16)


def made_up(seed, *, noise=0.05):
    """Runs of three methods whose laws are drawn, and the true seconds of each on each size to a gap of 0.05."""
    draw = np.random.default_rng(seed)
    methods, truth = {}, {}
    for name in "abc":
        power = draw.uniform(0.3, 0.7)
        start = draw.uniform(-0.2, 0.3)
        worse = draw.uniform(0, 0.5)
        theta = draw.uniform([0.05, 0.5, 0.0, 0.005], [0.2, 1.5, 0.1, 0.05])

        def log_gap(i, m, power=power, start=start, worse=worse):
            return start - power * np.log(i) - 0.15 * worse * np.log(m) - 0.02 * worse * np.sqrt(i)

        steps = np.arange(20, 1001, 20)
        every = np.arange(1, 4000)
        methods[name] = []
        for m in SIZES:
            seconds = float(scale.features(m) @ theta)
            hit = every[log_gap(every, m) <= np.log(0.05)]
            truth[name, m] = seconds * hit[0] if len(hit) else np.inf
            for again in range(2):
                losses = BEST + np.exp(log_gap(steps, m) + noise * draw.normal(size=len(steps)))
                took = seconds * np.exp(noise * draw.normal())
                methods[name].append(Run(f"{name}, {m}, {again}", {}, m, steps, losses, took))
    return methods, truth


def laws_of(seed, names="abc", *, num_refits=0):
    methods, _ = made_up(seed)
    return {name: choose.fit(methods[name], best=BEST, num_refits=num_refits) for name in names}


def chosen(seed, *, num_refits=0):
    laws = laws_of(seed, num_refits=num_refits)
    return choose.to_target(laws, SIZES, gap=0.05, best=BEST), made_up(seed)[1]


def test_choose_finds_the_true_best_of_27_of_30_plans():
    hits = 0
    for seed in range(30):
        found, truth = chosen(seed)
        hits += (found[0].method, found[0].machines) == min(truth, key=truth.__getitem__)
    assert hits >= 27


def test_a_choice_is_near_the_truth_and_inside_of_its_interval():
    found, truth = chosen(0, num_refits=20)
    best = found[0]
    assert truth[best.method, best.machines] == pytest.approx(min(truth.values()), rel=0.05)
    assert best.seconds == pytest.approx(truth[best.method, best.machines], rel=0.15)
    assert best.low <= best.seconds <= best.high and not best.beyond
    assert [one.seconds for one in found] == sorted(one.seconds for one in found)


def test_what_lies_outside_of_the_runs_is_marked():
    laws = laws_of(1, "a")
    (late,) = choose.in_time(laws, [4], seconds=1500 * float(laws["a"].seconds([4])[0, 0]), best=BEST)
    assert late.beyond == "steps" and late.steps == pytest.approx(1500)
    assert choose.to_target(laws, SIZES, gap=1e-9, best=BEST) == []


def test_the_seconds_to_a_target_end_at_its_loss():
    laws = laws_of(2)
    top = choose.to_target(laws, SIZES, gap=0.1, best=BEST)[0]
    back = choose.in_time({top.method: laws[top.method]}, [top.machines], seconds=top.seconds, best=BEST)[0]
    assert back.loss - BEST == pytest.approx(0.1, rel=0.02)


def test_what_is_left_out_is_said(tmp_path, capsys):
    """Numbers of machines whose step has no seconds, and methods that do not get there, or not to an evaluation."""
    save_runs(tmp_path, sizes=(1, 2))
    given = ["choose", str(tmp_path), "--best=0.1", f"--json={tmp_path / 'a.json'}"]
    assert planning.main([*given, "--target=0.2", "--machines=2,64"]) == 0
    said = capsys.readouterr().out
    assert "  reducer=mean, 64 machines: left out, as no runs on so many" in said
    assert "reducer=adasum, 64" in said
    assert list(json.loads((tmp_path / "a.json").read_text())["left_out"]) == [
        f"reducer={name}, 64 machines" for name in ("adasum", "mean")
    ]
    save_runs(tmp_path, reducers=("sum",), sizes=(1, 2))
    assert planning.main([*given, "--target=0.2"]) == 0
    said = capsys.readouterr().out
    assert "reducer=sum, 2 machines: left out, as it is not there within 4 times the 400 steps" in said
    assert "use 2 machines" in said
    assert planning.main([*given, "--seconds=8"]) == 0
    assert "1 machines: left out, as it takes 7.273 steps in that time" in capsys.readouterr().out


def test_fewer_than_four_sizes_have_the_seconds_that_were_measured():
    methods, _ = made_up(3)
    few = [run for run in methods["a"] if run.machines in (2, 4)]
    laws = choose.fit(few, best=BEST, num_refits=0)
    mean = np.mean([run.step_seconds for run in few if run.machines == 4])
    found = {one.machines: one for one in choose.to_target({"a": laws}, SIZES, gap=0.1, best=BEST)}
    assert set(found) == {2, 4} and found[4].seconds == pytest.approx(found[4].steps * mean)


def test_runs_that_cannot_be_fitted_are_refused():
    methods, _ = made_up(0)
    with pytest.raises(ValueError, match="runs=1: at least 2 are needed"):
        choose.fit(methods["a"][:1], best=BEST)
    with pytest.raises(ValueError, match="run='a, 1, 0': all its losses are at or below the best loss, 9"):
        choose.fit(methods["a"], best=9.0)


# ---- the commands ----------------------------------------------------------------------------------------------------


CONFIG = {"data": {"name": "digits"}, "model": {"name": "mlp"}, "reducer": {"name": "mean"}, "seed": 0}


def save_runs(folder, *, reducers=("mean", "adasum"), sizes=(1, 2, 4, 8)):
    """Folders of made-up runs, in which Adasum needs half the steps and a step takes 1 / m + 0.1 m seconds.

    All get to a loss of 0.1, but for the sum, which gets to 0.5.
    """
    for name in reducers:
        for m in sizes:
            config = {**CONFIG, "reducer": {"name": name}, "num_workers": m, "optimizer": {"learning_rate": 1 / m}}
            speed = 1 / (1 / m + 0.1 * m)
            records = []
            for step in range(10, 401, 10):
                loss = (0.5 if name == "sum" else 0.1) + 3 * (step * (2 if name == "adasum" else 1)) ** -0.7
                records.append({"kind": "train", "step": step, "steps_per_second": speed, "loss": loss})
                records.append(saved.evaluated(step, loss=loss, simulated_seconds=2 * step / speed))
            saved.save(folder / f"{name}-{m}", config, records)
    return folder


def test_choose_from_folders(tmp_path, capsys):
    save_runs(tmp_path / "runs")
    files = [f"--json={tmp_path / 'a.json'}", f"--figure={tmp_path / 'a.svg'}", "--columns=1"]
    aim = ["--target=0.2", "--best=0.1", "--machines=2,4,64"]
    assert planning.main(["choose", str(tmp_path / "runs"), *aim, *files]) == 0
    first, points, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("use 4 machines, reducer=adasum: ")
    assert "from 8 runs on 1, 2, 4, 8 machines" in points
    found = json.loads((tmp_path / "a.json").read_text())["choices"]
    needed = (0.1 / 3) ** (-1 / 0.7)
    for one in found:
        steps = needed / (2 if one["method"] == "reducer=adasum" else 1)
        assert one["steps"] == pytest.approx(steps, rel=0.05)
        assert one["seconds"] == pytest.approx(one["steps"] * (1 / one["machines"] + 0.1 * one["machines"]), rel=0.05)
        assert (one["beyond"] == "machines") == (one["machines"] == 64)
    picture = (tmp_path / "a.svg").read_text()
    assert 'width="234pt"' in picture
    assert all(f"<!-- {tick} -->" in picture for tick in (2, 4, 64))
    simulated = ["--clock=simulated", "--seconds=100", "--best=0.1", "--method=reducer.name"]
    assert planning.main(["choose", str(tmp_path / "runs"), *simulated]) == 0
    assert "in 100 s" in capsys.readouterr().out


def test_scale_from_all_kinds_of_sources(tmp_path, capsys):
    save_runs(tmp_path / "runs", reducers=("mean",))
    (tmp_path / "times.csv").write_text(
        "machines,seconds\n" + "".join(f"{m},{1 / m + 0.1 * m}\n" for m in (1, 2, 4, 8))
    )
    rows = [
        {"run": f"n={m}", "num_workers": m, "step": [5, 10], "loss": [2.0, 1.0], "simulated_seconds": [0, 10 / m + m]}
        for m in (1, 2, 4, 8)
    ]
    results.write_rows(tmp_path / "rows.jsonl", rows)
    asked = ["--machines=4,16", f"--json={tmp_path / 'a.json'}"]
    for source in ("runs", "times.csv", "rows.jsonl"):
        assert planning.main(["scale", str(tmp_path / source), *asked]) == 0
        *_, last = capsys.readouterr().out.splitlines()
        assert [*map(float, last.split()[:2])] == pytest.approx([16, 1 / 16 + 1.6], rel=1e-3)
        assert "extrapolated" in last
        (found,) = json.loads((tmp_path / "a.json").read_text()).values()
        np.testing.assert_allclose(found["theta"], [0, 1, 0, 0.1], atol=1e-6)
        assert [(row["machines"], row["note"]) for row in found["steps"]] == [
            *((m, "") for m in (1, 2, 4, 8)),
            (16, "extrapolated"),
        ]
        assert found["sizes"] == [1, 2, 4, 8]
    figure = tmp_path / "a.png"
    assert planning.main(["scale", str(tmp_path / "times.csv"), "--machines=32", f"--figure={figure}"]) == 0
    assert figure.stat().st_size > 1000


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("data", {"name": "mnist"}, "data.name is 'mnist', and 'digits'"),
        ("model", {"name": "softmax"}, "model.name is 'softmax', and 'mlp'"),
        ("task", {"name": "density"}, "task.name is 'density', and None"),
        ("arrivals", {"name": "pareto"}, "arrivals.name is 'pareto', and None"),
    ],
)
def test_runs_that_do_not_compare_are_refused_by_name(key, value, words, tmp_path, capsys):
    save_runs(tmp_path)
    saved.save(tmp_path / "other", {**CONFIG, key: value, "num_workers": 2}, [saved.evaluated(1, loss=1.0)])
    assert planning.main(["choose", str(tmp_path), "--target=0.3"]) == 2
    said = only_line_of(capsys)
    assert "other'" in said and "does not compare" in said and words in said


def test_methods_are_what_runs_differ_in():
    def run(name, **options):
        config = {"seed": 0, "reducer.name": name, "optimizer.learning_rate": len(name)}
        return Run(name, config | {f"reducer.{key}": value for key, value in options.items()}, 2, [1], [1.0], 1.0)

    local = [run("local_sgd", every_steps=h, delay_steps=0, from_step=0) for h in (4, 8, 8)]
    found = sources.by_method([run("mean"), *local])
    assert {name: len(own) for name, own in found.items()} == {
        "reducer=mean": 1,
        "reducer=local_sgd, reducer.every_steps=4": 1,
        "reducer=local_sgd, reducer.every_steps=8": 2,
    }
    assert list(sources.by_method(local, keys=["reducer.name"])) == ["reducer=local_sgd"]
    assert list(sources.by_method(local[1:])) == ["all runs"]


def test_rows_of_another_target_are_refused(tmp_path):
    rows = [{"run": f"t={t}", "num_workers": 2, "step": [1], "loss": [1.0], "target": t} for t in (0.9, 0.8)]
    results.write_rows(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ValueError, match=r"run='t=0.8': does not compare: target is 0.8, and 0.9 in 't=0.9'"):
        sources.read([str(tmp_path / "rows.jsonl")])


def write_rows(path, *rows):
    """Rows of five runs on 1 to 5 machines, those of ``rows`` in the place of the first ones."""
    whole = {"num_workers": 2, "step": [5, 10, 20], "loss": [3.0, 2.0, 1.0], "simulated_seconds": [1.0, 2.0, 4.0]}
    others = [{**whole, "run": f"a{m}", "num_workers": m} for m in range(1, 6)]
    for row, other in zip(rows, others, strict=False):
        other.update(row)
    results.write_rows(path, others)
    return str(path)


@pytest.mark.parametrize("place", [0, 2, 4])
def test_runs_that_diverged_are_left_out_by_name(place, tmp_path, capsys):
    """Wherever their rows are; one that diverges late counts until then."""
    nan = {"run": "lost", "loss": [np.nan, np.nan, np.inf], "step": [50, 100, 200]}
    late = {"run": "late", "loss": [3.0, 2.5, np.nan]}
    rows = [{}, late, {}, {}, {}]
    rows.insert(place, nan)
    source = write_rows(tmp_path / "rows.jsonl", *rows[:5])
    assert planning.main(["choose", source, "--target=1.5"]) == 0
    said = capsys.readouterr().out
    assert "  lost: left out, as it has no finite loss" in said
    assert "  late: " not in said
    assert "best loss 1, " in said


ODD_ROWS = {
    "a clock that stood": ({"simulated_seconds": [0, 0, 0]}, "run='a1': has no simulated seconds of a step"),
    "a loss too few": ({"loss": [1.0, 2.0]}, "run='a1': step, loss, simulated_seconds: must be lists of one length"),
    "nothing": ({"step": [], "loss": [], "simulated_seconds": []}, "run='a1': step, loss, simulated_seconds: must be"),
    "a word": ({"simulated_seconds": "x"}, "run='a1': step, loss, simulated_seconds: must be lists of one length"),
    "a truth": ({"simulated_seconds": [1.0, 2.0, True]}, "run='a1': simulated_seconds=True at step 20: must be a num"),
    "back in time": ({"step": [5, 20, 10]}, "run='a1': step=10: must be an int in [20, 2147483647]"),
    "half a step": ({"step": [5, 10, 20.5]}, "run='a1': step=20.5: must be an int in [10, 2147483647]"),
    "no machines": ({"num_workers": 0}, "run='a1': machines=0: must be int in [1, 65536]"),
    "half a machine": ({"num_workers": 0.5}, "run='a1': machines=0.5: must be int in [1, 65536]"),
    "an unknown clock": ({"simulated_seconds": [np.nan] * 3}, "has no simulated seconds of a step; use --clock"),
    "all diverged": ({"loss": [np.nan] * 3}, "loss='loss': no run has a finite one after a step"),
}


@pytest.mark.parametrize("name", ODD_ROWS)
def test_odd_rows_are_refused_by_name(name, tmp_path, capsys):
    row, words = ODD_ROWS[name]
    source = write_rows(tmp_path / "rows.jsonl", *[row] * (5 if name == "all diverged" else 1))
    assert planning.main(["choose", source, "--target=1.5", "--clock=simulated"]) == 2
    assert words in only_line_of(capsys)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        *(("eval", "loss", value) for value in (None, "x", True, [1.0])),
        ("eval", "simulated_seconds", "x"),
        *(("eval", "step", value) for value in (-1, 2**40)),
        *(("train", "steps_per_second", value) for value in ("fast", 0, -1.0, np.nan)),
    ],
)
def test_odd_records_are_refused_by_name(kind, key, value, tmp_path, capsys):
    save_runs(tmp_path, reducers=("mean",), sizes=(1, 2))
    path = tmp_path / "mean-2/metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    last = max(place for place, record in enumerate(records) if record["kind"] == kind)
    records[last][key] = value
    results.write_rows(path, records)
    (path.parent / "DONE").write_bytes(done.content(path.parent, {}))
    clock = "--clock=simulated" if key == "simulated_seconds" else "--clock=real"
    assert planning.main(["choose", str(tmp_path), "--target=0.3", clock]) == 2
    said = only_line_of(capsys)
    assert f"mean-2': {key}={value!r}" in said and ": must be " in said


def test_losses_of_any_size_are_numbers(tmp_path, capsys):
    """Also one whose distance to the best is beyond the range of numbers, or that has more than 64 bits."""
    lowest = {"loss": [1.7e308, 2.0, -1.7e308], "num_workers": 1}
    source = write_rows(tmp_path / "rows.jsonl", {"loss": [1.7e308, 2.0, 1.0]}, {"loss": [2**64, 2.0, 1.0]}, lowest)
    for best in ([], ["--best=0.5"]):
        assert planning.main(["choose", source, "--seconds=3", *best]) == 0
    assert "use " in capsys.readouterr().out


@pytest.mark.parametrize("line", ["[]", '{"run": "x", "step": [1]}'])
def test_a_line_of_no_run_is_named(line, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    write_rows(rows)
    rows.write_text(rows.read_text() + line + "\n")
    assert planning.main(["choose", str(rows), "--target=1.5"]) == 2
    assert "row 6: must have run, num_workers, step and loss" in capsys.readouterr().err


REFUSED = {
    "choose {here} --target=0.3 --seconds=3": "target, seconds: give one of the two",
    "choose {here}": "target, seconds: give one of the two",
    "choose {here} --target=0.05 --best=0.1": "target='0.05': must be a number in (0.1",
    "choose {here} --seconds=-1": "seconds='-1'",
    "choose {here} --target=0.3 --machines=0": "machines='0'",
    "choose {here} --target=0.3 --method=reducer.nome": "method='reducer.nome': no run has such a key",
    "choose {here} --target=0.3 --loss=losses": "holds no runs with evaluations of 'losses'",
    "choose {here}/nowhere --target=0.3": "must be a folder of runs, or a file of rows",
    "choose {here} --target=0.3 --best=inf": "best='inf'",
    "choose {here}/mean-1 {here}/mean-2 --seconds=1e-5": "steps in that time, and its first evaluation is at step 10",
    "choose {here} --seconds=5 --machines=2": "it takes 7.143 steps in that time, and its first evaluation is at step",
    "choose {here} --seconds=1e6": "steps in that time, more than 4 times the 400 steps of its longest run",
    "choose {here} --target=0.1001 --best=0.1": "it is not there within 4 times the 400 steps of its longest run",
    "choose {here} --target=0.7": "it is there by its first evaluation, at step 10, and how soon is not known",
    "choose {here}/mean-1 {here}/mean-2 --target=0.3 --machines=64": "64 machines: no runs on so many, nor on 4 other",
    "choose {here} --target=0.3 --machines={many}": "machines: names 257 numbers, must name at most 256",
    "scale {here}/many.csv": "many.csv: machines: 1001 different numbers, must be at most 1000",
    "choose {here} --target=0.3 --machines=65537": "machines='65537': must be whole numbers from 1 to 65536",
    "choose": "sources",
    "scale {here}/nowhere.csv": "nowhere.csv",
    "scale {here}/few.csv": "few.csv: machines=1, 2: 4 different numbers are needed",
    "scale {here}/tiny.csv": "tiny.csv, row 4': takes 9.99989e-321 seconds a step, must be in [1e-12, 1e+12]",
    "scale {here}/words.csv": "must be a CSV file with the columns machines and seconds (",
    "scale {here}/long.csv": "long.csv, row 3': takes 1e+300 seconds a step, must be in [1e-12, 1e+12]",
    "scale {here}/nan.csv": "nan.csv, row 1': has no measured seconds of a step",
    "scale {here}/pipe.csv": "pipe.csv': must be a CSV file",
    "choose {here}/pipe.jsonl --target=1": "is not a regular file",
    "scale {here} --clock=lunar": "invalid choice: 'lunar'",
}


@pytest.mark.parametrize("line", REFUSED)
def test_refused_in_one_line(line, tmp_path, capsys):
    save_runs(tmp_path, reducers=("mean",))
    (tmp_path / "few.csv").write_text("machines,seconds\n1,1\n2,1\n")
    (tmp_path / "tiny.csv").write_text("machines,seconds\n1,1\n2,1\n3,1\n4,1e-320\n")
    (tmp_path / "many.csv").write_text("machines,seconds\n" + "".join(f"{m},1\n" for m in range(1, 1002)))
    (tmp_path / "words.csv").write_text("machines,seconds\none,1\n")
    (tmp_path / "long.csv").write_text("machines,seconds\n1,1\n2,1\n3,1e300\n4,1\n")
    (tmp_path / "nan.csv").write_text("machines,seconds\n1,nan\n")
    for suffix in ("csv", "jsonl"):  # whom nobody writes to
        os.mkfifo(tmp_path / f"pipe.{suffix}")
    given = line.format(here=tmp_path, many=",".join(map(str, range(1, 258))))
    assert planning.main(given.replace("--target=0.05", "--target=0.05 --best=0.1").split()) == 2
    assert REFUSED[line] in only_line_of(capsys)
