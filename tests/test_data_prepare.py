import importlib.util

import pytest

from data import prepare, tfds_sets
from tests.data_folders import random_examples, random_images, write_set, write_texts
from tests.prepared_sets import write_images

SPLITS = {"train": random_examples(4), "test": random_examples(2)}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    (tmp_path / "sets").mkdir()
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "sets"))
    return tmp_path / "sets"


@pytest.fixture
def tensorflow(monkeypatch):
    """Call it with "here" or "missing"."""
    found = importlib.util.find_spec

    def set_to(state):
        answer = {"here": importlib.util.find_spec("data"), "missing": None}[state]
        monkeypatch.setattr(
            prepare.importlib.util, "find_spec", lambda name: answer if name == "tensorflow" else found(name)
        )

    return set_to


def download(monkeypatch, effect):
    """Puts an effect in the place of TFDS's download_and_prepare."""
    find = tfds_sets.find

    def found(*arguments, **options):
        builder = find(*arguments, **options)
        builder.download_and_prepare = effect
        return builder

    monkeypatch.setattr(tfds_sets, "find", found)


def fails(error):
    def effect():
        raise error

    return effect


IMAGES = {"train": random_images(4), "validation": random_images(2)}
PREPARED = {  # what writes the set, and what is said of it
    "digits": (lambda folder: None, "nothing to prepare"),
    "imagenet2012": (lambda folder: write_images(folder, "imagenet2012", IMAGES), "4 + 2 images of many sizes"),
    "my_texts": (lambda folder: write_texts(folder, "my_texts", {"train": ["a", "b"], "test": ["v"]}), "2 + 1 texts"),
}


@pytest.mark.parametrize("name", PREPARED)
def test_what_needs_no_preparing_is_described(name, own_folder, capsys):
    write, said = PREPARED[name]
    write(own_folder)
    assert prepare.main([name]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("by", ["environment", "argument"])
def test_already_prepared(by, own_folder, tmp_path, capsys):
    root = own_folder if by == "environment" else tmp_path / "others"
    write_set(root, "mnist", SPLITS)
    assert prepare.main(["mnist"] + ([f"--dir={root}"] if by == "argument" else [])) == 0
    out, err = capsys.readouterr()
    assert out == f"mnist: already prepared in {root}/mnist/3.0.1 (4 + 2 images of (28, 28, 1))\n"
    assert err == ""


def test_without_tensorflow(own_folder, tensorflow, capfd, monkeypatch):
    tensorflow("missing")
    download(monkeypatch, fails(AssertionError("downloaded, for nothing")))
    assert prepare.main(["fashion_mnist"]) == 2
    out, err = capfd.readouterr()
    first, install, build = err.splitlines()
    assert out == "" and first.startswith("data.prepare: fashion_mnist: preparing it needs TensorFlow")
    assert "-m venv " in install and "pip install tensorflow-cpu tensorflow-datasets==" in install
    assert build.endswith(f"fashion_mnist {own_folder}") and 'file_format="array_record"' in build
    assert not list(own_folder.iterdir())


@pytest.mark.parametrize("name", ["mnist", "imdb_reviews"])
def test_tensorflow_missed_only_when_encoding(name, tensorflow, capfd, monkeypatch):
    tensorflow("here")
    download(monkeypatch, fails(ModuleNotFoundError("No module named 'tensorflow'")))
    assert prepare.main([name]) == 2
    assert f"{name}: preparing it needs TensorFlow" in capfd.readouterr().err


def test_prepared_now(own_folder, tmp_path, tensorflow, capsys, monkeypatch):
    tensorflow("here")
    new = tmp_path / "new" / "folder"
    download(monkeypatch, lambda: write_set(new, "mnist", SPLITS))
    assert prepare.main(["mnist", f"--dir={new}"]) == 0
    assert capsys.readouterr().out == f"mnist: prepared in {new}/mnist/3.0.1 (4 + 2 images of (28, 28, 1))\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: name"),
        (["mnist", "--dri=x"], "unrecognized arguments: --dri=x"),
        (["mnits"], "data.name='mnits': not a known data set; did you mean 'mnist'?"),
        (["kitti"], "data.name='kitti': not an image classification set: "),
        (["mnist", f"--dir={__file__}"], "must be a folder that can be read (Not a directory)"),
        (["mnist", f"--dir={__file__}/below"], "must be a folder that can be read (Not a directory)"),
        (["cifar10"], "cifar10: cannot be prepared in "),
        (["cifar100"], "cifar100: cannot be prepared in "),
    ],
)
def test_refused(arguments, message, tensorflow, capfd, monkeypatch):
    tensorflow("here")
    download(monkeypatch, fails(ConnectionError("no\nnetwork")))
    assert prepare.main(arguments) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("data.prepare: ") and message in err and err.count("\n") == 1
