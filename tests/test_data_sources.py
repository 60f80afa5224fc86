import os
import pathlib
import pwd
import re
import resource
import shutil
import zlib
from typing import Any

import jax
import numpy as np
import pytest

from data import assumed, decoded, folders, prepare, sources, tfds_sets
from data.assumed import make_or_assume
from data.decoded import check, load
from data.examples import Info
from tests.damage import edit, flip
from tests.data_folders import REAL, own_folders, random_examples, real, warnings_said, write_set, write_texts
from tests.inputs import assert_of
from tests.prepared_sets import encoded, pack, shard, write_shard
from tests.refused import line_of, refused, refused_without_a_trace
from tests.started import python

__all__ = ["own_folders", "warnings_said"]  # fixtures
pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture
def fashion(tmp_path, monkeypatch):
    """A small set under a name that TFDS knows, in TFDS_DATA_DIR; returns its examples."""
    splits = {"train": random_examples(1100), "test": random_examples(30, seed=1)}
    write_set(tmp_path / "sets", "fashion_mnist", splits)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "sets"))
    return splits


@pytest.fixture
def no_decoding(monkeypatch):
    """Call it to make sure that from here on nothing is decoded."""

    def forbid(*arguments):
        raise AssertionError("decoded again")

    return lambda: monkeypatch.setattr(decoded, "decode", forbid)


