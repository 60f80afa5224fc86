"""What ``python -m configs list`` and ``train.py --helpconfig`` print, against the registries and the schema."""

import pytest

from configs import __main__ as program
from configs import flags, listing, schema
from runs.errors import ConfigError
from tests.in_process import train_py
from tests.refused import line_of

NAMES = [(kind, name) for kind, names in listing.KINDS.items() for name in names]


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
    about, *keys = said(capsys, kind, name)
    assert about
    assert [line.split()[0] for line in keys] == [*listing.KINDS[kind].parameters(name)]
    assert all("default " in line or line.endswith("must be given") for line in keys)


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
    lines = capsys.readouterr().out.splitlines()
    config = flags.load(spec, ["--config.arrivals.name=mixture"])
    assert sorted(line.partition("=")[0] for line in lines) == sorted(leaves(config))
    assert "config.arrivals.probability=0.01" in "".join(lines) and "float in (0, 1]" in "".join(lines)


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
