"""Workers with training examples of their own: disjoint shares of all data, on every layout and after a stop."""

import numpy as np
import pytest
from scipy import stats

from asynchronous import order
from data.feeds import Feeds
from data.shares import OwnExamples, by_label, dirichlet
from experiments import plot
from experiments.plots import labels as labels_plot
from runs.errors import ConfigError
from tests.async_toy import from_table
from tests.in_process import keys
from tests.refused import refused
from tests.stepper import (
    DATASET,
    SMALL,
    checkpoint_of,
    same_bits,
    setup_of,
    train_whole_and_in_parts,
)

LABELS = np.repeat(np.arange(10), 120)[np.random.default_rng(0).permutation(1200)]
SPLITS = {
    "dirichlet": (dirichlet(alpha=0.5), ("--config.split.name=dirichlet", "--config.split.alpha=0.5")),
    "by_label": (by_label(labels_per_worker=2), ("--config.split.name=by_label", "--config.split.labels_per_worker=2")),
}
every_split = pytest.mark.parametrize("name", SPLITS)


@every_split
@pytest.mark.parametrize("num_workers", [5, 8, 40])
def test_shares_are_disjoint_and_cover_the_data(name, num_workers):
    split, _ = SPLITS[name]
    shares = split(LABELS, num_workers, 3)
    assert len(shares) == num_workers and min(map(len, shares)) > 0
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(LABELS)))
    assert all(map(np.array_equal, shares, split(LABELS, num_workers, 3)))
    assert not all(map(np.array_equal, shares, split(LABELS, num_workers, 4)))


@pytest.mark.parametrize(("num_workers", "per_worker"), [(8, 2), (5, 2), (10, 1), (40, 3), (3, 10)])
def test_each_worker_has_so_many_classes_and_each_class_as_many_workers(num_workers, per_worker):
    shares = by_label(labels_per_worker=per_worker)(LABELS, num_workers, 0)
    classes = [set(LABELS[share].tolist()) for share in shares]
    assert all(len(c) == per_worker for c in classes)
    owners = [sum(c in some for some in classes) for c in range(10)]
    assert max(owners) - min(owners) <= 1
    for c in range(10):
        many = [n for share in shares if (n := int((LABELS[share] == c).sum()))]
        assert max(many) - min(many) <= 1


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_proportions_are_those_of_a_dirichlet_distribution(alpha):
    """A worker's share of a class is of Beta(alpha, (W - 1) alpha): a chi-square test of ten equally likely bins."""
    num_workers, many = 6, 5_000
    labels = np.arange(many * 10) % 10
    shares = [dirichlet(alpha=alpha)(labels, num_workers, seed)[0] for seed in range(100)]
    found = np.concatenate([np.bincount(labels[share], minlength=10) / many for share in shares])
    bins = stats.beta.ppf(np.linspace(0, 1, 11), alpha, (num_workers - 1) * alpha)
    observed = np.histogram(found, bins)[0]
    assert observed.sum() == 1000 and stats.chisquare(observed).pvalue > 1e-3
    wrong = stats.beta.ppf(np.linspace(0, 1, 11), 1.3 * alpha, (num_workers - 1) * 1.3 * alpha)
    assert stats.chisquare(np.histogram(np.clip(found, 0, 1), wrong)[0]).pvalue < 1e-3


