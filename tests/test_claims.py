"""What all claims have in common: they say what they test and by which rule, and their runs can be run."""

import pytest

import data
from configs import flags
from experiments import claims, commands, queue, report, results
from experiments.experiment import SCALES
from training.setup import build

EXPERIMENTS = claims.in_order()
SCALED = [(name, scale) for name, experiment in EXPERIMENTS.items() for scale in experiment.hours]


def kinds(name, scale):
    """One run of each kind of those that an experiment begins with: a config file, and which keys it overrides."""
    runs = EXPERIMENTS[name].runs(scale, [])
    return list({(run.spec, *run.overrides, *run.labels): run for run in runs}.values())


def test_each_says_what_it_tests_and_how_it_is_decided():
    numbers = [experiment.number for experiment in EXPERIMENTS.values()]
    assert numbers == sorted(set(numbers))
    for experiment in EXPERIMENTS.values():
        assert {"smoke", "laptop"} <= set(experiment.hours) <= set(SCALES)
        for text in (experiment.claim, experiment.rule, *experiment.notes):
            assert text.endswith(".") and "  " not in text and "\n" not in text
        assert experiment.rule.count("upported") and experiment.title and experiment.source


@pytest.mark.parametrize(("name", "scale"), SCALED)
def test_names_of_runs_are_their_own_and_configs_are_valid(name, scale):
    names = [run.name for run in EXPERIMENTS[name].runs(scale, [])]
    assert len(set(names)) == len(names) > 0
    for run in kinds(name, scale):
        assert run.config
        if run.spec and run.labels.get("split") in ("validation", "test"):
            assert run.config["data"]["evaluate_on"] == run.labels["split"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scale"), SCALED)
def test_programs_of_runs_can_be_built(name, scale):
    for run in kinds(name, scale):
        if run.spec:
            assert build(flags.load(run.spec, run.overriding), open_data=data.make_or_assume)


QUICK = {"staleness", "reducers_compared"}  # one that measures, and one that trains


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in EXPERIMENTS]
)
def test_the_first_run_at_smoke_scale_ends_in_a_row(name, tmp_path):
    experiment = EXPERIMENTS[name]
    run = experiment.runs("smoke", [])[0]
    assert queue.execute([run], root=tmp_path, command=commands.command_of(name)) == []
    (row,) = results.finished([run], root=tmp_path, reduce=experiment.reduce)
    assert set(run.labels) < set(row)
    if experiment.enough([row]):
        assert experiment.judge([row]).word in ("supported", "not supported", "not tested at this scale")
    else:
        assert "No verdict" in report.section(experiment, [row])
