"""Masks of the masked language model: how many, which, by which key; and the sums of its task."""

import functools

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from models import bert, tasks
from models.tasks import masking
from models.tasks.masked_lm import masked_lm

MASK, NUM_SPECIAL, VOCAB, TIME = 4, 5, 1000, 64
SIZES = {"vocab_size": VOCAB, "mask_id": MASK, "num_special": NUM_SPECIAL}
OPTIONS = {"rate": 0.15, "max_predictions": 20, "unit": "token"}

NUM_LANES, NUM_ROWS = 30, 100  # the same in nearly every test, so that few programs are compiled


@functools.partial(jax.jit, static_argnames=tuple(OPTIONS))
def mask(key, batch, **options):
    return masking.mask(jax.random.split(key, len(batch["tokens"])), batch, **SIZES, **{**OPTIONS, **options})


@functools.partial(jax.jit, static_argnames="unit")
def mask_lanes(keys, batches, unit):
    return jax.vmap(functools.partial(mask, unit=unit))(keys, batches)


def text(num_rows: int, *, seed: int = 0, longest_word: int = 4):
    """Rows [CLS] words [SEP] words [SEP] padding, of random lengths; as a batch of numpy arrays."""
    rng = np.random.default_rng(seed)
    tokens = np.zeros((num_rows, TIME), np.int32)
    words = np.full((num_rows, TIME), -1, np.int16)
    segments = np.zeros((num_rows, TIME), np.int8)
    for row in range(num_rows):
        length = rng.integers(8, TIME + 1)
        middle = rng.integers(3, length - 2)
        tokens[row, :length] = rng.integers(NUM_SPECIAL, VOCAB, length)
        tokens[row, [0, middle, length - 1]] = 2, 3, 3
        segments[row, middle + 1 : length] = 1
        word, left = -1, 0
        for place in range(1, length - 1):
            if place == middle:
                left = 0
                continue
            if left == 0:
                word = word + 1
                left = rng.integers(1, longest_word + 1)
            words[row, place], left = word, left - 1
    return {"tokens": tokens, "words": words, "segments": segments, "is_next": rng.integers(0, 2, num_rows)}


def number(maskable: int, *, rate: float = 0.15, places: int = 20) -> int:
    return min(places, max(1, round(rate * maskable))) if maskable else 0


def chosen_of(masked) -> list[list[int]]:
    return [list(p[w > 0]) for p, w in zip(np.asarray(masked.positions), np.asarray(masked.weights), strict=True)]


@pytest.mark.parametrize("max_predictions", [3, 100])
def test_as_many_as_asked_in_order_and_never_special(max_predictions):
    batch = text(100)
    masked = jax.device_get(mask(jax.random.key(0), batch, max_predictions=max_predictions))
    assert masked.positions.shape == masked.weights.shape == (100, min(max_predictions, TIME))
    for row, chosen in enumerate(chosen_of(masked)):
        assert len(chosen) == number((batch["words"][row] >= 0).sum(), places=max_predictions)
        assert chosen == sorted(set(chosen)) and (batch["words"][row, chosen] >= 0).all()
        assert (masked.targets[row, : len(chosen)] == batch["tokens"][row, chosen]).all()
        assert not masked.targets[row, len(chosen) :].any()
        assert not masked.positions[row, len(chosen) :].any()
        others = np.setdiff1d(np.arange(TIME), chosen)
        assert (masked.inputs[row, others] == batch["tokens"][row, others]).all()


def within_5_sigma(count: int, trials: int, share: float) -> bool:
    return abs(count - trials * share) < 5 * np.sqrt(trials * share * (1 - share))


@pytest.mark.parametrize("unit", ["token", "word"])
def test_eight_tenths_are_masked_and_one_tenth_is_random(unit):
    batches = jax.tree.map(lambda x: x.reshape(NUM_LANES, NUM_ROWS, *x.shape[1:]), text(NUM_LANES * NUM_ROWS))
    masked = mask_lanes(jax.random.split(jax.random.key(1), NUM_LANES), batches, unit)
    masked = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), masked)
    used = np.asarray(masked.weights) > 0
    seen = np.take_along_axis(np.asarray(masked.inputs), np.asarray(masked.positions), axis=1)[used]
    target = np.asarray(masked.targets)[used]
    trials = used.sum()
    other = (seen != MASK) & (seen != target)
    assert trials > 8_000
    assert within_5_sigma((seen == MASK).sum(), trials, 0.8)
    same_by_chance = 1 / (VOCAB - NUM_SPECIAL)
    assert within_5_sigma(other.sum(), trials, 0.1 * (1 - same_by_chance))
    assert seen[other].min() >= NUM_SPECIAL and seen[other].max() < VOCAB
    assert len(np.unique(seen[other])) > 0.5 * min(VOCAB - NUM_SPECIAL, other.sum())


