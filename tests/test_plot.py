"""Curves: what is drawn of made-up records, and what the command refuses."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from experiments import plot
from experiments.execution import results
from experiments.plots import drawing
from runs import saved_runs
from tests.started import python


def made_up(losses=(4.0, 2.0, 1.0), *, evaluated=True):
    records = []
    for step, loss in enumerate(losses, start=1):
        times = {"epoch": step / 2, "examples": 32 * step, "wall_seconds": 0.5 * step, "simulated_seconds": 0.0}
        records.append({"kind": "train", "step": step, **times, "loss": loss, "accuracy": 1 / (1 + step), "note": "x"})
        if evaluated and step % 2:
            records.append({"kind": "eval", "step": step, **times, "loss": loss + 1, "accuracy": 0.5})
    return records


def drawn(runs, **options):
    """The figure of runs, each a curve."""
    return plot.draw({label: plot.Curve(records) for label, records in runs.items()}, **options)


def lines(axes):
    return {line.get_linewidth(): line.get_xydata() for line in axes.lines if len(line.get_xdata()) > 1}


def write(folder, records, *, config=None, tail=""):
    folder.mkdir(parents=True)
    results.write_rows(folder / "metrics.jsonl", records)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(tail)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_thin_training_and_thick_evaluation():
    figure = drawn({"mine": made_up()}, x="step", y=["loss", "accuracy"])
    loss, accuracy = figure.axes
    found = lines(loss)
    thin, thick = min(found), max(found)
    assert thick >= 2 * thin
    np.testing.assert_array_equal(found[thin], [(1, 4), (2, 2), (3, 1)])
    np.testing.assert_array_equal(found[thick], [(1, 5), (3, 2)])
    assert [line.get_marker() for line in loss.lines] == ["None", "o"]
    assert (loss.get_ylabel(), accuracy.get_ylabel()) == ("loss", "accuracy")
    assert accuracy.yaxis.get_major_formatter()(0.5).endswith("%")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["mine", "training", "evaluation"]


@pytest.mark.parametrize(
    ("x", "scale", "wanted", "label"),
    [
        ("step", 1, [1, 2, 3], "step (updates)"),
        ("epoch", 1, [0.5, 1, 1.5], "epoch"),
        ("examples", 1, [32, 64, 96], "examples"),
        ("wall_seconds", 1, [0.5, 1, 1.5], "wall time (s)"),
        ("wall_seconds", 1000, [50 / 6, 100 / 6, 25], "wall time (min)"),
        ("simulated_seconds", 3600, [1, 2, 3], "simulated time (h)"),
    ],
)
def test_x_and_its_unit(x, scale, wanted, label):
    records = [{**r, "simulated_seconds": r["step"]} for r in made_up(evaluated=False)]
    records = [{**r, x: r[x] * scale} for r in records]
    axes = drawn({"mine": records}, x=x, y=["loss"]).axes[0]
    np.testing.assert_allclose(axes.lines[0].get_xdata(), wanted)
    assert axes.get_xlabel() == label


def test_runs_differ_in_colour_and_marker_and_share_the_legend():
    runs = {f"run {i}": made_up() for i in range(9)}
    figure = drawn(runs, y=["loss"])
    thick = [line for line in figure.axes[0].lines if line.get_marker() != "None"]
    assert len({(line.get_color(), line.get_linestyle()) for line in thick}) == 9
    assert len({(line.get_color(), line.get_marker()) for line in thick[:7]}) == 7
    texts = {text.get_text() for text in figure.legends[0].get_texts()}
    assert texts == {*runs, "training", "evaluation"}


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e308, -1.7e308, 10**400])
def test_what_cannot_be_drawn_is_a_gap_with_a_cross_and_does_not_stretch_the_axis(bad):
    records = made_up((4.0, 2.0, bad, bad), evaluated=False)
    figure = drawn({"mine": records}, y=["loss"])
    line, cross = figure.axes[0].lines
    np.testing.assert_array_equal(line.get_ydata(), [4, 2, math.nan, math.nan])
    assert cross.get_marker() == "x"
    np.testing.assert_array_equal(cross.get_xydata(), [(2, 2)])
    assert "not finite after this" in [text.get_text() for text in figure.legends[0].get_texts()]
    figure.draw_without_rendering()
    late = [{**record, "wall_seconds": record["loss"]} for record in records]
    figure = plot.draw({"mine": plot.over_seeds([late, late])}, x="wall_seconds", y=["loss"])
    figure.draw_without_rendering()


def test_a_loss_that_explodes_is_marked_at_the_end_of_an_axis_that_it_does_not_stretch():
    figure = drawn({"mine": made_up((4.0, 2.0, 1e9, 1e12)), "other": made_up((4.0, 3.0, 2.0, 1.0))}, y=["loss"])
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    assert axes.get_yscale() == "linear" and 0 < low < 1 and 4 < high < 20
    crosses = [line for line in axes.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert [line.get_xydata().tolist() for line in crosses] == [[[3, high]], [[3, high]]]  # training and evaluation
    assert {line.get_color() for line in crosses} == {drawing.COLOURS[0]}
    assert "beyond the axis" in [text.get_text() for text in figure.legends[0].get_texts()]
    negative = drawn({"mine": made_up((-4.0, -2.0, 9.0))}, y=["loss"])  # a loss of one's own
    assert negative.axes[0].get_ylim()[1] > 9


def test_log_scale_where_values_span_decades():
    def scale(losses):
        return drawn({"mine": made_up(losses)}, y=["loss"]).axes[0].get_yscale()

    assert scale((100.0, 10.0, 0.1)) == "log"
    assert scale((4.0, 2.0, 1.0)) == "linear"
    assert scale((100.0, 10.0, -1.0)) == "linear"


def test_panels_fill_rows_and_leave_no_empty_one():
    records = [{"kind": "train", "step": s, **{q: float(s) for q in "abcde"}} for s in (1, 2)]
    records.insert(0, {"kind": "train", "step": 0, "loss": 1.0})  # not every record has all
    for panels in ("a", "abc", "abcde"):
        assert len(drawn({"mine": records}, y=list(panels)).axes) == len(panels)


def test_matplotlib_is_imported_late_and_its_global_state_left_alone(tmp_path):
    # pyplot would choose a backend for the whole process
    run = write(tmp_path / "a", made_up())
    code = f"""
