"""Sweeps: their points, what is run again, the table, the edge of a grid, the figure, and the command."""

import csv
import math
import signal
import sys

import numpy as np
import pytest

from experiments import __main__ as command_line
from experiments.execution import queue, results
from experiments.study.run import Run
from experiments.sweeps import figure as sweep_figure
from experiments.sweeps import groups, sweep
from experiments.sweeps import table as sweep_table
from experiments.sweeps.goal import Goal
from experiments.sweeps.results import SweepResults, beyond_edges
from experiments.sweeps.sweep import Sweep
from tests import saved

DIGITS = "configs/digits.py"
RATE = "optimizer.learning_rate"


# ---- points ------------------------------------------------------------------------------------------------------


def test_points_are_products_and_draws_are_of_the_seed():
    points = sweep.combined(sweep.grid({"a": [1, 2]}), sweep.zipped({"b": [3, 4], "c": [5, 6]}))
    assert len(points) == 4 and {"a": 2, "b": 4, "c": 6} in points
    laws = {"x": "uniform(0, 1)", "y": "choice(p, q)"}
    points = sweep.drawn(laws, count=5)
    assert points == sweep.drawn(laws, count=5) and len({point["x"] for point in points}) == 5
    for key, law in (("x", "normal(0, 1)"), ("x", "loguniform(0, 1)"), ("x", "uniform(2, 1)"), ("x", "uniform(a, b)")):
        with pytest.raises(ValueError, match="must be uniform"):
            sweep.drawn({key: law}, count=1)
    with pytest.raises(ValueError, match="equally long, not a: 1, b: 2"):
        sweep.zipped({"a": [1], "b": [1, 2]})


def test_a_config_file_may_hold_its_sweep(tmp_path):
    path = tmp_path / "mine.py"
    text = (
        "from configs.digits import get_config\ndef sweep():\n    return [{'seed': 3}, {'seed': 4, 'num_workers': 2}]"
    )
    path.write_text(text)
    found = Sweep(spec=str(path), points=sweep.of_config(str(path)), seeds=2)
    assert [run.name for run in found.runs] == ["seed=3", "seed=4,num_workers=2"]
    for text in ("x = 1", "def sweep():\n    return 3", "def sweep():\n    return [{}]"):
        path.write_text(text)
        with pytest.raises(ValueError, match="sweep"):
            sweep.of_config(str(path))


def test_points_that_are_equal_or_written_differently_share_their_run():
    laws = {"reducer.name": "choice(mean, sum)"}
    found = Sweep(spec=DIGITS, points=sweep.drawn(laws, count=20), drawn=laws)
    assert sorted(run.name for run in found.runs) == ["reducer.name=mean,seed=0", "reducer.name=sum,seed=0"]
    found = Sweep(spec=DIGITS, points=[{RATE: 1}, {RATE: 1.0}, {RATE: 2}], seeds=2)
    assert [run.name for run in found.runs] == [f"{RATE}={rate},seed={seed}" for rate in (1, 2) for seed in (0, 1)]
    alike = measured([{RATE: 1}, {RATE: 1.0}], lambda labels: {"accuracy": 0.5})
    assert alike.keys == [] and warnings(alike) == []


def test_the_name_is_that_of_the_config_and_of_what_all_runs_share():
    small = Sweep(spec=DIGITS, points=[{"seed": 0}], fixed={"num_workers": 2})
    large = Sweep(spec=DIGITS, points=[{"seed": 0}, {"seed": 1, RATE: 0.1}], seeds=9, fixed={"num_workers": 2})
    assert small.name == large.name and small.name.startswith("digits-")
    others = [
        Sweep(spec=DIGITS, points=[{"seed": 0}]),
        Sweep(spec="configs/digits.py:smoke", points=[{"seed": 0}], fixed={"num_workers": 2}),
        Sweep(spec=DIGITS, points=[{"seed": 0}], fixed={"num_workers": 4}),
    ]
    assert len({small.name, *(other.name for other in others)}) == 4


def test_runs_are_evaluated_on_the_validation_split_unless_a_key_says_otherwise(tmp_path, monkeypatch):
    def splits(**options):
        return [run.config["data"].get("evaluate_on") for run in Sweep(spec=DIGITS, **options).runs]

    assert splits(points=[{RATE: 0.1}, {RATE: 0.2}]) == ["validation", "validation"]
    assert splits(points=[{RATE: 0.1}], fixed={sweep.SPLIT: "test"}) == ["test"]
    assert splits(points=[{sweep.SPLIT: "test"}, {sweep.SPLIT: "validation"}]) == ["test", "validation"]
    (tmp_path / "own.py").write_text(
        "from configs import digits\ndef get_config(variant):\n    config = digits.get_config(variant)\n"
        "    config.data = {'name': 'digits', 'evaluate_on': 'test'}\n    return config\n"
    )
    (run,) = Sweep(spec=str(tmp_path / "own.py"), points=[{RATE: 0.1}]).runs
    assert run.config["data"]["evaluate_on"] == "test"
    (tmp_path / "bare.py").write_text(
        "from data import sources\ndef data():\n    return sources.make('digits')\n"
        "from configs import digits\ndef get_config(variant):\n    config = digits.get_config(variant)\n"
        "    config.data = {'name': 'bare:data'}\n    return config\n"
    )
    bare = Sweep(spec=str(tmp_path / "bare.py"), points=[{RATE: 0.1}])
    assert [run.config["data"] for run in bare.runs] == [{"name": "bare:data"}]
    said = sweep_table.headline(SweepResults(sweep=bare, rows=[], goal=Goal("accuracy", "max")))
    assert "on the test split" in said and "bare:data have no key data.evaluate_on" in said


