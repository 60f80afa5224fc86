"""Laws of all claims: they declare what they test, their runs can run, and picks depend on validation alone."""

import math
import random
import re
import sys

import pytest

import runs as run_folders
from configs import flags
from data.assumed import make_or_assume
from experiments import claims
from experiments.execution import queue, results
from experiments.execution.finish import command_of
from experiments.study import report
from experiments.study.run import SCALES
from tests.claim_rows import FAILS, HOLDS, UNTESTED, anything, complete, rows_of
from tests.in_process import train_py
from training.setup import make_setup

CLAIMS = claims.in_order()
SCALED = [(name, scale) for name, claim in CLAIMS.items() for scale in claim.hours]
WORDS = (HOLDS, FAILS, UNTESTED, "by construction")
TUNED = {name: claim.tuned for name, claim in CLAIMS.items() if claim.tuned}
UNTUNED = {"lenet_workers": {1.0}, "mnist_guide": {1.0, 2.5, 4.0, 16.0}}  # values that are reported as well
TUNED_SCALED = [(name, scale) for name, scale in SCALED if name in TUNED]


@pytest.fixture(autouse=True)
def digits(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))


def kinds(name, scale):
    """One run of each kind of those that a claim begins with: a config file, and which keys it overrides."""
    runs = CLAIMS[name].runs(scale, [])
    return list({(run.spec, *run.overrides, *run.labels): run for run in runs}.values())


