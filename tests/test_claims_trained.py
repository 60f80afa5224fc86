"""Claims that train: their configs, and the verdict for each outcome of each part of their rules."""

import math

import pytest

from experiments import report
from experiments import rows as ask
from experiments.claims import (
    bert_steps,
    large_batch,
    lenet_workers,
    local_steps,
    orthogonality,
)
from tests.claim_rows import (
    FAILS,
    HOLDS,
    ORIGIN,
    UNTESTED,
    complete,
    some_runs,
    whole_report,
    without,
)

INF, NAN = math.inf, math.nan


@pytest.fixture(autouse=True)
def digits(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))


# ---- configs -----------------------------------------------------------------------------------------------------


def bert_config(config, labels, scale):
    setting = bert_steps.SETTINGS[scale]
    assert config["batch_size_per_worker"] == labels["times"] * setting.batch
    assert config["train_steps"] == round(labels["share"] * setting.steps)
    assert config["reducer_on"] == ("updates" if labels["reducer"] == "adasum" else "gradients")
    assert config["optimizer"]["name"] == {"lamb": "lamb", "adam": "adamw"}[labels["optimizer"]]


def large_batch_config(config, labels, scale):
    assert config["num_workers"] * config["batch_size_per_worker"] == labels["batch"]
    assert config["reducer"]["name"] == labels["reducer"]
    assert config["reducer_on"] == ("updates" if labels["reducer"] == "adasum" else "gradients")
    assert config["accumulation"]["count"] == large_batch.SETTINGS[scale].parts[labels["batch"]]
    if labels["reducer"] == "sum":
        assert config["accumulation"]["name"] == "micro_batches"
        assert config["optimizer"]["learning_rate"] == pytest.approx(labels["rate"] / config["num_workers"])


def lenet_config(config, labels, scale):
    assert config["num_workers"] == labels["num_workers"] and config["reducer_on"] == "updates"
    assert config["optimizer"]["learning_rate"] == pytest.approx(labels["factor"] * lenet_workers.RATE)
    assert config["reducer"]["name"] == labels["reducer"]


def local_steps_config(config, labels, scale):
    assert config["batch_size_per_worker"] == labels["part"] * labels["count"]
    assert config["accumulation"] == {"name": "local_steps", "count": labels["count"]}
    assert config["reducer"]["name"] == "adasum" and config["reducer_on"] == "updates"


def orthogonality_config(config, labels, scale):
    assert config["reducer"] | {"name": "adasum", "telemetry": "on"} == config["reducer"]
    assert config["reducer_on"] == "updates" and config["num_workers"] == orthogonality.NUM_WORKERS
    third = config["train_epochs"] / 3
    assert config["schedule"]["name"] == "steps" and config["schedule"]["at_epochs"] == (third, 2 * third)


CONFIGS = {
    bert_steps: bert_config,
    large_batch: large_batch_config,
    lenet_workers: lenet_config,
    local_steps: local_steps_config,
    orthogonality: orthogonality_config,
}


@pytest.mark.parametrize(
    ("claim", "scale"),
    [
        pytest.param(claim, scale, id=f"{claim.__name__.rpartition('.')[2]}-{scale}")
        for claim in CONFIGS
        for scale in claim.EXPERIMENT.hours
    ],
)
def test_configs_are_what_the_labels_say(claim, scale):
    for run in some_runs(claim.EXPERIMENT, scale):
        CONFIGS[claim](run.config, run.labels, scale)
        assert run.config["seed"] == run.labels["seed"]


# ---- BERT with Adam and LAMB -------------------------------------------------------------------------------------

CASES = {
    "baseline": bert_steps.BASELINE,
    "fewer": bert_steps.FEWER[0],
    "adam": bert_steps.ADAM[0],
    "adam_adasum": bert_steps.ADAM[1],
}


def bert_rows(**losses):
    """Runs whose last loss is 5, seeds 0.02 apart, but for the cases that are given."""

    def measured(labels):
        case = tuple(labels[key] for key in ("optimizer", "reducer", "times", "share"))
        loss = next((loss for name, loss in losses.items() if CASES[name] == case), 5.0) + 0.02 * labels["seed"]
        return {"step": [50, 100], bert_steps.METRIC: [loss + 1, loss]}

    return complete(bert_steps.EXPERIMENT, measured)