import sys
from experiments import plot
assert "matplotlib" not in sys.modules
import matplotlib
before = dict(dict.items(matplotlib.rcParams))  # to ask for the backend would import pyplot
assert plot.main([{run!r}, "--out={tmp_path / "a.png"}"]) == 0
assert "matplotlib.pyplot" not in sys.modules and dict(dict.items(matplotlib.rcParams)) == before
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def config(**changes):
    return {"seed": 0, "num_workers": 8, "reducer": {"name": "mean"}, **changes}


def krum(f):
    return config(reducer={"name": "krum", "f": f})


def quorum(rate, grace, **changes):
    of_rate = {"name": "sgd", "learning_rate": rate}
    of_grace = {"name": "quorum", "grace_seconds": grace}
    return {"optimizer": of_rate, "reducer": of_grace, **changes}


RATES = {0.12345678901234567: 0.25, 0.7654321: 0.5}
LABELS = [
    (
        {"a": config(), "b": config(seed=1), "c": krum(1)},
        ["seed=0, reducer=mean", "seed=1, reducer=mean", "seed=0, reducer=krum"],
    ),
    ({"a": krum(1), "b": krum(2)}, ["reducer.f=1", "reducer.f=2"]),
    ({"out/a": config()}, ["a"]),
    ({"out/a": config(), "out/b": config()}, ["a", "b"]),
    ({"out/a": config(), "out/b": None}, ["a", "b"]),
    ({"out/a": config(), "out/b": None, "out/c": krum(1)}, ["reducer=mean", "b", "reducer=krum"]),
    ({"out/a": config(), "out/b": config(), "out/c": krum(1)}, ["reducer=mean, a", "reducer=mean, b", "reducer=krum"]),
    ({"x/a": config(), "y/a": config()}, ["x/a", "y/a"]),
    ({name: config(note=150 * name) for name in "ab"}, ["a", "b"]),
    (  # the first keys that tell apart are enough, if all are too many
        {name: {f"a_rather_long_key_{i}": value for i in range(9)} for name, value in (("3fe21ab9", 1), ("b", 2))},
        [", ".join(f"a_rather_long_key_{i}={value}" for i in range(5)) for value in (1, 2)],
    ),
    (
        {"a": quorum(0.1, 0.25), "b": quorum(0.2, 0.5)},
        [f"optimizer.learning_rate={rate}, reducer.grace_seconds={grace}" for rate, grace in ((0.1, 0.25), (0.2, 0.5))],
    ),
    (  # long ones are without blocks
        {
            str(rate): quorum(rate, grace, arrivals={"name": "x", "logarithm_of_seconds": rate})
            for rate, grace in RATES.items()
        },
        [f"learning_rate={rate}, grace_seconds={grace}, logarithm_of_seconds={rate}" for rate, grace in RATES.items()],
    ),
]