def peak(tuned, scale, point):
    """A value of the grid that is inside of it, if it has as many as three."""
    values = sorted(tuned.grid(scale, tuned.tuned_at(scale, point)))
    return values[len(values) // 2]


def peaked(tuned, scale):
    """Measurements in which the peak of a grid ends best on validation; reported runs all end alike."""

    def measured(labels):
        for point in tuned.points(scale):
            if labels.items() >= {**tuned.tuned_at(scale, point), **tuned.stages[0]}.items():
                away = abs(math.log(labels[tuned.key] / peak(tuned, scale, point)))
                return anything(end=0.9 + 0.09 / (1 + away))
        return anything()

    return measured


def test_each_says_what_it_tests_and_how_it_is_decided():
    numbers = [claim.prose.number for claim in CLAIMS.values()]
    assert numbers == sorted(set(numbers))
    for claim in CLAIMS.values():
        assert {"smoke", "laptop"} <= set(claim.hours) <= set(SCALES)
        for text in (claim.prose.claim, claim.prose.rule, *claim.prose.notes):
            assert text.endswith(".") and "  " not in text and "\n" not in text
        assert claim.prose.title and claim.prose.source


@pytest.mark.parametrize("name", [name for name in CLAIMS if results.published(name)])
def test_the_papers_values_are_marked_and_of_runs_that_there_are(name):
    claim, rows = CLAIMS[name], results.published(name)
    summary = claim.summary(df := claim.frame(rows))
    facts = claim.facts(df)
    said = [*claim.paper.values(), *(said[1] for said in facts.values() if not isinstance(said, str))]
    assert all(re.search(r"\[[^\]]*(READ|DERIVED|MEM)[^\]]*\]$", text) for text in said)
    assert len(summary) == df.groupby(list(claim.labels)).ngroups


@pytest.mark.parametrize(("name", "scale"), SCALED)
def test_names_of_runs_are_their_own_and_configs_are_valid(name, scale):
    names = [run.name for run in CLAIMS[name].runs(scale, [])]
    assert len(set(names)) == len(names) > 0
    assert all(run.config for run in kinds(name, scale))


@pytest.mark.parametrize("name", CLAIMS)
def test_every_label_of_a_run_is_in_its_config(name):
    """A label that a recipe forgets would make two runs of one config."""
    runs = [run for run in CLAIMS[name].runs("laptop", []) if run.spec]
    configs = [run_folders.fingerprint(run.config) for run in runs if run.labels["seed"] == 0]
    assert len(set(configs)) == len(configs)


@pytest.mark.parametrize("name", sorted(set(CLAIMS) - set(TUNED)))
def test_runs_without_tuning_are_repeated_over_seeds(name):
    for scale, seeds in (("smoke", 1), ("laptop", 3)):
        runs = CLAIMS[name].runs(scale, [])
        found = {run.labels.get("seed") for run in runs}
        assert len(found) >= seeds or found == {None}  # arithmetic draws nothing


@pytest.mark.parametrize(("name", "scale"), TUNED_SCALED)
def test_the_best_of_each_grid_on_validation_is_reported_over_seeds_on_the_test_split(name, scale):
    claim, tuned = CLAIMS[name], TUNED[name]
    rows = complete(claim, peaked(tuned, scale), scale=scale)
    runs = [run for run in claim.runs(scale, rows) if run.spec]
    assert len(runs) == len(rows) == len({run.name for run in runs})
    for run in runs:
        is_tuning = run.labels.items() >= tuned.stages[0].items()
        assert is_tuning or run.labels.items() >= tuned.stages[1].items()
        assert run.overrides["data.evaluate_on"] == ("validation" if is_tuning else "test")
        assert run.overrides["seed"] == run.labels["seed"] and (run.labels["seed"] < 3 or not is_tuning)
    first = tuned.first_seeds.get(scale, 0)
    for point in tuned.points(scale):
        pick = peak(tuned, scale, point)
        reported = tuned.tests(rows, **point, **{tuned.key: pick})
        assert {row["seed"] for row in reported} == set(range(first, first + tuned.seeds[scale]))
        others = [row for row in tuned.tests(rows, **point) if row not in reported]
        assert {row[tuned.key] for row in others} <= UNTUNED.get(name, set())


@pytest.mark.parametrize(("name", "scale"), TUNED_SCALED)
def test_picks_wait_for_their_grid_and_ignore_the_test_split(name, scale):
    claim, tuned = CLAIMS[name], TUNED[name]
    rows = complete(claim, peaked(tuned, scale), scale=scale)
    other_tests = [
        {**row, **anything(end=random.Random(row["run"]).random())} if row.items() >= tuned.stages[1].items() else row
        for row in rows
    ]
    wanted = [run.name for run in claim.runs(scale, rows) if run.spec]
    assert [run.name for run in claim.runs(scale, other_tests) if run.spec] == wanted
    for point in tuned.points(scale):
        at = tuned.tuned_at(scale, point)
        missing = tuned.tried(rows, **at)[0]
        assert tuned.is_tuned(scale, rows, point)
        assert not tuned.is_tuned(scale, [row for row in rows if row is not missing], point)
        assert len(claim.runs(scale, [row for row in rows if row is not missing])) < len(wanted)


@pytest.mark.parametrize(("name", "scale"), TUNED_SCALED)
def test_a_complete_set_of_rows_is_judged_and_reported(name, scale):
    claim = CLAIMS[name]
    rows = complete(claim, anything, scale=scale)
    first = rows_of(claim.runs(scale, []), anything, scale=scale)
    for some in (rows, first):
        assert claim.verdict(some).word in WORDS
        assert claim.prose.claim in report.section(claim, some) and report.draw(claim, some)
    assert claim.verdict(first).word == UNTESTED


@pytest.mark.parametrize(("name", "scale"), [row for row in SCALED if "smoke" not in row])
def test_programs_of_runs_can_be_built(name, scale):
    for run in kinds(name, scale):
        if run.spec:
            assert make_setup(flags.load(run.spec, run.overriding), open_data=make_or_assume)


@pytest.mark.parametrize("name", CLAIMS)
def test_the_first_run_at_smoke_scale_ends_in_a_row(name, tmp_path, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS")  # of processes that measure: `make test` leaves their convolutions unoptimised
    if name == "real_clock":
        pytest.importorskip("ray", reason="live runs need Ray: pip install -r requirements-live.txt")
    claim = CLAIMS[name]
    run = claim.runs("smoke", [])[0]

    def command(run, folder):
        """A run of train.py is over as it starts: it is made here, where its modules are imported already."""
        if not run.spec:
            return command_of(name)(run, folder)
        assert train_py(*run.arguments, f"--workdir={folder}") == 0
        return [sys.executable, "-S", "-c", "pass"]

    assert queue.execute([run], root=tmp_path, command=command) == []
    (row,) = results.finished([run], root=tmp_path, reduce=claim.reduce)
    assert set(run.labels) < set(row)
    assert claim.verdict([row]).word in WORDS and claim.prose.claim in report.section(claim, [row])
