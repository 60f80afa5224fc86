"""``data.evaluate_on="validation"``: the last tenth of the training examples, for every kind of set."""

import numpy as np
import pytest

import runs
from configs import flags
from data import sources
from data.assumed import make_or_assume
from data.decoding import crops
from data.example_order import ExampleOrder
from tests.data_folders import own_folders, random_examples, random_images, write_set
from tests.in_process import DIGITS
from tests.inputs import gather
from tests.prepared_sets import write_images
from tests.test_train import command

SMOKE = f"{DIGITS}:smoke"
KEY = "--config.data.evaluate_on=validation"
SIZE, NUM_TRAIN, KEPT = 8, 47, 43  # 47 - 47 // 10

__all__ = ["own_folders"]  # a fixture
pytestmark = pytest.mark.usefixtures("own_folders")


def digits(tmp_path):
    return {"name": "digits"}


def folder_of_images(tmp_path):
    splits = {"train": random_examples(NUM_TRAIN), "test": random_examples(12, seed=1)}
    write_set(tmp_path / "sets", "fashion_mnist", splits)
    return {"name": "fashion_mnist", "dir": str(tmp_path / "sets")}


def causal(tmp_path):
    paragraphs = np.random.default_rng(0).permutation(9000).reshape(60, 150)
    (tmp_path / "book.txt").write_text("\n\n".join(" ".join(map(str, words)) for words in paragraphs))
    return {"name": "text", "source": str(tmp_path / "book.txt"), "tokenizer": "bytes", "sequence_length": 64}


def masked(tmp_path):
    return {**causal(tmp_path), "form": "masked"}


KINDS = [digits, folder_of_images, causal, masked]


def opened(block, evaluate_on):
    source = sources.make(**block, evaluate_on=evaluate_on)
    return source.info, source.load(0)


