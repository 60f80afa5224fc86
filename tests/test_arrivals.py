"""Arrival models: laws over rows, closed forms, and the same values whoever asks and however."""

import functools

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from experiments import arrivals as command
from parallel import AXES, Layout, map_devices
from reducers import arrivals

KEY = jax.random.key(7)
STEPS = 6

# One row per model: name -> options; "trace" is given a file by the fixture.
MODELS = {
    "constant": {"seconds": 1.5},
    "lognormal": {"median_seconds": 1.5, "sigma": 0.4},
    "markov": {"slow_probability": 0.2, "recovery_probability": 0.3},
    "mixture": {"probability": 0.3},
    "none": {},
    "paper_cluster": {},
    "pareto": {"alpha": 1.5},
    "scripted": {"base": "lognormal", "events": ((3, 2, 60.0), (0, 2, 0.5), (7, 5, 9.0))},
    "shifted_exponential": {"shift_seconds": 0.0},
    "slow_workers": {"num_slow": 2},
    "trace": {},
}
every_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """make(name) -> the model of its row."""
    path = tmp_path_factory.mktemp("traces") / "trace.npz"
    np.savez(path, seconds=np.random.default_rng(0).uniform(0.5, 3, (4, 8)).astype(np.float32))

    @functools.cache
    def of_row(name):
        return arrivals.make(name, **({"path": str(path)} if name == "trace" else MODELS[name]))

    return of_row


def test_every_model_has_a_row():
    assert set(MODELS) == set(arrivals.ARRIVALS)


# ---- a pure function of (key, step, worker) ------------------------------------------------------------------------


def seen_by_all(models, *, num_devices: int, lift: str):
    """The times that each of 8 workers sees inside a step, name -> [W, STEPS, W]; all models in one program."""
    layout = Layout.of(8, num_devices=num_devices)

    def one(step):
        worker = lambda _: {name: model(KEY, step, 8) for name, model in models.items()}  # noqa: E731
        return jax.vmap(worker, axis_name=AXES[1])(jnp.zeros(layout.lanes))

    lifted = map_devices(one, layout=layout, mapping=lift)
    seen = [layout.get_per_worker(lifted(layout.put_shared(np.int32(step)))) for step in range(STEPS)]
    return {name: np.stack([at[name] for at in seen], axis=1) for name in models}


@pytest.fixture(scope="module")
def seen(make):
    """The same of every model, once per layout."""
    models = {name: make(name) for name in MODELS}
    return [
        seen_by_all(models, num_devices=num_devices, lift=lift) for num_devices, lift in [(8, "pmap"), (2, "shard_map")]
    ]


def check_one_function(model, seen):
    """The same bits eagerly, in bulk, from any first step, and seen by every worker of a layout."""
    bulk = arrivals.sample(model, KEY, num_workers=8, num_steps=STEPS)
    assert bulk.shape == (STEPS, 8)
    assert bulk.dtype == np.float32
    assert np.isfinite(bulk).all()
    assert (bulk >= 0).all()
    np.testing.assert_array_equal(bulk, np.stack([model(KEY, step, 8) for step in range(STEPS)]))
    np.testing.assert_array_equal(bulk[3:], arrivals.sample(model, KEY, num_workers=8, num_steps=3, first_step=3))
    for layout in seen:
        np.testing.assert_array_equal(layout, np.broadcast_to(bulk, (8, *bulk.shape)))
    return bulk


@every_model
def test_the_same_wherever_it_is_called(make, seen, name):
    bulk = check_one_function(make(name), [layout[name] for layout in seen])
    if name != "scripted":  # whose last worker must be there
        fewer = arrivals.sample(make(name), KEY, num_workers=5, num_steps=STEPS)
        np.testing.assert_array_equal(fewer, bulk[:, :5])


@pytest.mark.parametrize("wrong", ["by_lane", "negative", "counts_calls"])
def test_the_law_rejects(wrong):
    calls = []
    models = {
        "by_lane": lambda key, step, n: jnp.full(n, 1 + step + _lane()),
        "negative": lambda key, step, n: jnp.full(n, -1.0),
        "counts_calls": lambda key, step, n: jnp.full(n, float(calls.append(1) or len(calls))),
    }
    model = models[wrong]
    seen = seen_by_all({wrong: model}, num_devices=2, lift="pmap")
    with pytest.raises(AssertionError):
        check_one_function(model, [seen[wrong]])


