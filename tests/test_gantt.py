"""Gantt charts: spans worked out by hand, laws of all spans, and the drawn bars."""

import numpy as np
import pytest

import reducers
from experiments import plot
from experiments.plots import gantt, timelines
from experiments.plots.timelines import Span, synchronous
from tests import saved
from tests.refused import line_of, refused

EVENTS = ((1, 0, 5.0), (0, 1, 0.5))
CONFIG = {
    "arrivals": {"name": "scripted", "base": "constant", "events": [list(event) for event in EVENTS]},
    "num_workers": 3,
    "seed": 0,
}


def record(step, seconds, contributors, end):
    numbers = {"step_seconds": seconds, "contributors": contributors, "simulated_seconds": end}
    return {"kind": "train", "step": step, **numbers}


RECORDS = [record(1, 1.0, 2.0, 1.0), record(2, 1.0, 3.0, 2.0), {**record(2, 1.0, 3.0, 2.0), "kind": "eval"}]
BY_HAND = [
    # step 1: workers 0 and 2 take 1 s, worker 1 would take 5 s
    Span("computing", 0, 0, 1),
    Span("applied", 0, 1, 1),
    Span("dropped", 1, 0, 1),
    Span("computing", 2, 0, 1),
    Span("applied", 2, 1, 1),
    # step 2: worker 0 takes 0.5 s, and waits
    Span("computing", 0, 1, 1.5),
    Span("waiting", 0, 1.5, 2),
    Span("applied", 0, 2, 2),
    *[span for worker in (1, 2) for span in (Span("computing", worker, 1, 2), Span("applied", worker, 2, 2))],
]


def test_spans_of_a_run_by_hand():
    assert timelines.of_run(RECORDS, CONFIG, first_step=1, last_step=9) == BY_HAND
    assert timelines.of_run(RECORDS, CONFIG, first_step=2, last_step=2) == BY_HAND[5:]


@pytest.mark.parametrize(
    "block",
    [
        {"name": "local_sgd", "every_steps": 2},
        {"name": "elastic_averaging", "every_steps": 1},
        {"name": "gossip"},
        {"name": "adaptive_batch", "rule": {"name": "fixed", "every_steps": 2}},
    ],
    ids=lambda block: block["name"],
)
def test_workers_that_do_not_meet_in_each_step_are_not_drawn(block):
    """Each has a clock of its own; as long as a batch is of one step, the workers meet at its end."""
    config = {**CONFIG, "reducer": block}
    numbers = reducers.report(reducers.make(axis_name="worker", **block).init(0.0)).metrics
    records = [{**numbers, **r} for r in RECORDS]
    with refused(ValueError, f"^reducer='{block['name']}': its workers do not meet in each step"):
        timelines.of_run(records, config, first_step=1, last_step=2)
    if "batch_steps" in numbers:
        short = [{**r, "batch_steps": 1.0} for r in records]
        assert timelines.of_run(short, config, first_step=1, last_step=2) == BY_HAND


def test_real_workers_begin_late_by_hand(tmp_path):
    """Worker 1 is late in step 1, and begins step 2 when it is done; worker 2 begins neither."""
    inf = np.inf
    seconds = [[1.0, inf, inf], [0.5, 2.0, inf]]
    began = [[0.0, 0.0, inf], [0.0, 0.25, inf]]
    np.savez(tmp_path / "worker_seconds-1.npz", seconds=seconds, began=began)
    config = {**CONFIG, "arrivals": {"name": "none"}}
    steps = [record(1, 1.0, 1.0, 1.0), record(2, 2.0, 2.0, 3.0)]
    assert timelines.of_run(steps, config, first_step=1, last_step=2, folder=tmp_path) == [
        Span("computing", 0, 0, 1),
        Span("applied", 0, 1, 1),
        Span("dropped", 1, 0, 1),
        Span("dropped", 2, 0, 1),
        Span("computing", 0, 1, 1.5),
        Span("waiting", 0, 1.5, 3),
        Span("applied", 0, 3, 3),
        Span("dropped", 1, 1, 1.25),
        Span("computing", 1, 1.25, 3),
        Span("applied", 1, 3, 3),
        Span("dropped", 2, 1, 3),
    ]
    steps.append(record(3, 1.0, 3.0, 4.0))  # it was written before the trace, and then the run was killed
    with pytest.raises(ValueError, match=r"^worker_seconds-1\.npz: ends before step 3$"):
        timelines.of_run(steps, config, first_step=1, last_step=3, folder=tmp_path)
    np.savez(tmp_path / "worker_seconds-3.npz", seconds=[[1.0, 1.0, 1.0]], began=[[0.0, 0.5, 0.0]])
    third = timelines.of_run(steps, config, first_step=2, last_step=3, folder=tmp_path)[6:]
    assert [span for span in third if span.worker == 1] == [
        Span("dropped", 1, 3, 3.5),
        Span("computing", 1, 3.5, 4),
        Span("applied", 1, 4, 4),
    ]
    (tmp_path / "worker_seconds-1.npz").write_text("damaged")
    with pytest.raises(ValueError, match=r"worker_seconds-1.npz': is no trace of seconds"):
        timelines.of_run(steps, config, first_step=1, last_step=2, folder=tmp_path)