def test_the_goal_is_the_tasks_own_metric_unless_another_is_named():
    def goal(spec, **options):
        return tuple(Goal.of([Run(labels={}, spec=spec)], **options))

    assert goal(DIGITS) == ("accuracy", "max")
    assert goal("configs/bert_lamb.py") == ("masked_lm_loss", "min")
    assert goal("configs/shakespeare.py:smoke") == ("perplexity", "min")
    assert goal("configs/bert_lamb.py", metric="next_sentence_accuracy") == ("next_sentence_accuracy", "max")
    assert goal(DIGITS, metric="loss") == ("loss", "min")
    assert goal(DIGITS, metric="simulated_seconds") == ("simulated_seconds", "min")
    assert goal(DIGITS, mode="min") == ("accuracy", "min")
    broken = Run(labels={}, spec=DIGITS, overrides={"task.name": "causal_lm"})
    assert Goal.of([broken, Run(labels={}, spec=DIGITS)]) == ("accuracy", "max")  # the first one fails on its own
    with pytest.raises(ValueError, match="needs data of running text"):
        Goal.of([broken])
    with pytest.raises(ValueError, match=r"^metric='acuracy': is not evaluated; allowed: accuracy, loss, simulated_"):
        goal(DIGITS, metric="acuracy")


# ---- tables ------------------------------------------------------------------------------------------------------


def measured(points, value, *, seeds=1, goal=("accuracy", "max"), **options):
    """The results of a sweep whose last evaluation is ``value(labels)``, a dict of numbers; None: not finished."""
    found = Sweep(spec=DIGITS, points=points, seeds=seeds, **options)
    numbers = [(run, value(run.labels)) for run in found.runs]
    rows = [
        {"run": run.name, **run.labels, **{key: [0.0, last] for key, last in of.items()}}
        for run, of in numbers
        if of is not None
    ]
    return SweepResults(sweep=found, rows=rows, goal=Goal(*goal))


def rates(ends, *, metric="accuracy", mode="max"):
    """The results of a sweep of learning rates: rate -> the metric at the end of its run, or of its runs by seed."""
    by_seed = {rate: end if isinstance(end, tuple) else (end,) for rate, end in ends.items()}

    def value(labels):
        end = by_seed[labels[RATE]][labels["seed"]]
        return None if end is None else {metric: end}

    seeds = max(map(len, by_seed.values()))
    return measured([{RATE: rate} for rate in ends], value, seeds=seeds, goal=(metric, mode))


def text_of(of, key):
    return sweep_table.text(of, groups=groups.table(of, key), best_group=groups.answer(of, key))


def warnings(of):
    return beyond_edges(of, of.best)


def test_the_best_point_is_marked_with_students_interval():
    of = rates({0.1: (0.97, 0.98, 0.99), 0.2: (0.9, 0.92, 0.94), 0.4: (0.96, 0.96, 0.96)})
    table = sweep_table.table(of)
    assert list(table) == [RATE, "accuracy"]
    assert table["accuracy"].tolist() == [
        "**0.9800 ± 0.0100 (n=3)**, 95 % interval [0.9552, 1.0000]",  # 4.3027 standard errors of 0.00577, and 1 at most
        "0.9200 ± 0.0200 (n=3)",
        "0.9600 ± 0.0000 (n=3)",
    ]
    assert "Best: optimizer.learning_rate=0.1: accuracy 0.9800" in sweep_table.best(of)
    assert "one other point lies within" in sweep_table.best(of)


@pytest.mark.parametrize(
    ("metric", "values", "within"),
    [
        ("accuracy", (0.97, 0.98, 0.99), (0, 1)),
        ("next_sentence_accuracy", (0.5, 0.99, 0.99), (0, 1)),
        ("loss", (0.01, 0.02, 0.06), (0, math.inf)),
        ("simulated_seconds", (5.0, 6.0, 90.0), (0, math.inf)),
        ("loss", (-0.01, 0.02, 0.06), (-math.inf, math.inf)),  # one's own
        ("own_accuracy", (97.0, 98.0, 99.0), (0, math.inf)),  # in percent
        ("loss", (1.9622000, 1.9622001, 1.9622002), (0, math.inf)),
        ("perplexity", (12345.67891, 12345.67892, 12345.67893), (0, math.inf)),
    ],
)
def test_an_interval_ends_where_the_quantity_does_and_is_as_wide_as_it_looks(metric, values, within):
    of = rates({0.1: values}, metric=metric, mode="min")
    half = 4.302653 * np.std(values, ddof=1) / 3**0.5
    ends = np.clip([np.mean(values) - half, np.mean(values) + half], *within)
    (line,) = csv.DictReader(sweep_table.comma_separated(of).splitlines())
    np.testing.assert_allclose([float(line[f"{metric}_{end}"]) for end in ("low", "high")], ends, rtol=1e-6)
    for text in (sweep_table.best(of), groups.table(of, RATE).iloc[0, 3], sweep_table.table(of).iloc[0, 0]):
        shown = text.partition("[")[2].partition("]")[0].split(", ")
        np.testing.assert_allclose([float(end.replace(",", "")) for end in shown], ends, atol=0.15 * np.ptp(ends))


def test_a_difference_of_accuracies_is_one_at_most():
    assert groups.answer(rates({0.1: (1.0, 0.3), 0.2: (0.0, 0.1)}), RATE)[1].endswith(
        "the difference is +0.6000 [-1.0000, +1.0000]."
    )