def _lane():
    """A worker's lane, which an arrival model must not use; 0 outside of a step."""
    try:
        return lax.axis_index(AXES[1])
    except NameError:
        return 0


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"constant", "none", "trace"}))
def test_steps_keys_and_workers_differ(make, name):
    model = make(name)
    bulk = arrivals.sample(model, KEY, num_workers=8, num_steps=400)
    other = arrivals.sample(model, jax.random.key(8), num_workers=8, num_steps=400)
    assert len({row.tobytes() for row in bulk}) == 400 and not np.array_equal(bulk, other)
    correlation = np.corrcoef(np.log(bulk + 1e-3).T) - np.eye(8)
    assert np.abs(correlation).max() < 0.3  # 6 standard errors of independent workers


# ---- laws of the models --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_workers", "num_required"), [(53, 50), (8, 6), (100, 96)])
@pytest.mark.parametrize("shift", [0.0, 1.3])
def test_closed_forms(num_workers, num_required, shift):
    options = {"shift_seconds": shift, "scale_seconds": 0.7}
    expected = arrivals.expected_arrivals("shifted_exponential", num_workers=num_workers, **options)
    harmonic = lambda n: sum(1 / i for i in range(1, n + 1))  # noqa: E731
    by_hand = shift + 0.7 * (harmonic(num_workers) - harmonic(num_workers - num_required))
    assert expected[num_required - 1] == pytest.approx(by_hand)


def test_formulas_take_the_defaults_of_their_model():
    for name in ("constant", "shifted_exponential"):
        expected = arrivals.expected_arrivals(name, num_workers=8)
        seconds = np.sort(arrivals.sample(arrivals.make(name), KEY, num_workers=8, num_steps=20_000), axis=1)
        np.testing.assert_allclose(seconds.mean(0), expected, rtol=0.01)
    assert arrivals.expected_arrivals("pareto", num_workers=8) is None


def moments(name, **options):
    seconds = arrivals.sample(arrivals.make(name, **options), KEY, num_workers=50, num_steps=4000).astype(np.float64)
    return seconds.mean(), np.median(seconds), (seconds > 2).mean()


def test_laws_of_single_times():
    mean, median, _ = moments("lognormal", median_seconds=1.5, sigma=0.5)
    assert (mean, median) == (pytest.approx(1.5 * np.exp(0.125), rel=0.01), pytest.approx(1.5, rel=0.01))
    mean, median, tail = moments("pareto", least_seconds=1.0, alpha=3.0)
    assert mean == pytest.approx(1.5, rel=0.01) and median == pytest.approx(2 ** (1 / 3), rel=0.01)
    assert tail == pytest.approx(1 / 8, rel=0.03)
    mean, median, tail = moments(
        "mixture", base="constant", outlier={"name": "constant", "seconds": 5}, probability=0.1
    )
    assert (mean, median, tail) == (pytest.approx(1.5, rel=0.02), 1, pytest.approx(0.1, rel=0.03))


def test_no_delay_is_still_a_time(monkeypatch):
    monkeypatch.setattr(jax.random, "exponential", lambda key, shape: jnp.zeros(shape))  # once in 2^23 draws
    assert (arrivals.make("shifted_exponential", shift_seconds=0.0)(jax.random.key(0), 0, 3) > 0).all()


def test_slow_workers_stay_slow():
    seconds = arrivals.sample(
        arrivals.make("slow_workers", base="constant", num_slow=2, factor=3.0), KEY, num_workers=5, num_steps=3
    )
    np.testing.assert_array_equal(seconds, [[3, 3, 1, 1, 1]] * 3)


@pytest.mark.parametrize(("p", "q"), [(0.02, 0.1), (0.3, 0.3), (0.4, 0.6)])
def test_markov_is_the_chain(p, q):
    model = arrivals.make("markov", base="constant", slow_probability=p, recovery_probability=q, factor=2.0)
    slow = arrivals.sample(model, KEY, num_workers=60, num_steps=3000) == 2
    before, after = slow[:-1], slow[1:]
    assert slow[0].any() or p < 0.1  # step 0 is stationary already
    assert slow.mean() == pytest.approx(p / (p + q), rel=0.1)
    assert after[~before].mean() == pytest.approx(p, rel=0.05)
    assert after[before].mean() == pytest.approx(1 - q, rel=0.05)
    two_before = slow[:-2][after[:-1]]  # of those that are slow now, the past does not matter
    then = slow[2:][after[:-1]]
    assert then[two_before].mean() == pytest.approx(then[~two_before].mean(), abs=0.03)