@pytest.mark.parametrize("kind", KINDS)
def test_training_and_validation_are_the_training_examples_divided(kind, tmp_path):
    block = kind(tmp_path)
    info, whole = opened(block, "test")
    divided_info, divided = opened(block, "validation")
    assert sources.make(**block).info == info, "the default"
    count = info.num_train
    assert (divided_info.num_train, divided_info.num_test) == (count - count // 10, count // 10)
    assert divided_info._replace(num_train=count, num_test=info.num_test) == info
    assert divided.train.num_examples == divided_info.num_train
    assert divided.test.num_examples == divided_info.num_test
    for name, column in whole.train.columns.items():
        parts = divided.train.columns[name], divided.test.columns[name]
        np.testing.assert_array_equal(np.concatenate(parts), column)
        assert parts[0].base is parts[1].base is not None  # views: nothing is held twice
    for name, constant in whole.constants.items():
        np.testing.assert_array_equal(divided.constants[name], constant)  # of all training examples


def test_digits_for_validation_are_of_every_class():
    """The order is that of a random division into training and test digits, so its end is like the rest of it."""
    labels = opened({"name": "digits"}, "validation")[1].test.columns["label"]
    assert len(labels) == 143 and np.bincount(labels, minlength=10).min() >= 6


# ---- streamed images ---------------------------------------------------------------------------------------------


LABELLED = [(content, number) for number, (content, _) in enumerate(random_images(NUM_TRAIN))]  # its label, its number


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    splits = {"train": LABELLED, "validation": [(content, -1) for content, _ in random_images(5, seed=1)]}
    root = tmp_path_factory.mktemp("sets")
    write_images(root, "imagenet2012", splits, num_classes=NUM_TRAIN, num_shards=3)
    return root


def streamed(directory, **options):
    options = {"processes": 0, "evaluate_on": "validation", **options}
    return sources.make("imagenet2012", dir=str(directory), image_size=SIZE, **options)


def batch_of(dataset, batch_index, *, seed=3):
    order = ExampleOrder(num_examples=dataset.train.num_examples, batch_size=5, seed=seed)
    index = order.indices(batch_index, num_batches=1)
    return index, dataset.train.gather(index, np.array([batch_index]))


def test_streamed_images_are_divided_across_files_and_cropped_for_their_use(sets):
    source = streamed(sets)
    dataset = source.load(3)
    assert (source.info.num_train, source.info.num_test, source.placement) == (KEPT, NUM_TRAIN - KEPT, "stream")
    seen = [batch_of(dataset, batch_index)[1]["label"].ravel() for batch_index in range(9)]  # 45 of a pass of 43
    assert set(np.concatenate(seen).tolist()) == set(range(KEPT))
    index, batch = batch_of(dataset, 6)
    for position, record in enumerate(index[0]):
        numbers = crops.uniforms(3, 6, position)
        wanted = crops.random_resized_crop(LABELLED[record][0], numbers, size=SIZE)
        np.testing.assert_array_equal(batch["image"][0, position], wanted)
    held_out = gather(dataset.test, range(NUM_TRAIN - KEPT), -1)
    assert held_out["label"].tolist() == [list(range(KEPT, NUM_TRAIN))]
    for (content, _), image in zip(LABELLED[KEPT:], held_out["image"][0], strict=True):
        np.testing.assert_array_equal(image, crops.centre_crop(content, size=SIZE))


def test_streamed_batches_are_the_same_from_processes_and_on_resuming(sets):
    there = streamed(sets).load(3)
    elsewhere = streamed(sets, processes=1).load(3)
    try:
        for batch_index in (7, 2):  # nobody has asked for those before
            for name, part in batch_of(there, batch_index)[1].items():
                np.testing.assert_array_equal(batch_of(elsewhere, batch_index)[1][name], part)
    finally:
        elsewhere.close()


@pytest.mark.parametrize("damaged", [KEPT - 1, NUM_TRAIN - 1])  # the last for training, and the last of all
def test_what_takes_the_place_of_a_damaged_image_is_of_its_own_part(damaged, tmp_path):
    spoilt = [(b"no image" if number == damaged else content, number) for content, number in LABELLED]
    splits = {"train": spoilt, "validation": spoilt[:2]}
    write_images(tmp_path, "imagenet2012", splits, num_classes=NUM_TRAIN)
    dataset = streamed(tmp_path, on_damage="skip").load(0)
    part, first = (dataset.train, 0) if damaged < KEPT else (dataset.test, KEPT)
    got = gather(part, [damaged - first])
    assert got["label"].tolist() == [[first]] and list(part.damaged) == [damaged]


def test_test_images_are_not_read(sets):
    """Here they have no labels, so that reading one fails."""
    dataset = streamed(sets).load(0)
    gather(dataset.train, [0])
    gather(dataset.test, [0])
    with pytest.raises(ValueError, match="label -1 is not in"):
        gather(streamed(sets, evaluate_on="test").load(0).test, [0])


# ---- refused, and assumed ----------------------------------------------------------------------------------------


def test_too_few_examples(tmp_path):
    for count in (9, 10):
        splits = {"train": random_examples(count), "test": random_examples(2)}
        write_set(tmp_path / f"{count}", "my_own", splits)
    with pytest.raises(ValueError, match=r"^data\.evaluate_on='validation': needs 10 training .* the data set has 9$"):
        sources.make("my_own", dir=str(tmp_path / "9"), evaluate_on="validation")
    assert sources.make("my_own", dir=str(tmp_path / "10"), evaluate_on="validation").info[2:4] == (9, 1)


def test_data_that_are_not_at_hand(tmp_path):
    options = {"dir": str(tmp_path), "evaluate_on": "validation"}
    info = make_or_assume("imagenet2012", image_size=64, **options).info
    assert (info.num_train, info.num_test) == (1_281_167 - 128_116, 128_116)
    info = make_or_assume("text", source="not_there", **options).info
    assert (info.num_train, info.num_test) == (9_000_000, 1_000_000)


# ---- whole runs --------------------------------------------------------------------------------------------------


def test_a_run_counts_epochs_by_the_examples_that_it_trains_on(tmp_path, capsys):
    epochs = ("--config.train_epochs=2", "--config.eval_every_epochs=1")
    arguments = (f"--config={SMOKE}", KEY, *epochs, f"--workdir={tmp_path / 'run'}")
    assert command(*arguments) == 0
    config = flags.load(SMOKE, [KEY, *epochs])
    per_step = config.num_workers * config.batch_size_per_worker
    evaluations = [r for r in runs.read(tmp_path / "run" / "metrics.jsonl") if r["kind"] == "eval"]
    assert [r["step"] for r in evaluations] == [-(-1294 // per_step), -(-2 * 1294 // per_step)]
    assert evaluations[-1]["epoch"] == pytest.approx(evaluations[-1]["step"] * per_step / 1294)
    accuracy = evaluations[-1]["accuracy"]
    assert abs(accuracy * 143 - round(accuracy * 143)) < 1e-3
    said = capsys.readouterr().out
    assert f"validation accuracy {accuracy:.2%}" in said and "test accuracy" not in said
    assert command(*arguments, "--evaluate_only") == 0
    assert f"validation accuracy {accuracy:.2%}" in capsys.readouterr().out
    assert command(f"--config={SMOKE}", *epochs, f"--workdir={tmp_path / 'run'}", "--evaluate_only") == 2
    assert "data.evaluate_on='validation' in the folder, 'test' now" in capsys.readouterr().err