@pytest.mark.parametrize("values", [(0.5, 0.5, 0.5), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (0.1 + 0.2, 0.3, 0.3)])
def test_runs_that_are_equal_give_no_interval(values):
    of = rates({0.1: values, 0.2: tuple(value / 2 for value in values)})
    assert "3 equal runs give no interval" in sweep_table.best(of)
    assert "[" not in text_of(of, RATE)
    lines = list(csv.DictReader(sweep_table.comma_separated(of).splitlines()))
    assert {line["accuracy_low"] for line in lines} == {line["accuracy_high"] for line in lines} == {""}


@pytest.mark.parametrize(
    ("goal", "losses", "best", "said"),
    [
        (("accuracy", "max"), (0.5, 8e19), 0.2, "Its loss is 8e+19, and it may have diverged."),
        (("accuracy", "max"), (0.5, 2000.0), 0.2, "Its loss is 2,000.0, and it may have diverged."),
        (("accuracy", "max"), (8e19, 0.5), 0.2, ""),
        (("loss", "max"), (0.5, 8e19), 0.2, ""),  # asked for
        (("accuracy", "max"), (0.5, math.nan), 0.1, ""),  # the class of logits that are NaN is a class, too
        (("accuracy", "max"), (0.5, math.inf), 0.1, ""),
    ],
)
def test_a_metric_does_not_name_a_point_whose_loss_is_huge_without_a_word(goal, losses, best, said):
    points = {0.1: losses[0], 0.2: losses[1]}
    value = lambda labels: {"accuracy": labels[RATE], "loss": points[labels[RATE]]}  # noqa: E731
    of = measured([{RATE: rate} for rate in points], value, seeds=2, goal=goal)
    assert of.points[of.best][RATE] == best
    for text in (sweep_table.best(of), " ".join(groups.answer(of, RATE))):
        assert said in text and ("diverged" in text) == bool(said)


@pytest.mark.parametrize(
    "values",
    [
        [(1e308, 1.7e308), (1e308, 1e308), (2.0, 1.0)],
        [(-1e308, 1e308), (-1.7e308, 1.7e308)],
        [(1e308, -1e308)],
        [(1e-320, 2e-320), (0.0, 5e-324)],
    ],
)
def test_the_largest_and_the_smallest_numbers_are_tabled_and_drawn_or_left_out(values):
    of = rates(dict(zip((0.2, 0.4, 0.1), values, strict=False)), metric="loss", mode="min")
    assert "nan" not in text_of(of, RATE) + sweep_table.comma_separated(of)
    try:
        sweep_figure.draw(of).draw_without_rendering()
    except ValueError as error:
        assert str(error) in ("no run has a finite loss", "no numeric key has several values")


def test_one_run_has_no_deviation_a_tie_is_told_and_the_goal_decides_what_is_best():
    of = rates({0.1: 0.1, 0.2: 0.2, 0.4: 0.2})
    worst = rates({0.1: 0.1, 0.2: 0.2, 0.4: 0.2}, mode="min")
    assert [each.points[each.best][RATE] for each in (of, worst)] == [0.2, 0.1]
    cells = ["0.1000 ± - (n=1)", "**0.2000 ± - (n=1)**", "0.2000 ± - (n=1)"]
    assert sweep_table.table(of)["accuracy"].tolist() == cells
    assert "equal to that of one other point" in sweep_table.best(of)
    assert "--seeds=3" in sweep_table.best(of)


def test_a_point_that_diverged_is_never_the_best_and_what_was_lost_is_said():
    of = rates({0.1: (1.0, 3.0), 0.2: (math.nan, 9.0), 0.4: (math.nan, math.inf)})
    cells = sweep_table.table(of)["accuracy"].tolist()
    assert cells[0].startswith("**2.0000 ± 1.4142 (n=2)**")
    assert cells[1:] == ["9.0000 ± - (n=1), 1 not finite", "none, 2 not finite"]
    lost = rates({0.1: math.nan})
    assert lost.best is None and "No point has finished" in sweep_table.text(lost)


def test_what_is_constant_is_said_above_the_table_and_is_no_column():
    points = [{"reducer.name": "mean", RATE: rate} for rate in (0.1, 0.2)]
    of = measured(points, lambda labels: {"accuracy": labels[RATE], "step": 40.0}, fixed={"train_steps": 40})
    above, _, below = sweep_table.text(of).partition("\n| ")
    assert "All runs have train_steps=40, reducer.name=mean." in above
    assert "All runs ended with step 40." in above
    assert below.startswith(f"{RATE} | accuracy |\n")
    assert "for the largest accuracy on the validation split" in above


def test_points_may_be_lists_and_set_different_keys():
    sizes = {"model.hidden_sizes": [8, 8]}
    points = [sizes, {**sizes, "num_workers": 2}, {"num_workers": 2}]
    of = measured(points, lambda labels: {"accuracy": float(len(labels))})
    assert [[*keys, cell.strip("*").partition(" ")[0]] for *keys, cell in sweep_table.table(of).to_numpy()] == [
        ["[8, 8]", "", "2.0000"],
        ["[8, 8]", "2", "3.0000"],
        ["", "2", "2.0000"],
    ]


def test_runs_that_are_not_finished_are_told_and_their_values_are_no_edge():
    of = rates({0.1: 0.4, 0.2: 0.5, 0.4: None})
    assert "1 of 3 runs are not finished" in sweep_table.text(of) and len(sweep_table.table(of)) == 2
    assert warnings(of) == []


