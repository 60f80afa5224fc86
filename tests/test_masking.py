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
mask = functools.partial(masking.mask, **SIZES)


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
                word, left = word + 1, rng.integers(1, longest_word + 1)
            words[row, place], left = word, left - 1
    return {"tokens": tokens, "words": words, "segments": segments, "is_next": rng.integers(0, 2, num_rows)}


def number(maskable: int, *, rate: float = 0.15, places: int = 20) -> int:
    return min(places, max(1, round(rate * maskable))) if maskable else 0


def chosen_of(masked) -> list[list[int]]:
    return [list(p[w > 0]) for p, w in zip(np.asarray(masked.positions), np.asarray(masked.weights), strict=True)]


@pytest.mark.parametrize("max_predictions", [3, 20, 100])
def test_as_many_as_asked_in_order_and_never_special(max_predictions):
    batch = text(200)
    masked = mask(jax.random.key(0), batch, max_predictions=max_predictions)
    assert masked.positions.shape == masked.weights.shape == (200, min(max_predictions, TIME))
    for row, chosen in enumerate(chosen_of(masked)):
        assert len(chosen) == number((batch["words"][row] >= 0).sum(), places=max_predictions)
        assert chosen == sorted(set(chosen)) and (batch["words"][row, chosen] >= 0).all()
        assert (masked.targets[row, : len(chosen)] == batch["tokens"][row, chosen]).all()
        assert not masked.targets[row, len(chosen) :].any() and not masked.positions[row, len(chosen) :].any()
        others = np.setdiff1d(np.arange(TIME), chosen)
        assert (masked.inputs[row, others] == batch["tokens"][row, others]).all()


def within_5_sigma(count: int, trials: int, share: float) -> bool:
    return abs(count - trials * share) < 5 * np.sqrt(trials * share * (1 - share))


@pytest.mark.parametrize("unit", ["token", "word"])
def test_eight_tenths_are_masked_and_one_tenth_is_random(unit):
    batch = text(4000)
    masked = mask(jax.random.key(1), batch, unit=unit)
    used = np.asarray(masked.weights) > 0
    seen = np.take_along_axis(np.asarray(masked.inputs), np.asarray(masked.positions), axis=1)[used]
    target, trials = np.asarray(masked.targets)[used], used.sum()
    other = (seen != MASK) & (seen != target)
    assert trials > 10_000
    assert within_5_sigma((seen == MASK).sum(), trials, 0.8)
    same_by_chance = 1 / (VOCAB - NUM_SPECIAL)
    assert within_5_sigma(other.sum(), trials, 0.1 * (1 - same_by_chance))
    assert seen[other].min() >= NUM_SPECIAL and seen[other].max() < VOCAB
    assert len(np.unique(seen[other])) > 0.5 * min(VOCAB - NUM_SPECIAL, other.sum())


@pytest.mark.parametrize("unit", ["token", "word"])
def test_every_place_is_chosen_as_often(unit):
    row = {name: np.repeat(x[:1], 8000, axis=0) for name, x in text(1, seed=3).items()}
    chosen = [place for row in chosen_of(mask(jax.random.key(2), row, unit=unit)) for place in row]
    counts, maskable = np.bincount(chosen, minlength=TIME), row["words"][0] >= 0
    assert not counts[~maskable].any()
    if unit == "token":
        share = number(maskable.sum()) / maskable.sum()
        assert all(within_5_sigma(count, 8000, share) for count in counts[maskable])
    else:  # short words fit more often, so that only tokens of one word are equally often chosen
        for word in np.unique(row["words"][0][maskable]):
            assert len(set(counts[row["words"][0] == word])) == 1


def word_by_word(words: np.ndarray, order: np.ndarray, left: int) -> set[int]:
    """What the authors' code does: words in order, each that does not exceed what is left."""
    chosen: set[int] = set()
    for word in order:
        places = np.flatnonzero(words == word)
        if 0 < len(places) <= left:
            chosen, left = chosen | set(places.tolist()), left - len(places)
    return chosen


@pytest.mark.parametrize("longest_word", [1, 4, 12])
def test_whole_words_as_going_word_by_word(longest_word):
    batch, key = text(100, longest_word=longest_word), jax.random.key(5)
    chosen = chosen_of(mask(key, batch, unit="word", max_predictions=9, rate=0.3))
    for row, row_key in enumerate(jax.random.split(key, 100)):
        words = batch["words"][row]
        order = np.asarray(jax.random.permutation(jax.random.split(row_key, 3)[0], TIME))
        left = number((words >= 0).sum(), rate=0.3, places=9)
        assert set(chosen[row]) == word_by_word(words, order, left), row
        assert len(chosen[row]) <= left


def test_tokens_cut_words_in_parts_but_whole_words_do_not():
    batch = text(100)
    parts = {"token": 0, "word": 0}
    for unit in parts:
        for words, chosen in zip(batch["words"], chosen_of(mask(jax.random.key(0), batch, unit=unit)), strict=True):
            taken = np.unique(words[chosen])
            parts[unit] += np.isin(words, taken).sum() - len(chosen)
    assert parts["word"] == 0 < parts["token"]


def test_masks_follow_the_key():
    batch = text(8)
    one, same, other = (mask(jax.random.key(seed), batch) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, one, same)
    assert (one.positions != other.positions).any() and (one.inputs != other.inputs).any()
    assert len({tuple(chosen) for chosen in chosen_of(one)}) == 8  # and rows do not share one


