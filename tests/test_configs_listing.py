"""What ``python -m configs list`` and ``train.py --helpconfig`` print, against the registries and the schema."""

import re

import pytest

from configs import __main__ as program
from configs import flags, listing, schema
from runs.errors import ConfigError
from tests.in_process import train_py
from tests.refused import line_of

NAMES = [(kind, name) for kind, names in listing.KINDS.items() for name in names]


OPTIONS = "what counts as one vector"  # said by from_gram, to which rules pass their options on
MEANINGS = [
    (("reducers", "krum"), "granularity", OPTIONS),
    (("reducers", "mgda"), "granularity", OPTIONS),
    (("optimizers", "adam"), "b2", "second moment"),  # optax's own
    (("optimizers", "madam"), "high", "range of the decay"),  # an entry of two keys
    (("models", "resnet18"), "remat", "backward pass"),  # of its base class
    (("schedules", "linear_schedule"), "transition_begin_epochs", "transition_begin in epochs."),
]


def said(capsys, *arguments):
    assert program.main(["configs", "list", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_all_kinds_are_listed(capsys):
    assert [line.partition(" ")[0] for line in said(capsys)] == [*schema.BLOCKS, "encoding"]


@pytest.mark.parametrize("kind", listing.KINDS)
def test_all_names_of_a_kind_are_listed_with_a_line_each(kind, capsys):
    found = dict(line.split(maxsplit=1) for line in said(capsys, f"{kind}s"))  # each has a name, and says what it is
    assert {*found} == {*listing.KINDS[kind], *(["digits"] if kind == "data" else [])}


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_all_keys_of_a_name_are_listed(kind, name, capsys):
    about, *lines = said(capsys, kind, name)
    keys, meanings = lines[::2], lines[1::2]
    assert about
    assert [line.split()[0] for line in keys] == [*listing.KINDS[kind].parameters(name)]
    assert all("default " in line or line.endswith("must be given") for line in keys)
    assert all(re.fullmatch(r" {4}\S.*[a-z]{3}.*", meaning) for meaning in meanings)  # a word at least


@pytest.mark.parametrize(("arguments", "key", "meaning"), MEANINGS)
def test_the_meaning_of_a_key_is_what_its_docstring_says(arguments, key, meaning, capsys):
    lines = said(capsys, *arguments)
    (place,) = [i for i, line in enumerate(lines) if line.split()[0] == key]
    assert meaning in lines[place + 1]


def test_a_component_without_a_docstring_has_keys_without_meanings():
    def bare(*, rate: float = 1.0):
        return rate

    assert listing.meanings(bare, {"rate": None}) == [""]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["redcers"], "kind='redcers': did you mean 'reducer'?"), (["reducers", "krm"], "did you mean 'krum'?")],
)
def test_what_is_not_there_is_refused(arguments, message, capsys):
    assert program.main(["configs", "list", *arguments]) == 2
    assert message in line_of(capsys)


def leaves(config, where="config"):
    for key, value in config.items():
        if key in schema.BLOCKS:
            yield from leaves(value, f"{where}.{key}")
        else:
            yield f"{where}.{key}"


@pytest.mark.parametrize("spec", ["configs/digits.py", "configs/bert_lamb.py", "configs/mnist_async_53.py"])
def test_help_for_a_config_has_all_its_keys(spec, capsys):
    assert train_py(f"--config={spec}", "--config.arrivals.name=mixture", "--helpconfig") == 0
    text = capsys.readouterr().out
    lines, meanings = text.splitlines()[::2], text.splitlines()[1::2]
    config = flags.load(spec, ["--config.arrivals.name=mixture"])
    assert sorted(line.partition("=")[0] for line in lines) == sorted(leaves(config))
    assert "config.arrivals.probability=0.01" in text and "float in (0, 1]" in text
    said_of = dict(zip((line.partition("=")[0] for line in lines), meanings, strict=True))
    assert said_of["config.num_workers"] == "    number of workers W, independent of the hardware."
    assert "config.train_steps" in said_of and all(meaning.startswith("    ") for meaning in meanings)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("learning_rate", "config.optimizer.learning_rate"),
        ("optimizer.num_workers", "config.num_workers"),
        ("reducer.momentum", "config.optimizer.momentum"),
        ("learningrate_scaling", "'learning_rate_scaling'"),
    ],
)
def test_a_key_in_the_wrong_place_is_found(key, meant):
    with pytest.raises(ConfigError, match=f"^config.{key}: unknown key; did you mean {meant}\\?$"):
        flags.load("configs/digits.py", [f"--config.{key}=1"])


def test_a_long_list_ends_with_how_many_more_there_are():
    with pytest.raises(ConfigError, match=r"allowed: adacons, .*, and \d+ more$"):
        flags.load("configs/digits.py", ["--config.reducer.name=!"])