def test_the_csv_has_the_numbers_in_full():
    of = rates({0.1: (0.25, 0.5), 0.2: (0.125, math.nan)})
    one, other = csv.DictReader(sweep_table.comma_separated(of).splitlines())
    shown = [one[key] for key in (RATE, "accuracy", "accuracy_n", "best", "runs")]
    assert shown == ["0.1", "0.375", "2", "best", "2"]
    assert float(one["accuracy_std"]) == pytest.approx(0.125 * math.sqrt(2))
    assert (float(one["accuracy_low"]), float(one["accuracy_high"])) == (0, 1)  # 12.7 standard errors, and no further
    assert (other["accuracy"], other["accuracy_std"], other["accuracy_n"], other["best"]) == ("0.125", "", "1", "")


# ---- the edge of a grid ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "values", "best", "following"),
    [
        (RATE, (0.1, 0.2, 0.4), 0.2, None),
        (RATE, (0.4, 0.1, 0.2), 0.4, "0.8"),
        (RATE, (0.1, 0.2, 0.4), 0.1, "0.05"),
        ("model.dropout_rate", (0.0, 0.1, 0.2), 0.2, "0.3"),
        ("model.dropout_rate", (0.0, 0.1, 0.2), 0.0, None),  # less is not allowed
        ("optimizer.momentum", (0.8, 0.9), 0.9, "0.956"),  # 1.01 is not allowed
        ("num_workers", (2, 4, 8), 2, "1"),
        ("num_workers", (2, 3, 4), 4, "5"),
        ("train_steps", (1000000, 2000000, 4000000), 4000000, "8000000"),
        (RATE, (0.1, 0.1002), 0.1002, None),  # three digits have nothing beyond
        ("reducer.name", ("mean", "sum"), "sum", None),
        (RATE, (0.1,), 0.1, None),
    ],
)
def test_a_best_value_at_the_edge_names_the_next_one_to_try(key, values, best, following):
    of = measured([{key: value} for value in values], lambda labels: {"accuracy": float(labels[key] == best)})
    said = warnings(of)
    assert [line.rpartition(f"try {key}=")[2] for line in said] == ([] if following is None else [f"{following}, too"])


@pytest.mark.parametrize(("best", "is_edge"), [("sum", True), ("mean", False)])
def test_the_edge_is_that_of_the_values_beside_the_best_point(best, is_edge):
    points = sweep.combined(sweep.grid({"reducer.name": ["mean", "sum"], RATE: [0.1, 0.2, 0.4]}))
    points = [*points, {"reducer.name": "mean", RATE: 0.8}]
    of = measured(points, lambda labels: {"accuracy": float(labels == {"reducer.name": best, RATE: 0.4, "seed": 0})})
    said = [line.endswith("try optimizer.learning_rate=0.8, too") for line in warnings(of)]
    assert said == ([True] if is_edge else [])


def test_lists_in_step_have_an_edge_and_random_draws_have_none():
    zipped = sweep.zipped({"num_workers": [2, 4], "batch_size_per_worker": [32, 16]})
    said = warnings(measured(zipped, lambda labels: {"accuracy": labels["num_workers"]}))
    assert [line.split(" try ")[1] for line in said] == ["num_workers=8, too", "batch_size_per_worker=8, too"]
    drawn = {RATE: "loguniform(0.1, 1)"}
    of = measured(sweep.drawn(drawn, count=3), lambda labels: {"accuracy": labels[RATE]}, drawn=drawn)
    assert warnings(of) == []


def test_a_tie_hides_no_edge_but_values_that_are_all_equal_have_none():
    def tried_next(at_end):
        return [line.rpartition("=")[2].removesuffix(", too") for line in warnings(rates(at_end))]

    assert tried_next({0.1: 0.1, 0.2: 0.2, 0.4: 0.2}) == ["0.8"]  # 0.2 is the best, as the first of two
    assert tried_next({0.1: 0.2, 0.2: 0.2, 0.4: 0.1}) == ["0.05"]
    assert tried_next({0.1: 0.2, 0.2: 0.1, 0.4: 0.2}) == ["0.05", "0.8"]
    assert tried_next({0.1: 0.1, 0.2: 0.2, 0.4: 0.2, 0.8: 0.1}) == []
    assert tried_next({0.1: 1.0, 0.2: 1.0}) == []


def test_a_tie_with_another_reducer_hides_no_edge():
    points = sweep.combined(sweep.grid({"reducer.name": ["mean", "sum"], RATE: [0.1, 0.2]}))
    best = [("mean", 0.2), ("sum", 0.1)]
    of = measured(points, lambda labels: {"accuracy": float((labels["reducer.name"], labels[RATE]) in best)})
    assert [line.rpartition(" try ")[2] for line in warnings(of)] == [f"{RATE}=0.4, too"]
    assert groups.answer(of, "reducer.name")[0].startswith("Best reducer.name, in a tie: mean at ")


# ---- groups ------------------------------------------------------------------------------------------------------

TWO = sweep.combined(sweep.grid({"reducer.name": ["mean", "adasum"], RATE: [0.1, 0.2, 0.4]}))
ACCURACY = {("mean", 0.1): 0.90, ("mean", 0.2): 0.93, ("mean", 0.4): 0.8, ("adasum", 0.4): 0.96}


def two_reducers(*, spread, seeds=3, third=()):
    def of(labels):
        mean = ACCURACY.get((labels["reducer.name"], labels[RATE]), 0.5)
        return {"accuracy": mean + spread * (labels["seed"] - 1), "update_norm": labels[RATE] * labels["seed"]}

    return measured([*TWO, *third], of, seeds=seeds)