def test_a_model_without_a_trace_repeats_nothing_whatever_its_options_are():
    assert arrivals.num_recorded("scripted", base="constant", events=[(1, 2, 60.0)]) is None


def test_scripted_events():
    model = arrivals.make("scripted", events=((1, 2, 60), (0, 2, 0.5)))
    seconds = arrivals.sample(model, KEY, num_workers=3, num_steps=4)
    np.testing.assert_array_equal(seconds, [[1, 1, 1], [1, 1, 1], [0.5, 60, 1], [1, 1, 1]])
    np.testing.assert_array_equal(
        arrivals.make("scripted", base="lognormal")(KEY, 3, 4), arrivals.make("lognormal")(KEY, 3, 4)
    )


# ---- what is refused -----------------------------------------------------------------------------------------------

REFUSED = [
    ("lognormall", {}, "name='lognormall': unknown name; did you mean 'lognormal'"),
    ("constant", {"second": 1.0}, "second: unknown key; did you mean 'seconds'"),
    ("constant", {"seconds": 0}, r"seconds=0: must be float in \(0, inf\)"),
    ("constant", {"seconds": "1"}, "seconds='1': must be float"),
    ("lognormal", {"sigma": float("nan")}, "sigma=nan"),
    ("slow_workers", {"num_slow": 1.5}, r"num_slow=1.5: must be int in \[0, inf\)"),
    ("mixture", {"base": {"name": "pareto", "alpha": 0.5}}, r"base.alpha=0.5: must be float in \(1, inf\)"),
    ("mixture", {"base": {"name": "markov", "base": {"name": "x"}}}, "base.base.name='x'"),
    ("mixture", {"outlier": {"alpha": 2.0}}, "outlier.name: missing"),
    ("markov", {"slow_probability": 0.6, "recovery_probability": 0.5}, "slow_probability=0.6, .* must not exceed 1"),
    ("scripted", {"events": ((0, 1),)}, r"events\[0\]=\(0, 1\)"),
    ("scripted", {"events": ((0, 1, -3.0),)}, r"events\[0\]"),
    ("scripted", {"events": ((0, 1, 3.0), (0, 1, 4.0))}, ".*two of one worker and step"),
    ("trace", {}, "path: missing"),
]


@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_refused(name, options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        arrivals.make(name, **options)


SLOW = {"name": "slow_workers", "num_slow": 9}


def test_refused_when_traced():
    for name, options, message in [
        ("slow_workers", {"num_slow": 9}, "num_slow=9: exceeds num_workers=8"),
        ("scripted", {"events": ((8, 0, 1.0),)}, "worker 8 is not one of num_workers=8"),
        ("mixture", {"base": SLOW}, "^base.num_slow=9: exceeds"),
        ("mixture", {"outlier": {"name": "markov", "base": SLOW}}, "^outlier.base.num_slow=9: exceeds"),
    ]:
        with pytest.raises(ValueError, match=message):
            arrivals.make(name, **options)(KEY, 0, 8)


# ---- the command ---------------------------------------------------------------------------------------------------


def test_command(capsys, tmp_path):
    figure = tmp_path / "arrivals.png"
    arguments = ["--model=shifted_exponential", "--workers=8", "--steps=2000", "--shift_seconds=0", "--k=6,8"]
    assert command.main([*arguments, f"--figure={figure}"]) == 0
    head, titles, sixth, *_ = capsys.readouterr().out.splitlines()
    assert head.startswith("shifted_exponential, 8 workers") and "formula" in titles
    k, mean, error, formula = map(float, sixth.split()[:4])
    assert k == 6 and abs(mean - formula) < 5 * error and figure.stat().st_size > 1000


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--model=normal", "name='normal'"),
        ("--sigma=-1", "sigma=-1"),
        ("--workers=0", "workers=0"),
        ("--k=9", "k='9': must be numbers from 1 to workers=8"),
        ("sigma", "'sigma': must be --key=value"),
    ],
)
def test_command_refuses(argument, message, capsys):
    assert command.main(["--model=lognormal", "--workers=8", "--steps=10", argument]) == 2
    captured = capsys.readouterr()
    assert not captured.out and message in captured.err and len(captured.err.splitlines()) == 1