def assert_holds(dataset, splits):
    for split, (images, labels) in splits.items():
        got = getattr(dataset, split)
        assert got.columns["image"].dtype == np.uint8 and got.columns["label"].dtype == np.int32
        np.testing.assert_array_equal(got.columns["image"], images)
        np.testing.assert_array_equal(got.columns["label"], labels)
    mean = dataset.constants["mean"]
    std = dataset.constants["std"]
    np.testing.assert_allclose(mean, splits["train"][0].mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(std, splits["train"][0].std((0, 1, 2)), rtol=1e-6)
    assert mean.dtype == std.dtype == np.float32


def assert_agrees(dataset, info):
    for examples, count in ((dataset.train, info.num_train), (dataset.test, info.num_test)):
        assert_of(examples.columns, info.example)
        assert {len(column) for column in examples.columns.values()} == {examples.num_examples} == {count}
        assert examples.columns["label"].max() < info.sizes["num_classes"]
    described = {name: (part.shape, part.dtype) for name, part in info.constants.items()}
    assert {name: (value.shape, value.dtype) for name, value in dataset.constants.items()} == described


def cached(tmp_path):
    (folder,) = (tmp_path / "cache" / "syncsum" / "data").iterdir()
    return folder


# ---- digits ----


def test_digits():
    dataset = load("digits")
    assert_agrees(dataset, check("digits"))
    train, test = dataset.train.columns, dataset.test.columns
    assert train["image"].dtype == np.uint8 and train["image"].max() == 16
    np.testing.assert_allclose(dataset.constants["mean"], train["image"].mean(), rtol=1e-6)
    whole, part = (np.bincount(np.concatenate(x)) for x in ([train["label"], test["label"]], [test["label"]]))
    assert abs(part - whole / 5).max() < 1  # stratified
    # The split that published numbers rest on; it must not change with the version of scikit-learn.
    assert zlib.crc32(train["image"].data) == 3142362505 and zlib.crc32(test["image"].data) == 1814970648


def test_what_is_heavy_is_imported_late():
    heavy = "{'sklearn', 'tensorflow_datasets', 'tokenizers', 'huggingface_hub'}"
    code = f"import sys; from data import sources; sources.make('digits'); print({heavy} & set(sys.modules))"
    done = python("-c", code)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


# ---- sets prepared by TFDS ----


def without_fingerprint(info):
    """What is known of a set of TFDS, but for what its files hold."""
    assert len(info.fingerprint) == 12
    return info._replace(fingerprint="")


def test_a_set_by_name(fashion, no_decoding, capfd):
    info = check("fashion_mnist")
    assert without_fingerprint(info) == decoded.describe((28, 28, 1), 10, 1100, 30)
    first = load("fashion_mnist")
    assert_holds(first, fashion)
    assert_agrees(first, info)
    no_decoding()
    second = load("fashion_mnist")
    assert_holds(second, fashion)
    assert isinstance(second.train.columns["image"].base, np.memmap)
    out, err = capfd.readouterr()
    assert out == "" and err == ""


def test_same_bits_as_tfds_itself(fashion):
    import tensorflow_datasets as tfds

    theirs: Any = tfds.data_source("fashion_mnist", split="train", data_dir=os.environ["TFDS_DATA_DIR"], download=False)
    ours = load("fashion_mnist").train.columns
    for i in (0, 549, 550, 1099):  # both shards
        np.testing.assert_array_equal(theirs[i]["image"], ours["image"][i])
        assert theirs[i]["label"] == ours["label"][i]


@pytest.mark.parametrize(("excess", "placement"), [(0, "device"), (1, "stream")])
def test_a_small_training_set_is_kept_on_the_devices(excess, placement):
    example = {"x": jax.ShapeDtypeStruct((), np.uint8)}
    info = Info(example, {}, num_train=sources.MAX_RESIDENT_BYTES + excess, num_test=1, constants={})

    def load(seed):
        raise AssertionError("read")

    for asked, given in (("auto", placement), ("device", "device"), ("stream", "stream")):
        assert sources.source_of(info, load, placement=asked).placement == given


@pytest.mark.parametrize("options", [{"placement": "gpu"}, {"processes": 1025}, {"processes": -1}, {"proceses": 2}])
def test_a_value_that_is_not_allowed_is_not_assumed(options, tmp_path):
    for find in (sources.make, make_or_assume):
        with pytest.raises(ValueError, match=next(iter(options))):
            find("fashion_mnist", **options, dir=str(tmp_path / "none"))


def test_colour_a_set_that_only_files_know_and_validation_for_test(tmp_path):
    splits = {
        "train": random_examples(20, shape=(6, 5, 3), num_classes=4),
        "validation": random_examples(7, shape=(6, 5, 3), num_classes=4),
    }
    write_set(tmp_path, "my_own", splits, num_classes=4, version="1.2.3")
    assert without_fingerprint(check("my_own", directory=str(tmp_path))) == decoded.describe((6, 5, 3), 4, 20, 7)
    dataset = load("my_own", directory=str(tmp_path))
    assert_holds(dataset, {"train": splits["train"], "test": splits["validation"]})


def test_a_channel_that_never_changes_can_be_normalised_by():
    histogram = decoded.count_pixels(np.full((2, 3, 3, 1), 7, np.uint8))
    assert [x.tolist() for x in decoded.statistics(histogram)] == [[7.0], [1.0]]


def test_default_folders(monkeypatch, tmp_path):
    assert tfds_sets.data_directory("") == str(tmp_path / "home" / "tensorflow_datasets")
    monkeypatch.setenv("TFDS_DATA_DIR", "")
    assert tfds_sets.data_directory("") == str(tmp_path / "home" / "tensorflow_datasets")
    for wrong in ("", "relative/path"):  # the XDG specification: relative paths are to be ignored
        monkeypatch.setenv("XDG_CACHE_HOME", wrong)
        assert folders.root() == tmp_path / "home" / ".cache" / "syncsum" / "data"


def test_no_folder_is_named_tilde_where_no_home_is_known(monkeypatch, tmp_path, capsys):
    """A container may run as a user whom the system does not know, without HOME; Python then leaves ~ as it is."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: (_ for _ in ()).throw(KeyError()))
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"data.name: needs a home folder.*set HOME or XDG_CACHE_HOME"):
        folders.root()
    with pytest.raises(ValueError, match=r"data.dir='': needs a home folder.*set HOME or TFDS_DATA_DIR"):
        tfds_sets.data_directory("")
    for arguments in (["mnist"], ["mnist", "--dir=~/sets"], ["mnist", "--dir=~nobody-of-this-name/sets"]):
        assert prepare.main(arguments) == 2
        assert "home folder" in line_of(capsys)
    assert sorted(tmp_path.iterdir()) == before


# ---- the cache ----


DAMAGES = {
    "truncated": lambda folder: os.truncate(folder / "train.images.npy", 5000),
    "flipped bit in images": lambda folder: flip(folder / "test.images.npy"),
    "flipped bit in labels": lambda folder: flip(folder / "train.labels.npy"),
    "missing file": lambda folder: (folder / "train.labels.npy").unlink(),
    "another split's file": lambda folder: shutil.copy(folder / "test.images.npy", folder / "train.images.npy"),
    "no JSON": lambda folder: (folder / "manifest.json").write_text("{"),
    "other JSON": lambda folder: (folder / "manifest.json").write_text("[]"),
    "histogram": lambda folder: edit(folder / "manifest.json", '"histogram": [[', '"histogram": [[1'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_cache_is_made_again(damage, fashion, tmp_path, warnings_said, no_decoding):
    load("fashion_mnist")
    DAMAGES[damage](cached(tmp_path))
    assert_holds(load("fashion_mnist"), fashion)
    assert len(warnings_said) == 1 and "is damaged" in warnings_said[0] and "\n" not in warnings_said[0]
    no_decoding()
    assert_holds(load("fashion_mnist"), fashion)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_stopped_while_decoding_leaves_no_half_file(after, fashion, tmp_path, monkeypatch, warnings_said):
    whole = decoded.decode

    def stops(prepared, split):
        for number, chunk in enumerate(whole(prepared, split)):
            if number == after:
                raise KeyboardInterrupt
            yield chunk

    with monkeypatch.context() as patch:
        patch.setattr(decoded, "decode", stops)
        with pytest.raises(KeyboardInterrupt):
            load("fashion_mnist")
    assert not list(cached(tmp_path).iterdir())
    assert_holds(load("fashion_mnist"), fashion)
    assert not warnings_said


def test_what_killed_processes_left_is_removed_in_time(fashion, tmp_path):
    load("fashion_mnist")
    folder = cached(tmp_path)
    old = folder / ".train.images.npy.0.tmp"
    new = folder / ".train.images.npy.1.tmp"
    for path in (old, new, folder / "manifest.json"):
        path.write_text("")
    os.utime(old, (0, 0))
    load("fashion_mnist")
    assert new.exists() and not old.exists()  # the new one may be of a process at work


def test_cache_that_cannot_be_written(fashion, tmp_path, warnings_said):
    (tmp_path / "cache").write_text("a file, where even root can make no folder")
    assert_holds(load("fashion_mnist"), fashion)
    assert len(warnings_said) == 1 and "cannot be written" in warnings_said[0]


def test_disk_that_fills_up(fashion, tmp_path, warnings_said):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # a write beyond it fails, as on a full disk
    try:
        dataset = load("fashion_mnist")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_holds(dataset, fashion)
    assert "File too large" in warnings_said[0] and len(warnings_said) == 1
    assert not list(cached(tmp_path).iterdir())


def test_another_set_under_the_same_name_is_decoded(fashion, tmp_path):
    load("fashion_mnist")
    other = {split: (images, 9 - labels) for split, (images, labels) in fashion.items()}  # of the same sizes
    write_set(tmp_path / "others", "fashion_mnist", other)
    assert_holds(load("fashion_mnist", directory=str(tmp_path / "others")), other)
    assert_holds(load("fashion_mnist"), fashion)


OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "augment": {"augment": "crop_flip"},
    "bytes": {"normalise": "none"},
    "streamed": {"placement": "stream"},
    "crops": {"image_size": 16, "augment": "crop_flip"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_set_that_is_assumed_is_what_it_would_be_but_for_the_data(options, fashion, tmp_path, monkeypatch):
    monkeypatch.setitem(assumed.IMAGE_SETS, "fashion_mnist", ((28, 28, 1), 10, 1100, 30))
    real = make_or_assume("fashion_mnist", **options)
    instead = make_or_assume("fashion_mnist", **options, dir=str(tmp_path / "none"))
    assert real.note == "" and "not at hand" in instead.note
    assert real.info.fingerprint and not instead.info.fingerprint
    info = real.info._replace(fingerprint="")
    assert instead._replace(load=real.load, note="") == real._replace(info=info)


# ---- what is refused ----


def texts(tmp_path):
    write_texts(tmp_path / "sets", "texts", {"train": ["a"], "test": ["b"]})


def sized(tmp_path):
    splits = {"train": random_examples(2), "test": random_examples(2)}
    edit(write_set(tmp_path / "sets", "sized", splits) / "features.json", '"28"', '"-1"')


def unlabelled(tmp_path):
    edit(write("unlabelled")(tmp_path) / "features.json", '"label":', '"kind":')


def write(name, *, splits=("train", "test"), **options):
    return lambda tmp_path: write_set(tmp_path / "sets", name, dict.fromkeys(splits, random_examples(4)), **options)


def break_info(tmp_path):
    (write("mnist")(tmp_path) / "dataset_info.json").write_text("{")


def lose_shard(tmp_path):
    (write("mnist")(tmp_path) / "mnist-test.array_record-00001-of-00002").unlink()


REFUSED = {
    "misspelt": (None, "mnits", "data.name='mnits': not a known data set; did you mean 'mnist'?"),
    "unlike any": (None, "qqqqqq", "data.name='qqqqqq': not a known data set; try digits, mnist, "),
    "no name": (None, "", "data.name='': not a known data set"),
    "path": (None, "../mnist", "data.name='../mnist': not a known data set"),
    "namespace": (None, "huggingface:mnist", "data.name='huggingface:mnist': not a known data set"),
    "version": (None, "mnist:9.9.9", "data.name='mnist:9.9.9': cannot be opened in "),
    "config": (None, "emnist/none", "data.name='emnist/none': cannot be opened in "),
    "not prepared": (None, "fashion_mnist", "sets; run `python -m data.prepare fashion_mnist`"),
    "not images": (None, "imdb_reviews", "data.name='imdb_reviews': not an image classification set: "),
    "texts": (texts, "texts", "its examples have text; image and label are needed"),
    "no labels": (unlabelled, "unlabelled", "its examples have image, kind; image and label are needed"),
    "sizes": (None, "cats_vs_dogs", "its images differ in size (None, None, 3); one size is needed"),
    "sizes in files": (sized, "sized", "its images differ in size"),
    "tfrecord": (write("mnist", file_format="tfrecord"), "mnist", " as tfrecord; array_record is needed"),
    "no train": (write("mnist", splits=["test"]), "mnist", "no split 'train' with examples; has test"),
    "no test": (write("mnist", splits=["train"]), "mnist", "no split 'validation' with examples"),
    "damaged": (break_info, "mnist", "data.name='mnist': cannot be opened in "),
    "missing shard": (lose_shard, "mnist", "mnist-test.array_record-00001-of-00002 is missing; run "),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("call", [check, load])
def test_refused(case, call, tmp_path, monkeypatch, no_decoding, capfd):
    make, name, message = REFUSED[case]
    (tmp_path / "sets").mkdir()
    if make:
        make(tmp_path)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "sets"))
    no_decoding()
    with refused_without_a_trace(message, tmp_path, capfd):
        call(name)


@pytest.mark.parametrize("call", [check, load])
@pytest.mark.parametrize(
    ("folder", "reason"), [("none", "No such file"), ("file", "Not a directory"), ("a\0b", "embedded null")]
)
def test_folder_that_is_none(call, folder, reason, tmp_path):
    (tmp_path / "file").write_text("")
    directory = str(tmp_path / folder)
    named = re.escape(f"data.dir={directory!r}: ")
    with refused(ValueError, f"^{named}must be a folder that can be read .*{reason}"):
        call("mnist", directory=directory)


def test_environment_names_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"data.dir='' stands for TFDS_DATA_DIR='.*none': must be a folder"):
        check("mnist")
    assert check("digits")  # which has no use for it


def test_command_names_the_folder_that_was_asked_for(tmp_path):
    folder = tmp_path / "two words"
    folder.mkdir()
    with pytest.raises(ValueError, match=f"run `python -m data.prepare mnist --dir='{folder}'`"):
        check("mnist", directory=str(folder))


def write_spoilt(path, images, labels):
    write_shard(path, (pack(*example) for example in encoded(images, labels)))


SPOILED = {
    "size": (
        lambda path: write_spoilt(path, *random_examples(550, shape=(28, 27, 1))),
        "an image of shape (28, 27, 1)",
    ),
    "label": (lambda path: write_spoilt(path, random_examples(550)[0], np.full(550, 10)), "label 10 is not in [0, 10)"),
    "no label": (lambda path: write_spoilt(path, random_examples(550)[0], np.full(550, -1)), "label -1 is not in"),
    "garbage": (lambda path: path.write_bytes(b"garbage" * 10_000), "hash mismatch"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_spoiled_examples(case, fashion, tmp_path, warnings_said):
    spoil, message = SPOILED[case]
    spoil(shard(pathlib.Path(os.environ["TFDS_DATA_DIR"]) / "fashion_mnist" / "3.0.1", "train", 0))
    with refused(ValueError, f"^data.name='fashion_mnist': split 'train' cannot be read.*{re.escape(message)}"):
        load("fashion_mnist")
    assert not warnings_said and not list(cached(tmp_path).glob("*.npy"))


# ---- real sets ----


@pytest.mark.data
@real("mnist")
def test_mnist():
    info = check("mnist", directory=REAL)
    assert without_fingerprint(info) == decoded.describe((28, 28, 1), 10, 60_000, 10_000)
    dataset = load("mnist", directory=REAL)
    assert_agrees(dataset, info)
    np.testing.assert_allclose(dataset.constants["mean"] / 255, [0.1307], atol=5e-5)
    np.testing.assert_allclose(dataset.constants["std"] / 255, [0.3081], atol=5e-5)
    counts = np.bincount(dataset.train.columns["label"]).tolist()
    assert counts == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