def test_the_first_lines_say_which_reducer_at_which_rate_by_how_much_and_whether_that_is_shown():
    said = text_of(two_reducers(spread=0.001), "reducer.name").splitlines()
    assert sum(line.startswith("Best") for line in said) == 1
    lines = said[-4:]  # at the end, with the edge
    assert lines[0].rstrip() == f"Best reducer.name: adasum at {RATE}=0.4: 0.9600 ± 0.0010 (n=3)."
    assert lines[1].rstrip() == (
        f"Next: mean at {RATE}=0.2: 0.9300 ± 0.0010 (n=3); the difference is +0.0300 [+0.0277, +0.0323]."
    )
    assert lines[2].startswith("By Welch's t-test it differs from mean at 0.05, p = ")
    wide = groups.answer(two_reducers(spread=0.1), "reducer.name")
    assert "it is not shown to differ from mean" in wide[2]
    assert groups.answer(two_reducers(spread=0.0, seeds=1), "reducer.name")[2].startswith("One seed gives no interval")


def test_several_groups_are_corrected_together():
    of = two_reducers(spread=0.001, third=[{"reducer.name": "sum", RATE: 0.1}])
    lines = groups.answer(of, "reducer.name")
    assert "(Holm, 2 tests) it differs from 2 of 2 other groups" in lines[2]
    assert [of.points[at]["reducer.name"] for at in groups.best_of_each(of, "reducer.name")] == [
        "adasum",
        "mean",
        "sum",
    ]


def test_a_group_of_one_run_takes_no_test_from_the_others():
    points = [{"reducer.name": name, RATE: 0.1} for name in ("mean", "sum", "adasum")]
    at_end = {"mean": 0.9, "sum": 0.8, "adasum": 0.85}

    def of(labels):
        name, seed = labels["reducer.name"], labels["seed"]
        return None if name == "adasum" and seed else {"accuracy": at_end[name] + 0.001 * (seed - 1)}

    lines = groups.answer(measured(points, of, seeds=3), "reducer.name")
    assert lines[1].endswith("the difference is +0.0510.")  # no interval: adasum has finished one run
    assert "it differs from sum at 0.05" in lines[2] and "(adasum)" in lines[2]


def test_each_group_has_its_edges():
    table = groups.table(two_reducers(spread=0.001), "reducer.name")
    (first, second) = table.to_numpy().tolist()
    assert first[:3] == ["adasum", f"{RATE}=0.4", "0.9600 ± 0.0010 (n=3)"]
    assert f"try {RATE}=0.8" in first[4]
    assert second[1] == f"{RATE}=0.2" and second[4] == ""


def test_the_key_that_groups():
    of = two_reducers(spread=0.001)
    assert groups.key_of(of) == "reducer.name" and groups.key_of(of, RATE) == RATE
    assert groups.answer(of, RATE)[0].startswith(f"Best {RATE}: 0.4 at reducer.name=adasum: ")
    with pytest.raises(ValueError, match=r"^by='seed': must be a key in which points differ: reducer.name, "):
        groups.key_of(of, "seed")
    assert groups.key_of(rates({0.1: 0.1, 0.2: 0.2})) is None


def test_what_says_little_of_a_point_is_in_the_csv_alone():
    of = two_reducers(spread=0.001)
    assert "update norm" not in list(sweep_table.table(of))
    assert "update_norm" in sweep_table.comma_separated(of)


# ---- figures -----------------------------------------------------------------------------------------------------


def test_two_numeric_keys_give_a_heat_map_with_the_best_cell_framed():
    points = sweep.grid({RATE: [0.1, 0.2, 0.4], "num_workers": [2, 4]})
    of = measured(points, lambda labels: {"accuracy": labels[RATE] * labels["num_workers"]})
    axes = sweep_figure.draw(of).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == (RATE, "num_workers")
    assert axes.images[0].get_array().tolist() == [[0.2, 0.4, 0.8], [0.4, 0.8, 1.6]]
    (frame,) = axes.patches
    assert frame.get_xy() == (1.5, 0.5)
    assert [text.get_text() for text in axes.texts] == ["0.2", "0.4", "0.8", "0.4", "0.8", "1.6"]


def test_one_numeric_key_gives_a_curve_for_each_value_of_the_others():
    points = sweep.grid({"reducer.name": ["mean", "sum"], RATE: [0.01, 0.1, 1.0]})
    of = measured(points, lambda labels: {"accuracy": labels[RATE] + labels["seed"]}, seeds=2)
    figure = sweep_figure.draw(of)
    (axes,) = figure.axes
    assert axes.get_xscale() == "log" and axes.get_xlabel() == RATE
    named = {text.get_text() for text in figure.legends[0].get_texts()}
    assert named == {"best point", "reducer.name=mean", "reducer.name=sum"}
    drawn = [line.get_xydata().tolist() for line in axes.lines if len(line.get_xdata()) == 3]
    assert axes.get_ylabel() == "accuracy on the validation split\n(± standard deviation)"
    assert [[0.01, 0.51], [0.1, 0.6], [1.0, 1.5]] in [[[x, round(y, 6)] for x, y in line] for line in drawn]


def test_a_logarithmic_axis_has_its_ticks_at_the_points():
    points = sweep.grid({"num_workers": [2, 6, 24]})
    (axes,) = sweep_figure.draw(measured(points, lambda labels: {"accuracy": labels["num_workers"]})).axes
    assert axes.get_xscale() == "log"
    axes.figure.draw_without_rendering()
    assert [tick.get_text() for tick in axes.get_xticklabels(which="both")] == ["2", "6", "24"]