@pytest.mark.parametrize(("configs", "labels"), LABELS)
def test_labels(configs, labels):
    assert list(saved_runs.labels(configs).values()) == labels


def test_command_draws_runs_that_are_still_written(tmp_path, capsys):
    first = write(tmp_path / "a", made_up(), config={"seed": 0}, tail='{"kind": "train", "st')
    second = write(tmp_path / "b", made_up((4.0, math.nan)), config={"seed": 0, "num_workers": 2})
    out = tmp_path / "figure.png"
    assert plot.main([first, second, f"--out={out}", "--x=epoch"]) == 0
    assert capsys.readouterr().out == f"{out}: loss, accuracy against epoch of 2 runs\n"

    import matplotlib.image

    picture = matplotlib.image.imread(out)[..., :3]
    assert picture.shape[1] > 1000
    for colour in drawing.COLOURS[:2]:
        wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        assert (np.abs(picture - wanted).max(-1) < 0.01).sum() > 100, colour


REFUSED = [
    (["{tmp}/none"], "run='{tmp}/none': no such folder"),
    (["{tmp}/nothing"], "run='{tmp}/nothing': holds no metrics.jsonl"),
    (["{tmp}/file.txt"], "run='{tmp}/file.txt': is not a folder"),
    (["{tmp}/empty"], "run='{tmp}/empty': its metrics.jsonl holds no records yet"),
    (["{tmp}/broken"], "'{tmp}/broken/metrics.jsonl': line 1 is damaged"),
    (["{tmp}/bad_config"], "workdir='{tmp}/bad_config': config.json is damaged"),
    (["{tmp}/good", "--y=los"], "y='los': not in the records; did you mean 'loss'?"),
    (["{tmp}/good", "--y=perplexity"], "y='perplexity': not in the records; allowed: accuracy, epoch, examples, loss"),
    (["{tmp}/good", "--y=note"], "y='note': not in the records"),
    (["{tmp}/good", "--x=time"], "x='time': must be one of step, epoch"),
    (["{tmp}/good", "--x=simulated_seconds"], "x='simulated_seconds': is 0 throughout"),
    (["{tmp}/good", "{tmp}/no_epoch", "--x=epoch"], "x='epoch': not in the records of no_epoch"),
    (["{tmp}/good", "--out={tmp}/curves.gif"], "out='{tmp}/curves.gif': must end in .png, .pdf, .svg"),
    (["{tmp}/good", "--out={tmp}/none/c.png"], "out='{tmp}/none/c.png': no such folder"),
    (["{tmp}/good", "--z=1"], "unrecognized arguments: --z=1"),
    ([], "the following arguments are required: FOLDER"),
]