ASYNCHRONOUS = {
    **CONFIG,
    "arrivals": {"name": "scripted", "base": "constant", "events": [[1, 0, 2.5]]},
    "num_workers": 2,
    "server": {"name": "asynchronous", "rule": "none", "gradients_per_update": 1, "staleness_bound": None},
}


def of_events(*events, kind="computing"):
    """Spans of (worker, read, arrival), each gradient an update."""
    pairs = [(Span(kind, w, read, arrival), Span("applied", w, arrival, arrival)) for w, read, arrival in events]
    return [span for pair in pairs for span in pair]


def test_spans_of_an_asynchronous_run_by_hand():
    """Worker 1's first gradient takes 2.5 s, all others 1 s; of two that arrive at once, worker 0's is first."""
    expected = of_events((0, 0, 1), (0, 1, 2), (1, 0, 2.5), (0, 2, 3), (1, 2.5, 3.5), (0, 3, 4))
    records = [record(step, 1.0, 1.0, 0.0) for step in range(1, 7)]
    assert timelines.of_run(records, ASYNCHRONOUS, first_step=1, last_step=99) == expected
    assert timelines.of_run(records, ASYNCHRONOUS, first_step=3, last_step=4) == expected[4:8]


@pytest.mark.parametrize(
    ("rule", "seconds"),
    [({"name": "threshold", "max_staleness": 1}, 2.5), ({"name": "delay_adaptive", "bound": 0.0}, 4.5)],
)
def test_what_the_rule_drops_by_hand(rule, seconds):
    """Worker 1's first gradient is too late, by 2 or 4 updates; it has no record, since the last step alone has one."""
    events = {"name": "scripted", "base": "constant", "events": [[1, 0, seconds]]}
    config = {**ASYNCHRONOUS, "arrivals": events, "server": {**ASYNCHRONOUS["server"], "rule": rule}}
    before = [(0, second, second + 1) for second in range(int(seconds))]
    last = len(before) + 2
    found = timelines.of_run([record(last, 1.0, 1.0, 0.0)], config, first_step=1, last_step=last)
    after = (0, len(before), len(before) + 1)
    assert found == [*of_events(*before), Span("dropped", 1, 0, seconds), *of_events(after)]


def test_what_the_rule_drops_of_an_update_by_hand():
    """Worker 1's first gradient misses an update, and is left out of the second one."""
    server = {**ASYNCHRONOUS["server"], "rule": {"name": "threshold", "max_staleness": 0}, "gradients_per_update": 2}
    records = [record(step, 1.0, contributors, 0.0) for step, contributors in ((1, 2.0), (2, 1.0))]
    found = timelines.of_run(records, {**ASYNCHRONOUS, "server": server}, first_step=2, last_step=2)
    assert found == [Span("dropped", 1, 0, 2.5), *of_events((0, 2, 3))]