def test_keys_that_change_in_step_have_a_panel_each():
    points = sweep.zipped({"num_workers": [2, 4, 8], "batch_size_per_worker": [32, 16, 8]})
    figure = sweep_figure.draw(measured(points, lambda labels: {"accuracy": labels["num_workers"]}), columns=1)
    assert figure.get_figwidth() == 3.25
    assert [axes.get_xlabel() for axes in figure.axes] == ["num_workers", "batch_size_per_worker"]


@pytest.mark.parametrize(
    ("points", "value", "said"),
    [
        ([{RATE: 0.1}], 1.0, "no numeric key has several values"),
        ([{RATE: 0.1}, {RATE: 0.2}], math.nan, "no run has a finite accuracy"),
    ],
)
def test_nothing_to_draw_is_said(points, value, said):
    with pytest.raises(ValueError, match=said):
        sweep_figure.draw(measured(points, lambda labels: {"accuracy": value}))


# ---- the command -------------------------------------------------------------------------------------------------


@pytest.fixture
def sweeping(tmp_path, monkeypatch, capsys):
    """Runs the command of a sweep whose runs finish as they start; returns code, output and starts."""
    started = []

    def train_command(run, folder):
        started.append(run.name)
        if run.config["optimizer"]["learning_rate"] == 0.3:
            return [sys.executable, "-S", "-c", "raise SystemExit(3)"]
        return saved.train_command(run, folder)

    monkeypatch.setattr(queue, "train_command", train_command)
    monkeypatch.setattr(queue, "POLL_SECONDS", 0.01)

    def run(*arguments, config=DIGITS):
        started.clear()
        code = command_line.main(["sweep", f"--config={config}", *arguments, f"--out={tmp_path}"])
        return code, capsys.readouterr(), list(started)

    return run


MANY = [f"--grid={key}={','.join(map(str, range(1, 100)))}" for key in ("num_workers", "seed", "log_every_steps")]


def folder_of(tmp_path):
    (folder,) = tmp_path.iterdir()
    return folder


def test_a_larger_grid_keeps_what_has_run(sweeping, tmp_path):
    grid = f"--grid={RATE}=0.1,0.2"
    code, said, started = sweeping(grid)
    assert code == 0 and len(started) == 2 and f"{RATE}=0.4, too" in said.out
    assert sweeping(grid)[2] == []
    code, said, started = sweeping(f"{grid},0.4,0.8", "--seeds=2")
    assert code == 0 and sorted(started) == [
        f"{RATE}=0.1,seed=1",
        f"{RATE}=0.2,seed=1",
        *(f"{RATE}={rate},seed={seed}" for rate in (0.4, 0.8) for seed in (0, 1)),
    ]
    assert said.out.count("(n=2)") == 9 and "more runs" not in said.out
    code, said, started = sweeping(grid, "--grid=reducer.name=mean,sum")  # digits.py has the mean already
    assert code == 0 and started == [f"{RATE}={rate},reducer.name=sum,seed=0" for rate in (0.1, 0.2)]
    assert said.out.count("(n=1)") == 8 and "6 more runs in this folder are of other points" in said.out
    assert len(list(folder_of(tmp_path).glob("*/DONE"))) == 10


def test_other_fixed_values_and_other_splits_are_another_folder(sweeping, tmp_path):
    grid = f"--grid={RATE}=0.1,0.2"
    for more in ("--set=data.evaluate_on=test", "--set=num_workers=4"):
        code, said, started = sweeping(grid, more, *(["--name=mine"] if "workers" in more else []))
        assert code == 0 and len(started) == 2 and "more runs" not in said.out
    assert len(list(tmp_path.iterdir())) == 2
    code, said, started = sweeping(grid, "--name=mine")  # the same folder and labels, another config
    assert code == 0 and len(started) == 2 and "2 more runs in this folder" in said.out


def test_what_the_folder_of_a_sweep_holds(sweeping, tmp_path):
    code, said, _ = sweeping(f"--grid={RATE}=0.1,0.2", "--seeds=3", "--metric=loss")
    folder = folder_of(tmp_path)
    names = ["table.md", "table.csv", "figure.png"]
    assert code == 0 and said.out.splitlines()[:3] == [str(folder / name) for name in names]
    assert said.out.endswith((folder / "table.md").read_text())
    assert said.out.count("Best") == 1 and "Best" in said.out.splitlines()[-2]  # and then the edge
    assert "for the smallest loss on the validation" in said.out
    assert (folder / "figure.png").stat().st_size > 5000
    code, said, _ = sweeping("--grid=reducer.name=mean,sum")
    assert said.out.splitlines()[2] == "no figure: no numeric key has several values"
    assert not (folder / "figure.png").exists()  # it would be that of another table


def test_a_run_that_failed_is_told_and_is_run_again_alone(sweeping):
    grid = f"--grid={RATE}=0.1,0.3"
    code, said, started = sweeping(grid)
    assert code == 1 and len(started) == 2
    assert "1 of 2 runs are not finished" in said.out and said.err.count("failed: ") == 1
    assert sweeping(grid)[2] == [f"{RATE}=0.3,seed=0"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((f"--grid={RATE}=0.1", f"--grid={RATE}=0.2"), f"{RATE}: is given twice"),
        ((f"--grid={RATE}=0.1,0.2", f"--set={RATE}=0.7"), f"{RATE}: is given twice"),
        (("--sink=wandbb",), "sink='wandbb': must be mlflow, wandb or module:attribute"),
        (("--median_rule=0",), "median_rule=0: must be in [1, inf)"),
        (("--set=seed=7", "--seeds=3"), "seeds=3: must be left out where the sweep sets seed"),
        ((f"--grid={RATE}=0.1", "--name=" + "x" * 300), "File name too long"),
        (MANY, "runs; must be in [1, 100000]"),  # before its points are made
        (("--draw=num_workers=choice(2,4)", "--draws=1000000000"), "runs; must be in [1, 100000]"),
        (("--grid=num_workers=2", "--seeds=1000000000"), "runs; must be in [1, 100000]"),
    ],
)
def test_what_would_be_ignored_written_nowhere_or_waited_for_in_vain_is_refused(arguments, said, sweeping, tmp_path):
    code, printed, started = sweeping(*arguments)
    assert (
        (code, started, list(tmp_path.iterdir())) == (2, [], [])
        and said in printed.err
        and printed.err.count("\n") == 1
    )