@pytest.mark.parametrize("unit", ["token", "word"])
def test_the_same_under_jit_and_over_lanes(unit):
    batches, keys = [text(5, seed=seed) for seed in (0, 1, 2)], jax.random.split(jax.random.key(7), 3)
    alone = [mask(key, batch, unit=unit) for key, batch in zip(keys, batches, strict=True)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *batches)
    lanes = jax.jit(jax.vmap(functools.partial(mask, unit=unit)))(keys, stacked)
    jax.tree.map(np.testing.assert_array_equal, lanes, jax.tree.map(lambda *x: jnp.stack(x), *alone))


# ---- the task ----------------------------------------------------------------------------------------------------


def small_bert(**kwargs):
    sizes = {"vocab_size": VOCAB, "num_layers": 1, "num_heads": 2, "width": 16, "max_length": TIME}
    return bert.BertMini(**{**sizes, **kwargs})


def task_of(batch, **kwargs) -> tasks.Task:
    example = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in batch.items()}
    return masked_lm(model=small_bert(), example=example, sizes=SIZES, **kwargs)


def pick(batch, rows):
    return {name: x[np.asarray(rows)] for name, x in batch.items()}


def test_evaluation_depends_on_each_example_alone():
    batch = text(7)
    task = task_of(batch)
    params, state = task.init(jax.random.key(1))
    evaluate = jax.jit(task.evaluate)
    whole = evaluate(params, state, batch, jnp.ones(7))
    parts = [
        evaluate(params, state, pick(batch, [6, 2, 4, 0]), jnp.ones(4)),
        evaluate(params, state, pick(batch, [5, 1, 3, 3]), jnp.array([1.0, 1, 1, 0])),
    ]
    for name in whole:
        np.testing.assert_allclose(whole[name], parts[0][name] + parts[1][name], rtol=1e-5)
    assert whole["count"] == sum(number((row >= 0).sum()) for row in batch["words"]) and whole["next_count"] == 7


def test_metrics_are_of_all_masked_tokens_and_of_all_examples():
    batch = text(6)
    task = task_of(batch)
    params, state = task.init(jax.random.key(1))
    keys = jax.random.split(jax.random.key(2))
    parts = [task.loss(params, state, pick(batch, rows), key) for rows, key in zip(([0, 1], [2, 3, 4, 5]), keys)]  # noqa: B905
    for mean, (sums, changed) in parts:
        assert changed == {}
        np.testing.assert_allclose(mean, sums["loss"] / sums["count"] + sums["next_loss"] / sums["next_count"])
    totals = {name: float(sum(part[1][0][name] for part in parts)) for name in parts[0][1][0]}
    metrics = task.metrics(totals)
    assert metrics["masked_lm_loss"] == totals["loss"] / totals["count"] and totals["next_count"] == 6
    assert metrics["loss"] == metrics["masked_lm_loss"] + metrics["next_sentence_loss"]
    assert set(metrics) == {
        "loss",
        "masked_lm_loss",
        "masked_lm_accuracy",
        "next_sentence_loss",
        "next_sentence_accuracy",
    }
    # at the start both heads know nothing
    np.testing.assert_allclose(metrics["masked_lm_loss"], np.log(VOCAB), rtol=0.02)
    np.testing.assert_allclose(metrics["next_sentence_loss"], np.log(2), rtol=0.1)


def test_loss_agrees_with_numpy():
    batch = text(3)
    task, model = task_of(batch), small_bert()
    params, state = task.init(jax.random.key(1))
    sums = task.evaluate(params, state, batch, jnp.array([1.0, 0, 1]))
    masked = masking.mask_each(masking.example_keys(batch["tokens"]), batch, **SIZES)
    outputs = model.apply({"params": params}, masked.inputs, batch["segments"], masked.positions)
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


def test_next_sentence_off_leaves_its_head_alone():
    batch = text(3)
    del batch["is_next"]
    task = task_of(batch, next_sentence="off")
    params, state = task.init(jax.random.key(1))
    (mean, (sums, _)), gradient = jax.value_and_grad(task.loss, has_aux=True)(params, state, batch, jax.random.key(0))
    assert set(sums) == {"loss", "correct", "count"} and mean == sums["loss"] / sums["count"]
    assert set(task.metrics(sums)) == {"loss", "masked_lm_loss", "masked_lm_accuracy"}
    assert not any(np.any(leaf) for name in ("pooler", "next_sentence") for leaf in jax.tree.leaves(gradient[name]))
    assert np.any(gradient["masked_lm_dense"]["kernel"])


@pytest.mark.parametrize("rows", [[0], [0, 1]])
def test_padding_only_is_no_loss_and_no_nan(rows):
    batch = text(2)
    batch["tokens"][0], batch["words"][0] = 0, -1
    batch = pick(batch, rows)
    masked = mask(jax.random.key(0), batch)
    assert not masked.weights[0].any() and not masked.inputs[0].any()
    task = task_of(batch, next_sentence="off")
    params, state = task.init(jax.random.key(1))
    (mean, (sums, _)), gradient = jax.value_and_grad(task.loss, has_aux=True)(params, state, batch, jax.random.key(0))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((mean, sums, gradient)))
    assert (mean == 0 and not any(map(np.any, jax.tree.leaves(gradient)))) == (rows == [0])


def test_refuses_data_that_are_not_for_it():
    with pytest.raises(ValueError, match="no is_next"):
        masked_lm(model=small_bert(), example=dict.fromkeys(("tokens", "segments", "words")), sizes=SIZES)
    example = dict.fromkeys(("tokens", "segments", "words", "is_next"))
    with pytest.raises(ValueError, match="no mask_id, num_special"):
        masked_lm(model=small_bert(), example=example, sizes={"vocab_size": 9})
    with pytest.raises(ValueError, match="no segments, words"):
        masked_lm(model=small_bert(), example={"tokens": None}, sizes=SIZES, next_sentence="off")