@pytest.mark.parametrize(("argv", "message"), REFUSED)
def test_refused_in_one_line_with_exit_code_2(tmp_path, capsys, argv, message):
    write(tmp_path / "good", made_up())
    write(tmp_path / "no_epoch", [{"kind": "train", "step": 1, "loss": 1.0}])
    write(tmp_path / "empty", [])
    write(tmp_path / "broken", [], tail="{nonsense}\n")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "file.txt").touch()
    write(tmp_path / "bad_config", made_up())
    (tmp_path / "bad_config" / "config.json").write_text("{")
    before = sorted(tmp_path.rglob("*"))
    assert plot.main([f"--out={tmp_path / 'new.png'}", *(a.format(tmp=tmp_path) for a in argv)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("plot: " + message.format(tmp=tmp_path))
    assert printed.err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


# ---- telemetry of groups of leaves -----------------------------------------------------------------------------------

GROUPS = ("Dense_0/bias", "Dense_0/kernel", "Dense_1/kernel")


def telemetry(cosines=(0.5, 0.25), *, groups=GROUPS, metrics=("cosine", "gain")):
    """Records in which the metrics of the model are ``cosines``, and those of the i-th group i + 1 larger."""
    return [
        {"kind": "train", "step": step, "loss": 1.0}
        | {metric: value for metric in metrics}
        | {f"{metric}/{group}": value + i for metric in metrics for i, group in enumerate(groups, start=1)}
        for step, value in enumerate(cosines, start=1)
    ]


def by_look(axes):
    """Line width and colour -> the curves, from their first y up."""
    found = {}
    for line in sorted(axes.lines, key=lambda line: line.get_ydata()[0]):
        found.setdefault((line.get_linewidth(), line.get_color()), []).append(line.get_xydata().tolist())
    return found


def test_groups_are_thin_lines_beside_the_thick_one_of_the_model():
    figure = drawn({"mine": telemetry()}, y=["cosine/*"])
    (axes,) = figure.axes
    looks = by_look(axes)
    model = looks.pop(max(looks))
    assert model == [[[1, 0.5], [2, 0.25]]] and axes.get_ylabel() == "cosine"
    assert [curve for curves in looks.values() for curve in curves] == [
        [[1, 0.5 + i], [2, 0.25 + i]] for i in (1, 2, 3)
    ]
    assert len(looks) == 3 and max(looks)[0] < 1
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"model", *GROUPS}


def test_each_run_has_a_panel_of_groups_and_all_have_one_scale():
    runs = {"one": telemetry(), "other": telemetry((0.1, 0.2))}
    figure = drawn(runs, y=["loss", "cosine/*"])
    loss, one, other = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["", "one", "other"]
    assert one.get_ylim() == other.get_ylim() != loss.get_ylim()
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(texts) == sorted(["one", "other", "model", *GROUPS])


def test_a_pattern_chooses_groups_which_look_the_same_in_all_panels():
    figure = drawn({"mine": telemetry()}, y=["cosine/*", "gain/*/kernel"])
    cosine, gain = (
        {line.get_ydata()[0]: line.get_color() for line in axes.lines if line.get_linewidth() < 1}
        for axes in figure.axes
    )
    assert set(gain) == {2.5, 3.5} and gain.items() <= cosine.items()


def test_many_groups_are_not_named_one_by_one():
    names = [f"Block_{i}/kernel" for i in range(30)]
    figure = drawn({"mine": telemetry(groups=names)}, y=["cosine/*"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["model", "each of 30 groups"]
    looks = by_look(figure.axes[0])
    assert sorted(map(len, looks.values())) == [1, 30]


def test_over_seeds_the_model_has_a_band_and_the_groups_are_means(tmp_path):
    for seed, cosines in enumerate([(0.5, 0.25), (0.7, 0.25)]):
        write(tmp_path / str(seed), telemetry(cosines), config={"seed": seed, "num_workers": 8})
    runs, _ = plot.find([str(tmp_path)])
    ((label, curve),) = plot.curves(runs).items()
    (axes,) = plot.draw({label: curve}, y=["cosine/*"]).axes
    (band,) = axes.collections
    assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(0.6 + 0.02**0.5)
    assert sorted(line.get_ydata()[0] for line in axes.lines) == pytest.approx([0.6, 1.6, 2.6, 3.6])


def test_the_command_draws_groups(tmp_path, capsys):
    run = write(tmp_path / "a", telemetry())
    out = tmp_path / "a.png"
    assert plot.main([run, "--y=cosine,cosine/*", f"--out={out}"]) == 0
    assert capsys.readouterr().out == f"{out}: cosine, cosine/* against step of 1 run\n"
    for pattern in ("cosine/Conv_*", "loss/*", "*"):
        assert plot.main([run, f"--y={pattern}", f"--out={out}"]) == 2
        assert f"y={pattern!r}: not in the records" in capsys.readouterr().err


# ---- folders with runs, and seeds --------------------------------------------------------------------------------


def seeds(root, *, reducer="mean", losses=((4.0, 2.0, 1.0), (6.0, 2.0, 3.0))):
    for seed, each in enumerate(losses):
        config = {"seed": seed, "num_workers": 8, "reducer": {"name": reducer}}
        write(root / f"{reducer}-{seed}", made_up(each), config=config)
    return str(root)


def test_runs_that_differ_in_their_seed_are_a_mean_with_a_band(tmp_path):
    runs, notes = plot.find([seeds(tmp_path)])
    (label, curve), *others = plot.curves(runs).items()
    assert label == "mean over 2 seeds" and not others and not notes
    figure = plot.draw({label: curve}, y=["loss"])
    (axes,) = figure.axes
    np.testing.assert_array_equal(lines(axes)[1.8], [(1, 6), (3, 3)])  # of evaluations, which are 1 above training
    (band,) = axes.collections
    half = np.sqrt(2)  # of 5 and 7, and of 2 and 4
    low = band.get_paths()[0].vertices[:, 1].min()
    high = band.get_paths()[0].vertices[:, 1].max()
    np.testing.assert_allclose((low, high), (3 - half, 6 + half))
    assert "± one standard deviation" in [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize(
    ("quantity", "values", "ends"),
    [
        ("accuracy", (0.5, 0.99, 0.99), (0.5437, 1)),
        ("masked_lm_accuracy", (0.0, 0.0, 0.1), (0, 0.0911)),
        ("loss", (0.01, 0.02, 6.0), (0, 5.4652)),
        ("noise_scale", (1.0, 2.0, 600.0), (0, 546.5445)),
        ("loss", (-0.01, 0.02, 6.0), (-1.4579, 5.4646)),  # a loss of one's own
        ("accuracy", (50.0, 99.0, 99.0), (54.3765, 110.9568)),  # a metric of one's own, in percent
    ],
)
def test_a_band_ends_where_the_quantity_does(quantity, values, ends):
    runs = [[{"kind": "train", "step": step, quantity: value} for step in (1, 2)] for value in values]
    curve = plot.over_seeds(runs)
    (axes,) = plot.draw({"a": curve}, y=[quantity]).axes
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx(ends, abs=1e-3)


def test_more_runs_curves_or_panels_than_can_be_drawn_are_refused_in_one_line(tmp_path, monkeypatch, capsys):
    root = str(seeds(tmp_path, losses=4 * [(1.0, 1.0)]))
    seeds(tmp_path, reducer="sum", losses=[(1.0, 1.0)])
    for name, most, argument, said in (
        ("MOST_RUNS", 4, "--y=loss", "more than 4 runs"),
        ("MOST_CURVES", 1, "--y=loss", "2 curves"),
        ("MOST_PANELS", 1, "--y=loss,accuracy", "2 panels"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(plot if name == "MOST_RUNS" else drawing, name, most)
            assert plot.main([root, argument, f"--out={tmp_path / 'a.png'}"]) == 2
        printed = capsys.readouterr()
        assert said in printed.err and printed.err.count("\n") == 1 and not printed.out


def test_curves_are_named_by_the_keys_that_differ_and_count_their_seeds(tmp_path):
    seeds(tmp_path, reducer="mean")
    seeds(tmp_path, reducer="sum", losses=[(1.0, 1.0)])
    runs, _ = plot.find([str(tmp_path)])
    assert list(plot.curves(runs)) == ["reducer=mean (2 seeds)", "reducer=sum"]
    alone = {run: saved for run, saved in runs.items() if not run.endswith("mean-1")}
    assert list(plot.curves(alone)) == ["reducer=mean", "reducer=sum"]


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"name": "mnist", "evaluate_on": "validation"}, "evaluation (validation split)"),
        ({"name": "text"}, "evaluation (test split)"),
    ],
)
def test_the_legend_names_the_split_that_is_evaluated(data, named, tmp_path):
    for count in (2, 4):
        write(tmp_path / str(count), made_up(), config=config(num_workers=count, data=data))
    runs, _ = plot.find([str(tmp_path)])
    figure = plot.draw(plot.curves(runs), y=["loss"])
    assert named in [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_mean_ends_where_the_shortest_run_does_and_where_one_diverges():
    curve = plot.over_seeds([made_up((4.0, 2.0, 1.0), evaluated=False), made_up((2.0, math.inf), evaluated=False)])
    assert [record["step"] for record in curve.mean] == [1, 2]
    assert curve.mean[0]["loss"] == 3.0 and math.isnan(curve.mean[1]["loss"])


def test_runs_of_one_config_that_are_the_same_seed_stay_apart(tmp_path):
    seeds(tmp_path / "a", losses=[(4.0, 2.0)])
    seeds(tmp_path / "b", losses=[(4.0, 2.0)])
    runs, _ = plot.find([str(tmp_path)])
    assert len(plot.curves(runs)) == 2


def test_what_is_no_run_is_skipped_with_a_note(tmp_path, capsys):
    root = tmp_path / "sweep"
    seeds(root)
    (root / "table.md").write_text("| a |")
    (root / "xla").mkdir()
    write(root / "begun", [], config={"seed": 7})
    write(root / "broken", [], tail="{nonsense}\n", config={"seed": 8})
    out = tmp_path / "new.png"
    assert plot.main([str(root), f"--out={out}"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out}: loss, accuracy against step of 2 runs in 1 curve\n"
    assert [line.split("'")[1] for line in printed.err.splitlines()] == [
        str(root / "begun"),
        f"{root}/broken/metrics.jsonl",
    ]
    assert plot.main([*map(str, sorted(root.iterdir())), f"--out={out}"]) == 0  # as the shell expands sweep/*
    printed = capsys.readouterr()
    assert "of 2 runs" in printed.out and printed.err.count("plot: skipped: ") == 4


NAMES = [r"$\frac{$", "$x$", "_hidden", "a\\b", "50%", "a\nb\x1b[2J", "n" * 200, "ключ", r"\$", "{}", "^_^"]


@pytest.mark.parametrize("ending", ["png", "pdf"])
def test_names_are_drawn_as_they_are(ending, tmp_path, capsys):
    """Those of folders, groups of leaves and quantities: none is a formula, hidden from the legend, or too wide."""
    for name in NAMES:
        write(tmp_path / "runs" / name.replace("/", ""), telemetry(groups=NAMES[:4], metrics=("cosine", NAMES[0])))
    out = tmp_path / f"curves.{ending}"
    quantities = f"{NAMES[0]},loss" + 500 * ",loss"
    assert plot.main([str(tmp_path / "runs"), f"--y={quantities}", f"--out={out}"]) == 0
    assert out.stat().st_size > 5000 and capsys.readouterr().out.count("\n") == 1
    figure = drawn({name: telemetry() for name in NAMES}, y=["loss", "cosine/*"])
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert set(map(drawing.name, NAMES)) <= set(texts)
    assert all(len(line) <= drawing.LINE + 1 and line.isprintable() for text in texts for line in text.split("\n"))
    assert not any(text.get_parse_math() for text in figure.legends[0].get_texts())


def test_the_numbers_of_a_logarithmic_axis_stay_formulas():
    (axes,) = drawn({"$a$": made_up((1000.0, 1.0, 0.1), evaluated=False)}, y=["loss"]).axes
    axes.figure.canvas.draw()
    assert all(tick.label1.get_parse_math() for tick in axes.yaxis.get_major_ticks())


@pytest.mark.parametrize("fails", ["before", "within"])
def test_a_figure_is_written_whole_or_not_at_all(fails, tmp_path, monkeypatch):
    path = tmp_path / "curves.png"
    path.write_bytes(b"of before")
    figure = drawn({"mine": made_up()}, y=["loss"])

    def full(file, **_):
        if fails == "within":
            file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "savefig", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*curves.png'"):
        drawing.save(figure, path)
    assert path.read_bytes() == b"of before" and list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one(tmp_path):
    (tmp_path / "link.png").symlink_to(tmp_path / "target.png")
    drawing.save(drawn({"mine": made_up()}, y=["loss"]), tmp_path / "link.png")
    assert (tmp_path / "link.png").is_symlink() and (tmp_path / "target.png").stat().st_size > 5000


@pytest.mark.parametrize("y", [["loss"], ["loss", "accuracy"]])
@pytest.mark.parametrize("count", [2, 10])
@pytest.mark.parametrize(
    "label",
    [
        "reducer=backup_workers, num_required={0}, learning_rate=0.{0}",
        "a rather long label of run {0}",
        "no label {0} of ten",  # columns that fit beside each other only without the gaps between them
    ],
)
def test_a_legend_is_inside_the_picture_and_reads_row_by_row(y, count, label):
    records = [{"kind": kind, "step": 10, "loss": 1.0, "accuracy": 0.5} for kind in ("train", "eval")]
    figure = drawn({label.format(i): records for i in range(count)}, y=y)
    named = [drawing.name(label.format(i)) for i in range(count)]
    figure.draw_without_rendering()
    (legend,) = figure.legends
    corners = {text.get_text(): text.get_window_extent() for text in legend.get_texts()}
    assert sorted(named, key=lambda name: (round(-corners[name].y0), corners[name].x0)) == named
    inside, picture = legend.get_window_extent(), figure.bbox
    assert picture.x0 <= inside.x0 and inside.x1 <= picture.x1 and picture.y0 <= inside.y0
    assert len(legend.get_texts()) == count + 2
    assert all(axes.get_window_extent().height > 100 for axes in figure.axes)


@pytest.mark.parametrize(("count", "inches"), [(1, 3.25), (2, 6.75)])
@pytest.mark.parametrize("options", [[], ["--labels"]])
def test_a_figure_is_as_wide_as_the_columns_of_a_page(count, inches, options, tmp_path):
    for workers in (2, 4):
        folder = Path(write(tmp_path / f"runs/{workers}", made_up(), config=config(num_workers=workers)))
        (folder / "labels.csv").write_text("worker,class,examples\n0,0,5\n1,3,5\n")
    out = tmp_path / "curves.svg"
    assert plot.main([str(tmp_path / "runs"), f"--columns={count}", f"--out={out}", *options]) == 0
    assert f'width="{72 * inches:g}pt"' in out.read_text()