@pytest.mark.parametrize(
    ("losses", "word"),
    [
        ({"fewer": 5.01, "adam_adasum": 4.0}, HOLDS),
        ({"fewer": 4.0, "adam": NAN}, HOLDS),  # Adam alone diverges
        ({"fewer": 5.2, "adam_adasum": 4.0}, FAILS),  # fewer steps are worse
        ({"fewer": 5.0, "adam_adasum": 4.97}, FAILS),  # within the spread
        ({"fewer": 5.0, "adam_adasum": NAN}, FAILS),
        ({"fewer": NAN, "adam_adasum": 4.0}, FAILS),
        ({"baseline": NAN, "fewer": NAN, "adam_adasum": 4.0}, UNTESTED),
    ],
)
def test_bert(losses, word):
    claim, rows = bert_steps.EXPERIMENT, bert_rows(**losses)
    assert claim.judge(rows).word == word
    assert len(claim.findings(rows)) == len(claim.table(rows).cells) == len(bert_steps.CASES)
    assert claim.judge(without(rows, 3, split="test", **bert_steps.BASELINE._asdict())).word == UNTESTED


def test_shorter_runs_of_bert_have_the_rate_of_the_longest():
    rates = bert_steps.SETTINGS["laptop"].rates["lamb"]

    def measured(labels):
        is_best = (labels["reducer"], labels["times"], labels["rate"]) == ("adasum", 1, rates[1])
        return {"step": [1], bert_steps.METRIC: [4.0 if is_best else 5.0]}

    finals = bert_steps.TUNED.tests(complete(bert_steps.EXPERIMENT, measured), optimizer="lamb", reducer="adasum")
    picked = {(row["times"], row["share"]): row["rate"] for row in finals}
    assert picked == {(1, 1.0): rates[1], (1, 0.8): rates[1], (1, 0.7): rates[1], (2, 0.65): rates[0]}


# ---- large batches -----------------------------------------------------------------------------------------------


def large_batch_rows(first, added, adasum):
    """The epochs of all runs with the smaller batches, and of each seed with the largest."""

    def measured(labels):
        last = added if labels["reducer"] == "sum" else adasum
        epochs = last[labels["seed"]] if labels["batch"] == 1024 else first
        if epochs == INF:
            return {"epoch": [20.0, 40.0], "accuracy": [0.2, 0.3]}
        return {"epoch": [epochs, 40.0], "accuracy": [0.96, 0.97]}

    return complete(large_batch.EXPERIMENT, measured)


@pytest.mark.parametrize(
    ("first", "added", "adasum", "word"),
    [
        (2.0, (INF,) * 3, (39.0,) * 3, HOLDS),  # the sum does not get there at all
        (2.0, (4.0,) * 3, (3.0,) * 3, HOLDS),
        (2.0, (3.0,) * 3, (3.0,) * 3, FAILS),
        (2.0, (3.0, INF, 3.0), (3.0,) * 3, HOLDS),  # 40 epochs at least for one
        (2.0, (INF,) * 3, (3.0, 3.0, INF), FAILS),  # one run of Adasum fails
        (INF, (INF,) * 3, (3.0,) * 3, UNTESTED),
    ],
)
def test_large_batches(first, added, adasum, word):
    claim, rows = large_batch.EXPERIMENT, large_batch_rows(first, added, adasum)
    assert claim.judge(rows).word == word
    findings = claim.findings(rows)
    assert len(findings) == len(claim.table(rows).cells) == 6
    assert "MEM-lo" in findings[0].paper.mark and findings[0].paper_number is None
    crosses = [line.get_xdata().tolist() for line in report.draw(claim, rows).axes[0].lines if line.get_marker() == "x"]
    fails = [[1024] if INF in seeds else [] for seeds in (added, adasum)]
    assert crosses == fails or first == INF


# ---- LeNet-5 with ever more workers ------------------------------------------------------------------------------


def as_claimed(reducer, num_workers, factor, seed):
    best = {"mean": 1, "sum": 4 / num_workers, "adasum": 2}[reducer]
    loss = abs(factor / best - 1) / 1000 + (0.004 if reducer == "sum" else 0) + seed / 10_000
    return 0.11 if (reducer, factor, num_workers) == ("sum", 1.0, 32) else 0.992 - loss


def lenet_rows(changed=lambda reducer, num_workers, factor: None):
    """Rows of the claimed accuracies, but for runs to which ``changed`` gives another."""

    def measured(labels):
        reducer, n, factor, seed = (labels[key] for key in ("reducer", "num_workers", "factor", "seed"))
        value = changed(reducer, n, factor)
        return {"accuracy": [0.5, as_claimed(reducer, n, factor, seed) if value is None else value - seed / 10_000]}

    return complete(lenet_workers.EXPERIMENT, measured)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        (lambda reducer, n, factor: None, HOLDS),
        (lambda reducer, n, factor: 0.995 if (reducer, factor) == ("sum", 1) else None, FAILS),
        (lambda reducer, n, factor: 0.975 if (reducer, n, factor) == ("adasum", 32, 1) else None, FAILS),
        (lambda reducer, n, factor: 0.993 if (reducer, n, factor) == ("sum", 32, 1 / 8) else None, FAILS),
    ],
)
def test_lenet(changed, word):
    verdict = lenet_workers.EXPERIMENT.judge(lenet_rows(changed))
    assert verdict.word == word and verdict.because.count("(fails)") == (word == FAILS)