def test_two_names_of_a_config_with_a_folder_are_not_run_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(queue, "POLL_SECONDS", 0.01)
    runs = [Run(labels={"name": name}, spec=DIGITS) for name in "ab"]
    saved.save(results.folder_of(runs[0], tmp_path), runs[0].config, [], state="begun")
    started = []

    def slowly(run, folder):
        started.append(run.name)
        saved.save(folder, run.config, [], state="begun")
        wait = "import pathlib, sys, time; time.sleep(0.3); pathlib.Path(sys.argv[1], 'DONE').write_text('{}')"
        return [sys.executable, "-S", "-c", wait, str(folder)]

    assert queue.execute(runs, root=tmp_path, command=slowly, jobs=2) == []
    assert started == ["name=a"]


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_sweep_that_a_signal_stopped_goes_on_with_the_same_command(
    number, exit_code, sweeping, monkeypatch, tmp_path
):
    finishes = queue.train_command

    def stops(run, folder):
        if run.config["optimizer"]["learning_rate"] == 0.2:
            signal.raise_signal(number)  # as a terminal sends it, while the queue works
            return [sys.executable, "-S", "-c", "pass"]
        return finishes(run, folder)

    grid = f"--grid={RATE}=0.1,0.2,0.4"
    monkeypatch.setattr(queue, "train_command", stops)
    code, said, started = sweeping(grid)
    assert code == exit_code and started == [f"{RATE}=0.1,seed=0"]
    assert said.err.endswith(f"stopped by {number.name}; the same command resumes\n")
    assert not (folder_of(tmp_path) / "table.md").exists()
    monkeypatch.setattr(queue, "train_command", finishes)
    code, said, started = sweeping(grid)
    assert code == 0
    assert started == [f"{RATE}=0.2,seed=0", f"{RATE}=0.4,seed=0"]
    assert "not finished" not in said.out


# ---- early stopping ----------------------------------------------------------------------------------------------


@pytest.fixture
def recording(sweeping, monkeypatch):
    """Runs the command of a sweep; each run has the records of its rate and seed, and ends at once, later or never."""
    records_of = {}
    begins = queue.train_command

    def train_command(run, folder):
        command = begins(run, folder)
        records, ends = records_of[run.config["optimizer"]["learning_rate"], run.config["seed"]]
        saved.save(folder, run.config, records)
        if ends == "at once":
            return command
        (folder / "DONE").rename(folder / "DONE later")
        waits = "import os, sys, time; time.sleep(float(sys.argv[1])); os.rename('DONE later', 'DONE')"
        return ["env", f"--chdir={folder}", sys.executable, "-S", "-c", waits, "0.5" if ends == "later" else "60"]

    def run(records, *arguments):
        records_of.clear()
        for rate, by_seed in records.items():
            records_of.update({(rate, seed): each for seed, each in enumerate(by_seed)})
        seeds = len(next(iter(records.values())))
        return sweeping(f"--grid={RATE}={','.join(map(str, records))}", f"--seeds={seeds}", *arguments)

    monkeypatch.setattr(queue, "train_command", train_command)
    return run


def evaluations(*accuracies, ends="at once"):
    """The records of a run that is evaluated every ten steps, and when it ends by itself."""
    return [saved.evaluated(10 * i, accuracy=value, loss=0.5) for i, value in enumerate(accuracies, start=1)], ends


def diverging(*, ends):
    """The records of a run whose loss is infinite at step 5, and whose accuracy is high."""
    return [{"kind": "train", "step": 5, "loss": math.inf}, *evaluations(0.99)[0]], ends


def points_of(said):
    """The first cells of the lines of the table of points."""
    return [tuple(line.strip("| ").split(" | ")[:2]) for line in said.out.splitlines() if line.startswith("| 0")]


@pytest.mark.parametrize("ends", ["at once", "never"])
def test_a_run_whose_loss_is_not_finite_is_stopped_and_comes_last(ends, recording, tmp_path, capsys):
    records = {
        0.8: [evaluations(0.9, 0.9), diverging(ends=ends)],
        0.1: [evaluations(0.5, 0.6), evaluations(0.5, 0.6)],
        0.2: [evaluations(0.5, 0.7), evaluations(0.5, 0.7)],
    }
    code, said, started = recording(records)
    assert code == 0 and len(started) == 6
    assert ("seed=1: diverged at step 5" in said.err) == (ends == "never")
    assert points_of(said) == [
        ("0.1", "0.6000 ± 0.0000 (n=2)"),
        ("0.2", "**0.7000 ± 0.0000 (n=2)**"),
        ("0.8", "0.9000 ± - (n=1), 1 diverged"),
    ]
    assert "1 of 6 runs diverged" in said.out and f"Best: {RATE}=0.2" in said.out.splitlines()[-1]
    (*_, last) = csv.DictReader((folder_of(tmp_path) / "table.csv").read_text().splitlines())
    assert [last[key] for key in (RATE, "runs", "diverged", "stopped")] == ["0.8", "2", "1", "0"]
    code, again, started = recording(records)
    assert started == [] and again.out == said.out
    command_line.main(["ls", str(folder_of(tmp_path))])
    assert ("diverged" in capsys.readouterr().out) == (ends == "never")