@pytest.mark.parametrize("unit", ["token", "word"])
def test_every_place_is_chosen_as_often(unit):
    row = text(1, seed=3)
    many = jax.tree.map(lambda x: np.broadcast_to(x, (NUM_LANES, NUM_ROWS, *x.shape[1:])), row)
    masked = mask_lanes(jax.random.split(jax.random.key(2), NUM_LANES), many, unit)
    chosen = np.asarray(masked.positions)[np.asarray(masked.weights) > 0]
    counts = np.bincount(chosen, minlength=TIME)
    maskable = row["words"][0] >= 0
    assert not counts[~maskable].any()
    if unit == "token":
        share = number(maskable.sum()) / maskable.sum()
        assert all(within_5_sigma(count, 3000, share) for count in counts[maskable])
    else:  # short words fit more often, so that only tokens of one word are equally often chosen
        for word in np.unique(row["words"][0][maskable]):
            assert len(set(counts[row["words"][0] == word])) == 1


def word_by_word(words: np.ndarray, order: np.ndarray, left: int) -> set[int]:
    """Chooses as the authors' code does: words in order, each that does not exceed what is left."""
    chosen: set[int] = set()
    for word in order:
        places = np.flatnonzero(words == word)
        if 0 < len(places) <= left:
            chosen = chosen | set(places.tolist())
            left = left - len(places)
    return chosen


@pytest.mark.parametrize("longest_word", [1, 4, 12])
def test_whole_words_as_going_word_by_word(longest_word):
    batch = text(100, longest_word=longest_word)
    key = jax.random.key(5)
    keys = jax.random.split(key, 100)
    orders = np.asarray(jax.vmap(lambda key: jax.random.uniform(key, (TIME + 18,))[:TIME].argsort())(keys))
    chosen = chosen_of(mask(key, batch, unit="word", max_predictions=9, rate=0.3))
    for row, (words, order) in enumerate(zip(batch["words"], orders, strict=True)):
        left = number((words >= 0).sum(), rate=0.3, places=9)
        assert set(chosen[row]) == word_by_word(words, order, left), row
        assert len(chosen[row]) <= left


def test_masks_follow_the_key():
    batch = text(100)
    one, same, other = (mask(jax.random.key(seed), batch) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, one, same)
    assert (one.positions != other.positions).any() and (one.inputs != other.inputs).any()
    assert len({tuple(chosen) for chosen in chosen_of(one)}) > 80  # and rows do not share one


@pytest.mark.parametrize("unit", ["token", "word"])
def test_the_same_over_lanes(unit):
    batch = text(NUM_ROWS)
    keys = jax.random.split(jax.random.key(7), NUM_LANES)
    batches = jax.tree.map(lambda x: np.stack([np.roll(x, lane, axis=0) for lane in range(NUM_LANES)]), batch)
    lanes = mask_lanes(keys, batches, unit)
    for lane in (0, 11, 29):
        alone = mask(keys[lane], jax.tree.map(lambda x: x[lane], batches), unit=unit)  # noqa: B023
        jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda x: x[lane], lanes), alone)  # noqa: B023


# ---- the task ----------------------------------------------------------------------------------------------------


def small_bert():
    sizes = {"vocab_size": VOCAB, "num_layers": 1, "num_heads": 2, "width": 16, "max_length": TIME}
    return bert.BertMini(**sizes, dropout_rate=0.0, attention_dropout_rate=0.0)


def task_of(batch, **kwargs) -> tasks.Task:
    example = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in batch.items()}
    return masked_lm(model=small_bert(), example=example, sizes=SIZES, **kwargs)


@pytest.fixture(scope="module")
def params():
    """Random parameters; from NumPy, so that nothing is compiled."""
    shapes, state = jax.eval_shape(task_of(text(2)).init, jax.random.key(1))
    assert state == {}
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: 0.05 * rng.normal(size=x.shape).astype(x.dtype), shapes)


@pytest.fixture(scope="module")
def evaluate():
    return jax.jit(task_of(text(2)).evaluate)


def pick(batch, rows):
    return {name: x[np.asarray(rows)] for name, x in batch.items()}


def test_evaluation_depends_on_each_example_alone(params, evaluate):
    batch, almost = text(7), jnp.array([1.0, 1, 1, 0])

    def sums(first, last):
        of_first = evaluate(params, {}, pick(batch, first), jnp.ones(4))
        return jax.tree.map(np.add, of_first, evaluate(params, {}, pick(batch, last), almost))

    whole = sums([0, 1, 2, 3], [4, 5, 6, 0])
    other = sums([6, 2, 4, 0], [5, 1, 3, 3])
    for name in whole:
        np.testing.assert_allclose(whole[name], other[name], rtol=1e-5)
    assert whole["count"] == sum(number((row >= 0).sum()) for row in batch["words"])
    assert whole["next_count"] == 7