def test_untuned_runs_of_lenet_come_first_and_serve_picks_of_their_rate():
    claim, untuned, tuning = lenet_workers.EXPERIMENT, 3 + 4 * 2 * 3, 2 * 3
    first = claim.runs("laptop", [])
    assert [run.labels["split"] for run in first] == ["test"] * untuned + ["validation"] * tuning
    assert {run.labels["factor"] for run in first[:untuned]} == {1.0}
    assert len(lenet_rows()) == untuned + tuning + 2 * 3
    rows = lenet_rows(lambda reducer, n, factor: 1 - abs(factor - 1) / 10)
    finals = [row["factor"] for row in rows[untuned:] if row["split"] == "test"]
    assert finals == [1 / 4] * 3  # the sum's; Adasum is best at the untuned rate


@pytest.mark.parametrize("kept", [1, 5, 20, 27, 33, 38])
def test_lenet_is_reported_as_far_as_it_has_run(kept):
    assert UNTESTED in whole_report(lenet_workers.EXPERIMENT, lenet_rows()[:kept])


def test_the_whole_of_lenet_is_reported():
    claim, rows = lenet_workers.EXPERIMENT, lenet_rows()
    cells = claim.table(rows).cells
    assert len(cells) == 8 and cells[6][:2] == ["32", "sum"] and cells[6][4] == "1/8" and "1/16: " in cells[6][5]
    one = claim.findings([{**row, "data": "mnist"} for row in rows])[0]
    assert one.paper_number == 99.3 and one.difference and claim.findings(rows)[0].paper is None
    assert len(claim.findings(rows)) == 1 + 4 * 2 + 2


# ---- local steps on a slow network -------------------------------------------------------------------------------


def local_steps_rows(one, many):
    """Runs that reach the target after so many communications of 10 ms, with local steps of 1 ms."""

    def measured(labels):
        count, steps = labels["count"], (one if labels["count"] == 1 else many) + labels["seed"]
        last = steps if steps < INF else 1000
        examples = count * labels["part"] * labels["num_workers"]
        return {
            "step": [last - 1, last],
            "epoch": [(last - 1) * count / 100, last * count / 100],
            "accuracy": [0.5, 0.97 if steps < INF else 0.6],
            "bytes_per_worker": local_steps.SLOW * 0.010 / 8,
            "examples_per_second": examples / (count * labels["num_workers"] * 0.001 + 0.05),  # 50 ms a step besides
        }

    return complete(local_steps.EXPERIMENT, measured)


@pytest.mark.parametrize(
    ("one", "many", "word"),
    [
        (100, 20, HOLDS),  # 1.1 s against 0.5 s
        (100, 80, FAILS),  # 2.1 s
        (100, 41, FAILS),  # the difference, of 1.11 s and 1.09 s, is within the spread of the seeds
        (100, INF, FAILS),
        (INF, 20, UNTESTED),
    ],
)
def test_local_steps(one, many, word):
    claim, rows = local_steps.EXPERIMENT, local_steps_rows(one, many)
    assert claim.judge(rows).word == word
    assert len(claim.table(rows).cells) == 2 and bool(claim.findings(rows)) == (INF not in (one, many))


def test_modelled_seconds_of_local_steps():
    rows = local_steps_rows(100, 10)
    compute = local_steps.compute_seconds(rows)
    assert compute == pytest.approx(0.001)
    one, many = (local_steps.TUNED.tests(rows, count=count)[0] for count in local_steps.COUNTS)
    for row, seconds in ((one, 100 * (0.001 + 0.010)), (many, 10 * (16 * 0.001 + 0.010))):
        assert local_steps.modelled_seconds(row, compute=compute, link=local_steps.SLOW) == pytest.approx(seconds)


def test_at_break_even_both_take_equally_long():
    few, many = 68.0, 84.0
    ratio = local_steps.break_even(few, many, count=16)
    assert few * (1 + ratio) == pytest.approx(many * (1 + ratio / 16))
    assert local_steps.break_even(10.0, 160.0, count=16) == INF  # 16 times the epochs: never
    assert local_steps.break_even(10.0, 9.0, count=16) == 0.0  # fewer epochs: always


def test_speeds_that_give_a_local_step_no_time_decide_nothing():
    rows = [{**row, "examples_per_second": 1e3 * row["count"] ** 2} for row in local_steps_rows(100, 20)]
    assert local_steps.compute_seconds(rows) < 0 and local_steps.EXPERIMENT.judge(rows).word == UNTESTED