def test_a_loss_that_is_not_finite_at_a_skipped_step_is_no_divergence(recording):
    skipped = [{"kind": "train", "step": 5, "loss": math.nan, "skipped": 1.0}, *evaluations(0.9)[0]]
    code, said, _ = recording({0.1: [(skipped, "later")], 0.2: [evaluations(0.5)]})
    assert code == 0 and "diverged" not in said.out and f"Best: {RATE}=0.1" in said.out


def test_a_value_whose_points_all_diverged_comes_last_in_the_table_of_values(recording):
    code, said, _ = recording({0.8: [diverging(ends="never")], 0.1: [evaluations(0.6)]}, f"--by={RATE}")
    of_values = said.out.partition("best at")[2].splitlines()
    assert code == 0 and [line.split(" | ")[0] for line in of_values[2:4]] == ["| 0.1", "| 0.8"]
    assert "none, 1 diverged" in of_values[3] and said.out.count("Best") == 1


def test_the_median_rule_stops_a_run_that_is_behind_and_the_decision_stays(recording, tmp_path):
    records = {
        0.1: [evaluations(0.2, 0.8)],  # 0.5 on average by step 20
        0.2: [evaluations(0.6, 0.7)],  # 0.65
        0.4: [evaluations(0.3, 0.5)],  # 0.4
        0.8: [evaluations(0.35, 0.35)],  # 0.35, so that the median is 0.45
        1.6: [evaluations(0.1, 0.3, ends="never")],  # 0.3 at best
        3.2: [evaluations(0.6, 0.3, ends="later")],  # 0.6 at best
    }
    code, said, _ = recording(records, "--median_rule=4", "--metric=accuracy")
    assert code == 0 and said.err.count("stopped at step") == 1 and f"{RATE}=1.6,seed=0: stopped at step 20" in said.err
    assert "1 of 6 runs were stopped early by the median rule" in said.out
    assert "| 1.6 | none, 1 stopped |" in said.out and f"Best: {RATE}=0.1: " in said.out
    _, again, started = recording(records)  # without the rule
    assert started == [] and again.out == said.out
    (mark,) = folder_of(tmp_path).glob("*/STOPPED")
    mark.unlink()
    records[1.6] = [evaluations(0.1, 0.3, 0.9)]
    _, said, started = recording(records)
    assert started == [f"{RATE}=1.6,seed=0"] and f"Best: {RATE}=1.6: " in said.out


@pytest.mark.parametrize(
    ("rule", "goal", "stops"), [(3, "max", True), (4, "max", False), (None, "max", False), (3, "min", False)]
)
def test_the_median_rule_needs_as_many_finished_runs_as_it_is_told(rule, goal, stops, recording):
    records = {rate: [evaluations(0.5, 0.5)] for rate in (0.1, 0.2, 0.4)}
    records[0.8] = [evaluations(0.1, 0.1, ends="later")]
    options = [f"--goal={goal}", *([f"--median_rule={rule}"] if rule else [])]
    code, said, _ = recording(records, *options)
    assert code == 0 and ("0.8,seed=0: stopped at step 20" in said.err) == ("1 stopped" in said.out) == stops


def test_a_damaged_mark_of_a_run_that_was_stopped_is_refused_in_one_line(recording, tmp_path):
    records = {0.1: [evaluations(0.5)], 0.8: [diverging(ends="never")]}
    recording(records)
    (mark,) = folder_of(tmp_path).glob("*/STOPPED")
    mark.write_text('{"state": "sleeping"}')
    code, said, started = recording(records)
    assert (code, started, said.err.count("\n")) == (2, [], 1) and "STOPPED is damaged" in said.err


# ---- trackers ----------------------------------------------------------------------------------------------------


def test_the_runs_of_a_sweep_have_their_sinks_and_one_group(sweeping, monkeypatch, tmp_path):
    groups_of = ("WANDB_RUN_GROUP", "MLFLOW_EXPERIMENT_NAME")
    monkeypatch.delenv(groups_of[0], raising=False)
    monkeypatch.setenv(groups_of[1], "mine")
    finishes, given = queue.train_command, []
    shows = f"import os; open('shown', 'a').write(' '.join(os.environ.get(key, '-') for key in {groups_of}) + '\\n')"

    def train_command(run, folder):
        finishes(run, folder)
        given.append([argument for argument in run.arguments if argument.startswith("--sink")])
        return [sys.executable, "-S", "-c", f"import os; os.chdir({str(tmp_path)!r}); {shows}"]

    monkeypatch.setattr(queue, "train_command", train_command)
    sinks = ["--sink=wandb", "--sink=json:JSONEncoder"]
    code, _, _ = sweeping(f"--grid={RATE}=0.1,0.2", "--name=rates", *sinks)
    assert code == 0 and given == [sinks, sinks]
    assert (tmp_path / "shown").read_text().splitlines() == ["rates mine"] * 2
    assert sweeping(f"--grid={RATE}=0.1,0.2,0.4", "--name=rates")[2] == [f"{RATE}=0.4,seed=0"]
    assert (tmp_path / "shown").read_text().splitlines()[2:] == ["- mine"]


def test_more_jobs_than_runs_take_no_memory(tmp_path):
    assert queue.execute([], root=tmp_path, command=queue.train_command, jobs=10**12) == []