def test_metrics_are_of_all_masked_tokens_and_of_all_examples(params):
    batch = text(6)
    task = task_of(batch)
    keys = jax.random.split(jax.random.key(2))
    loss, rows = jax.jit(task.loss), ([0, 1, 2], [3, 4, 5])
    parts = [loss(params, {}, pick(batch, own), key) for own, key in zip(rows, keys, strict=True)]
    for mean, (sums, changed) in parts:
        assert changed == {}
        np.testing.assert_allclose(mean, sums["loss"] / sums["count"] + sums["next_loss"] / sums["next_count"])
    totals = {name: float(sum(part[1][0][name] for part in parts)) for name in parts[0][1][0]}
    metrics = task.metrics(totals)
    assert metrics["masked_lm_loss"] == totals["loss"] / totals["count"] and totals["next_count"] == 6
    assert metrics["loss"] == metrics["masked_lm_loss"] + metrics["next_sentence_loss"]
    of_both = {f"{task}_{what}" for task in ("masked_lm", "next_sentence") for what in ("loss", "accuracy")}
    assert set(metrics) == {"loss", *of_both}


def test_loss_agrees_with_numpy(params, evaluate):
    batch, model = text(4), small_bert()
    sums = evaluate(params, {}, batch, jnp.array([1.0, 0, 1, 0]))
    mask_all = jax.jit(lambda batch: masking.mask(masking.example_keys(batch["tokens"]), batch, **SIZES, **OPTIONS))
    masked = jax.device_get(mask_all(batch))
    outputs = jax.jit(model.apply)({"params": params}, masked.inputs, batch["segments"], masked.positions)
    log_p, log_q = (np.asarray(x, np.float64) for x in map(jax.nn.log_softmax, outputs))
    expected = {name: 0.0 for name in sums}
    for row in (0, 2):
        for slot in range(int(masked.weights[row].sum())):
            expected["loss"] -= log_p[row, slot, masked.targets[row, slot]]
            expected["correct"] += log_p[row, slot].argmax() == masked.targets[row, slot]
            expected["count"] += 1
        expected["next_loss"] -= log_q[row, batch["is_next"][row]]
        expected["next_correct"] += log_q[row].argmax() == batch["is_next"][row]
        expected["next_count"] += 1
    for name in sums:
        np.testing.assert_allclose(sums[name], expected[name], rtol=1e-5, err_msg=name)


def test_next_sentence_off_leaves_its_head_alone(params):
    batch = text(3)
    del batch["is_next"]
    task = task_of(batch, next_sentence="off")
    gradient_of = jax.jit(jax.value_and_grad(task.loss, has_aux=True))
    (mean, (sums, _)), gradient = gradient_of(params, {}, batch, jax.random.key(0))
    assert set(sums) == {"loss", "correct", "count"} and mean == sums["loss"] / sums["count"]
    assert set(task.metrics(sums)) == {"loss", "masked_lm_loss", "masked_lm_accuracy"}
    assert not any(np.any(leaf) for name in ("pooler", "next_sentence") for leaf in jax.tree.leaves(gradient[name]))
    assert np.any(gradient["masked_lm_dense"]["kernel"])


def test_padding_only_is_no_loss_and_no_nan(params):
    batch = text(3)
    batch["tokens"][:], batch["words"][:] = 0, -1
    task = task_of(batch, next_sentence="off")
    gradient_of = jax.jit(jax.value_and_grad(task.loss, has_aux=True))
    (mean, (sums, _)), gradient = gradient_of(params, {}, batch, jax.random.key(0))
    assert mean == sums["count"] == sums["loss"] == 0 and not any(map(np.any, jax.tree.leaves(gradient)))


def test_a_row_of_padding_has_nothing_to_predict():
    batch = text(NUM_ROWS)
    batch["tokens"][3], batch["words"][3] = 0, -1
    masked = mask(jax.random.key(0), batch)
    assert not masked.weights[3].any()
    assert not masked.inputs[3].any()
    assert (masked.weights.sum(1) > 0).sum() == 99


def test_refuses_data_that_are_not_for_it():
    with pytest.raises(ValueError, match="no is_next"):
        masked_lm(model=small_bert(), example=dict.fromkeys(("tokens", "segments", "words")), sizes=SIZES)
    example = dict.fromkeys(("tokens", "segments", "words", "is_next"))
    with pytest.raises(ValueError, match="no mask_id, num_special"):
        masked_lm(model=small_bert(), example=example, sizes={"vocab_size": 9})
    with pytest.raises(ValueError, match="no segments, words"):
        masked_lm(model=small_bert(), example={"tokens": None}, sizes=SIZES, next_sentence="off")