def test_half_of_local_steps_can_be_reported():
    claim, rows = local_steps.EXPERIMENT, ask.select(local_steps_rows(100, 20), count=1)
    assert len(claim.table(rows).cells) == 2 and claim.findings(rows) == [] and report.draw(claim, rows).axes


def test_rows_of_local_steps_have_the_median_speed():
    train = [{"kind": "train", "step": i, "examples_per_second": speed} for i, speed in enumerate((1.0, 100.0, 90.0))]
    measured = {"step": 3, "epoch": 1.0, "accuracy": 0.5, "bytes_per_worker": 7.0}
    row = local_steps.EXPERIMENT.reduce([*train, {"kind": "eval", "loss": 1.0, **measured}])
    lists = {"step": [3], "epoch": [1.0], "accuracy": [0.5]}
    assert row == {**lists, "bytes_per_worker": 7.0, "examples_per_second": 90.0}


# ---- orthogonality -----------------------------------------------------------------------------------------------


def orthogonality_row(*, early=0.5, late=0.9, spread=0.1, seed=0, steps=300, first=0):
    """A run with two layers, which are ``spread`` apart, and a learning rate that falls after steps 100 and 200."""

    def record(step):
        mean = (early if step <= 6 else late if step > 200 else 0.7) - (0.05 if 100 < step <= 120 else 0)
        layers = {"Conv_0/kernel": -spread / 2, "Dense_0/bias": spread / 2}
        return {
            "kind": "train",
            "step": step,
            "learning_rate": 0.01 * 0.1 ** ((step > 100) + (step > 200)),
            **{f"orthogonality/{layer}": mean + 0.001 * seed + apart for layer, apart in layers.items()},
            "cosine/Conv_0/kernel": 0.3,
        }

    records = [record(step) for step in range(2, steps + 1, 2) if step > first]
    evaluation = {"kind": "eval", "step": steps, "accuracy": 0.9, "learning_rate": 0.0001}
    return {**orthogonality.EXPERIMENT.reduce([*records, evaluation]), "seed": seed, "origin": ORIGIN}


def orthogonality_rows(**changed):
    return [orthogonality_row(seed=seed, **changed) for seed in range(3)]


@pytest.mark.parametrize(
    ("changed", "word", "fails"),
    [
        ({}, HOLDS, 0),
        ({"early": 0.9, "late": 0.5}, FAILS, 2),
        ({"early": 0.8, "late": 0.9}, FAILS, 1),  # rises, from what is orthogonal already
        ({"early": 0.4, "late": 0.6}, FAILS, 1),
        ({"spread": 0.0}, FAILS, 1),
    ],
)
def test_orthogonality(changed, word, fails):
    rows = orthogonality_rows(**changed)
    verdict = orthogonality.EXPERIMENT.judge(rows)
    assert verdict.word == word and verdict.because.count("(fails)") == fails
    assert orthogonality.EXPERIMENT.judge(rows[:2]).word == UNTESTED


def test_a_rise_within_the_noise_of_seeds_is_none():
    noisy = [orthogonality_row(late=late, seed=seed) for seed, late in enumerate((0.5, 0.7, 0.99))]
    assert "(fails)" in orthogonality.EXPERIMENT.judge(noisy).because.split(",")[0]


def test_records_of_training_become_a_row_of_layers():
    row = orthogonality_row()
    assert list(row["layers"]) == ["Conv_0/kernel", "Dense_0/bias"] and row["accuracy"] == [0.9]
    assert len(row["step"]) == len(row["learning_rate"]) == len(row["layers"]["Conv_0/kernel"]) == 150
    assert orthogonality.EXPERIMENT.reduce([])["layers"] == {}


@pytest.mark.parametrize("kept", [1, 3])
def test_orthogonality_is_reported(kept):
    rows = orthogonality_rows()[:kept]
    ours = {finding.quantity: finding.ours for finding in orthogonality.EXPERIMENT.findings(rows)}
    wobble = 0.001 * (kept - 1) / 2
    assert ours["mean over layers, first 2% of the steps"].mean == pytest.approx(0.5 + wobble)  # 2, 4 and 6 of 300
    assert ours["mean over layers, last third of the steps"].mean == pytest.approx(0.9 + wobble)
    for step, change in ((100, -0.05), (200, 0.2)):
        (dip,) = [sample for quantity, sample in ours.items() if f"at step {step}" in quantity]
        assert dip.mean == pytest.approx(change)
    assert "Dense_0/bias" in whole_report(orthogonality.EXPERIMENT, rows)


def test_early_is_at_least_the_first_record():
    early = orthogonality.EXPERIMENT.findings([orthogonality_row(first=20)])[0]
    assert early.ours.mean == pytest.approx(0.7)
