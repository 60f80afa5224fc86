"""Statistics of staleness: per worker, and layer by layer."""

import numpy as np
import pytest

import asynchronous
from experiments import staleness as command
from tests.async_toy import from_table
from tests.test_async_events import durations_of, run


@pytest.fixture(scope="module")
def lognormal():
    return run(durations_of("lognormal", num_workers=40), num_workers=40, num_events=20_000)[0]


def test_histogram_counts_by_worker(lognormal):
    counts = asynchronous.histogram(lognormal.worker, lognormal.staleness, num_workers=40)
    assert counts.sum() == 20_000
    for worker in (0, 17):
        mine = lognormal.staleness[lognormal.worker == worker]
        np.testing.assert_array_equal(counts[worker], np.bincount(mine, minlength=counts.shape[1]))
    assert not np.array_equal(counts[0], counts[17])


def test_summary_is_that_of_the_values(lognormal):
    counts = asynchronous.histogram(lognormal.worker, lognormal.staleness, num_workers=40)
    for found, values in (
        (asynchronous.summary(counts), lognormal.staleness),
        (asynchronous.summary(counts[3]), lognormal.staleness[lognormal.worker == 3]),
    ):
        expected = (values.min(), values.mean(), np.median(values), values.max(), values.std(), len(values))
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert asynchronous.summary(np.array([0, 1, 0, 0, 1])).median == 2.5
    with pytest.raises(ValueError, match="no gradients to describe"):
        asynchronous.summary(np.zeros(3, int))


# ---- layer by layer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["constant", "exponential", "lognormal"])
def test_a_layer_of_the_whole_task_is_as_stale_as_the_whole_gradient(law):
    events, _ = run(durations_of(law, num_workers=12), num_workers=12, num_events=3000)
    end = min(events.seconds[events.worker == worker].max() for worker in range(12))
    expected = events.staleness[(events.task > 0) & (events.seconds <= end)]
    times = asynchronous.LayerTimes(np.array([0.0, 0.0]), np.array([1.0, 0.9]))
    whole, shorter = asynchronous.layer_staleness(events, times, num_workers=12)
    np.testing.assert_array_equal(whole, expected)
    assert shorter.mean() < expected.mean() - 0.5


def test_layers_of_equal_workers_by_hand():
    """Two workers, half a task apart: worker 1's first task is half as long as all others."""
    seconds = np.ones((40, 2))
    seconds[0, 1] = 0.5
    events, _ = run(from_table(seconds), num_workers=2, num_events=70)
    for costs, of_top in (([1, 3], 1), ([3, 1], 0)):  # windows of the top layer: [1/8, 7/8] and [3/8, 5/8] of a task
        times = asynchronous.layer_times(costs, forward_fraction=0.5)
        bottom, top = asynchronous.layer_staleness(events, times, num_workers=2)
        assert set(bottom.tolist()) == {1}  # the other one's end lies in the middle of it
        assert set(top.tolist()) == {of_top}


@pytest.mark.parametrize(
    ("costs", "forward_fraction"), [([1, 0], 0.5), ([1, -1, 3], 0.5), ([1, 1], 0.0), ([1, 1], 1.0)]
)
def test_refused_layers(costs, forward_fraction):
    with pytest.raises(ValueError, match="forward_fraction"):
        asynchronous.layer_times(costs, forward_fraction=forward_fraction)


def test_too_few_events_are_refused():
    times = asynchronous.layer_times([1])
    events, _ = run(durations_of("constant", num_workers=5), num_workers=5, num_events=5)
    with pytest.raises(ValueError, match="too few"):
        asynchronous.layer_staleness(events, times, num_workers=5)


def test_command(capsys):
    assert command.main(["--model=constant", "--workers=4", "--gradients=40", "--layers=2", "--seconds=2.5"]) == 0
    said = capsys.readouterr().out.splitlines()
    # The first gradients of all but the last worker are 0, 1 and 2 updates stale, the other 37 all 3.
    assert said[1] == "staleness: min 0, mean 2.85, median 3.0, max 3, std 0.57"
    assert said[2] == "simulated seconds: 25.0"
    assert said[-1].startswith("| 0 | 3 | 3.00 | 3.0 | 3 | 0.00 |") and len(said) == 8


def test_command_with_a_bound(capsys):
    bounds = {}
    for bound in ("0", "50"):
        assert command.main(["--model=lognormal", "--workers=4", "--gradients=400", f"--staleness_bound={bound}"]) == 0
        bounds[bound] = capsys.readouterr().out.splitlines()[1]
    assert bounds["0"] == "staleness: min 0, mean 1.50, median 1.5, max 3, std 1.12" != bounds["50"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model=constnat"], "did you mean 'constant'?"),
        (["--model=constant", "--layers=65536"], "gradients=10000, layers=65536: their product must be at most"),
        (["--model=constant", "--workers=0"], "workers=0: must be in [1, 65536]"),
        (["--model=constant", "--sigma=1"], "sigma: unknown key"),
        (["--model=constant", "--gradients=5"], "of each of the 40 workers"),
        ([], "--model"),
    ],
)
def test_command_refuses_in_one_line(arguments, message, capsys):
    assert command.main(arguments) == 2
    captured = capsys.readouterr()
    assert not captured.out and message in captured.err and len(captured.err.splitlines()) == 1