def test_spans_of_bounded_staleness_and_of_groups_by_hand():
    server = {**ASYNCHRONOUS["server"], "staleness_bound": 0}
    records = [record(step, 1.0, 1.0, 0.0) for step in range(1, 5)]
    found = timelines.of_run(records, {**ASYNCHRONOUS, "server": server}, first_step=1, last_step=4)
    rounds = of_events((0, 0, 1), (1, 0, 2.5), (0, 2.5, 3.5), (1, 2.5, 3.5))
    assert found == [*rounds[:4], Span("waiting", 0, 1, 2.5), *rounds[4:]]
    pair = {**ASYNCHRONOUS["server"], "gradients_per_update": 2}
    found = timelines.of_run(records[:1], {**ASYNCHRONOUS, "server": pair}, first_step=1, last_step=1)
    applied = [Span("applied", 0, 2, 2)] * 2  # both are in the update that the second one makes
    assert found == [Span("computing", 0, 0, 1), applied[0], Span("computing", 0, 1, 2), applied[1]]


@pytest.mark.parametrize("contributors", [1, 5, 8])
def test_every_worker_is_busy_from_the_start_of_a_step_to_its_end_and_the_last_are_dropped(contributors):
    seconds = np.random.default_rng(contributors).lognormal(0, 0.5, 8)
    took = np.sort(seconds)[contributors - 1]
    last = np.argsort(seconds)[contributors:]
    spans = synchronous(seconds, contributors=contributors, step_seconds=took, start=3.0)
    for worker in range(8):
        mine = [span for span in spans if span.worker == worker and span.kind != "applied"]
        edges = [3.0, *(span.stop for span in mine)]
        assert [span.start for span in mine] == edges[:-1] and edges[-1] == 3.0 + took
        assert all(span.stop > span.start for span in mine)
    assert sum(span.kind == "applied" for span in spans) == contributors
    assert {span.worker for span in spans if span.kind == "dropped"} == set(last)


def test_what_is_drawn():
    figure = gantt.draw({"backup": BY_HAND, "other": BY_HAND[:2]})
    axes = figure.axes[0]
    bars = set()
    for bar in axes.patches:
        start, middle = bar.get_x(), bar.get_y() + bar.get_height() / 2
        bars.add((start, start + bar.get_width(), round(middle)))
    assert bars == {(span.start, span.stop, span.worker) for span in BY_HAND if span.kind != "applied"}
    marks = {tuple(point) for point in axes.lines[0].get_xydata().tolist()}
    assert marks == {(span.stop, span.worker) for span in BY_HAND if span.kind == "applied"}
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == ["computing", "computing, dropped", "waiting", "applied"]
    assert len({p.get_facecolor() for p in figure.legends[0].get_patches()}) == 3
    assert axes.get_xlim() == figure.axes[1].get_xlim()  # one scale of time


def test_command(tmp_path, capsys):
    runs = [saved.save(tmp_path / str(seed), {**CONFIG, "seed": seed}, RECORDS) for seed in (0, 1)]
    out = tmp_path / "gantt.svg"
    assert plot.main([*map(str, runs), "--gantt=1:2", "--columns=1", f"--out={out}"]) == 0
    assert 'width="234pt"' in out.read_text() and "steps 1:2" in capsys.readouterr().out


REFUSED = [
    ("2:1", {}, "gantt='2:1': must be FIRST:LAST"),
    ("0:2", {}, "gantt='0:2'"),
    ("7:9", {}, "steps=7:9: no train record"),
    ("1:2", {"config": {**CONFIG, "arrivals": {"name": "none"}}}, "no config with an arrival model"),
    ("1:2", {"config": {"seed": 0}}, "no config with an arrival model"),
    ("1:2", {"records": [{**RECORDS[0], "simulated_seconds": 1e308}]}, "has times beyond what can be drawn"),
    ("1:2", {"seconds": np.full((2, 3), np.inf)}, "has times beyond what can be drawn"),  # counted, never arrived
]


@pytest.mark.parametrize(("steps", "changes", "message"), REFUSED)
def test_refused_in_one_line(steps, changes, message, tmp_path, capsys):
    run = saved.save(tmp_path / "a", changes.get("config", CONFIG), changes.get("records", RECORDS))
    if "seconds" in changes:
        np.savez(run / "worker_seconds-1.npz", seconds=changes["seconds"], began=np.zeros((2, 3)))
    assert plot.main([str(run), f"--gantt={steps}", f"--out={tmp_path}/x.png"]) == 2
    assert message in line_of(capsys) and not (tmp_path / "x.png").exists()