@pytest.mark.parametrize("num_workers", [2, 5])
@pytest.mark.parametrize("alpha", [1e-3, 1e-4, 1e-12, 1e-300, 1e308])
def test_extreme_proportions_are_those_of_the_limits(alpha, num_workers):
    """A class is with one worker, drawn evenly, or with all alike: nothing underflows, and nothing overflows."""
    labels = np.arange(30_000) % 300
    shares = dirichlet(alpha=alpha)(labels, num_workers, 0)
    found = np.sort([np.bincount(labels[share], minlength=300) for share in shares], axis=0)
    if alpha > 1:
        assert (found == 100 // num_workers).all()
    else:
        assert (found[-1] >= 99).mean() > 0.98
        owners = [np.sum(np.bincount(labels[share], minlength=300) > 50) for share in shares]
        assert stats.chisquare(owners).pvalue > 1e-3


@pytest.mark.parametrize(
    ("split", "num_workers", "message"),
    [
        (by_label(labels_per_worker=11), 4, "labels_per_worker=11: exceeds the 10 classes of the data"),
        (by_label(labels_per_worker=2), 4, "labels_per_worker=2: 4 workers do not have the 10 classes"),
        (dirichlet(alpha=1e-4), 5, "alpha=0.0001: in 100 draws a worker of 5 had no example"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(split, num_workers, message):
    labels = LABELS if "alpha" not in message else LABELS[:3]
    with pytest.raises(ValueError, match=message):
        split(labels, num_workers, 0)


def test_each_worker_goes_through_its_share_in_passes():
    shares = [np.array([4, 0, 2]), np.array([1, 3]), np.array([5])]
    order_of = OwnExamples(shares, batch_size=2, seed=7)
    rows = order_of.indices(0, num_batches=18)
    for worker, share in enumerate(shares):
        taken = rows[worker::3].ravel()
        assert set(taken) == set(share)
        for start in range(0, len(taken) - len(share) + 1, len(share)):
            assert sorted(taken[start : start + len(share)]) == sorted(share)
    np.testing.assert_array_equal(order_of.indices(5, num_batches=4), rows[5:9])


def test_asynchronous_batches_are_of_their_workers():
    seconds = from_table(np.tile([[1.0, 2.5, 0.7]], (40, 1)))
    given = {"num_workers": 3, "num_events": 30}
    ((events, _),) = order(seconds, **given, own_batches=True)
    ((others, _),) = order(seconds, **given)
    assert (events.batch_index % 3 == events.worker).all()
    assert (events.batch_index // 3 == events.task).all()
    np.testing.assert_array_equal(events.worker, others.worker)
    assert (others.batch_index % 3 != others.worker).any()


# ---- runs ------------------------------------------------------------------------------------------------------------

SOFTMAX = ("--config.model.name=softmax", "--config.ema_decay=None")


def classes_of_batches(setup, worker):
    """The classes of a worker's examples in the first batches of a run."""
    order_of = setup.example_order(DATASET)
    taken = np.concatenate([order_of.indices(step * 8 + worker, num_batches=1)[0] for step in range(40)])
    return set(DATASET.train.columns["label"][taken].tolist())


def test_the_batches_of_a_worker_are_of_its_share():
    split, shuffled = (setup_of(*SOFTMAX, *of_split) for of_split in (SPLITS["by_label"][1], ()))
    assert all(len(classes_of_batches(split, worker)) == 2 for worker in range(8))
    assert len(classes_of_batches(shuffled, 0)) == 10


@pytest.mark.parametrize("placement", ["device", "stream"])
def test_byzantine_workers_have_wrong_labels(placement):
    order_of = setup_of(*SOFTMAX, *SPLITS["by_label"][1], "--config.flip_labels=(2,5)").example_order(DATASET)
    with Feeds(DATASET.train, order_of, layout=(8, 1), placement=placement) as feeds:
        feed = feeds.at(np.arange(8)[None])
    given = feeds.resident["label"][feed["index"]] if placement == "device" else feed["batch"]["label"]
    label = DATASET.train.columns["label"][order_of.indices(0, num_batches=8)]
    is_wrong = np.isin(np.arange(8), (2, 5))[:, None]
    np.testing.assert_array_equal(given.reshape(label.shape), np.where(is_wrong, 9 - label, label))


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_run_goes_on_with_the_same_shares(mode, tmp_path, capsys):
    served = ("--config.server.name=asynchronous", "--config.arrivals.name=lognormal") if mode != "synchronous" else ()
    short = (*SOFTMAX, *SMALL, *SPLITS["by_label"][1], *served, "--config.checkpoint_every_steps=3")
    given = ["--config=configs/digits.py", "--config.train_steps=8", *short, "--num_devices=2"]
    train_whole_and_in_parts(given, tmp_path, stop_after=4)
    setup = setup_of(*short, train_steps=8)
    assert same_bits(*(checkpoint_of(tmp_path / name, setup)[1] for name in ("whole", "parts")))
    workers, classes, many = labels_plot.read(tmp_path / "whole")
    assert (np.bincount(workers) == np.full(8, 2)).all()
    assert set(classes) == set(range(10))
    assert many.sum() == 1437
    capsys.readouterr()
    figure = tmp_path / "labels.png"
    assert plot.main([str(tmp_path / "whole"), "--labels", f"--out={figure}"]) == 0
    assert figure.stat().st_size > 1000 and "the workers' classes of 1 run" in capsys.readouterr().out
    (tmp_path / "whole/labels.csv").write_text("worker,label\n0,1\n")
    assert plot.main([str(tmp_path / "whole"), "--labels", f"--out={figure}"]) == 2
    assert "labels.csv was changed since the run was finished" in capsys.readouterr().err
    (tmp_path / "whole/DONE").unlink()
    assert plot.main([str(tmp_path / "whole"), "--labels", f"--out={figure}"]) == 2
    assert "labels.csv': is damaged" in capsys.readouterr().err


ODD_LABELS = {
    f"0,{'9' * 30},5": "could not convert",
    "0,nan,7": "could not convert string 'nan'",
    "0,1": "number of columns changed",
}


@pytest.mark.parametrize("row", ODD_LABELS)
def test_labels_that_no_run_writes_are_damage(row, tmp_path):
    (tmp_path / "labels.csv").write_text(f"worker,label,examples\n0,0,5\n{row}\n")
    with refused(ValueError, r"labels\.csv': is damaged") as caught:
        labels_plot.read(tmp_path)
    assert ODD_LABELS[row] in str(caught.value)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("split.name=by_label split.labels_per_worker=1", "config.split.labels_per_worker=1: 8 workers do not have"),
        ("split.name=dirichlet split.alpha=0", "config.split.alpha"),
        ("flip_labels=(1,)", r"config.flip_labels=\(1,\): needs workers with shares, by config.split.name"),
        ("split.name=dirichlet flip_labels=(8,)", r"config.flip_labels=\(8,\): 8 is none of the 8 workers"),
    ],
)
def test_runs_that_cannot_split_are_refused(split, message):
    with pytest.raises(ConfigError, match=message):
        setup_of(*SOFTMAX, *keys(split)).example_order(DATASET)


def test_a_run_without_shares_has_no_figure_of_them(tmp_path):
    with pytest.raises(ValueError, match=r"has no labels.csv; its workers all draw from all examples"):
        labels_plot.read(tmp_path)
    assert setup_of(*SOFTMAX).shares(DATASET) is None
