"""Files and flags: blocks as unions, durations in two units, defaults from signatures, in any order of flags."""

import itertools
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import absl.flags
import pytest

from configs import flags, schema
from reducers import registry
from runs import identity
from runs.errors import ConfigError
from tests import ROOT
from tests.in_process import DIGITS, keys
from tests.refused import refused
from training.setup import make_setup


def test_every_key_of_every_block_is_in_the_config():
    config = flags.load(DIGITS).to_dict()
    assert set(config) == set(registry.parameters(schema.experiment))
    for block in schema.BLOCKS:
        assert set(config[block]) == {"name", *schema.block_parameters(block, config[block]["name"])}


CHAIN = "optimizer.name=chain optimizer.learning_rate=1"
WARM = "schedule.warmup_steps=5"
# (config file, flags, what the config has, what is said of it)
FROM_FLAGS = [
    ("digits", "optimizer.name=sgd", {"optimizer.momentum": 0.9}, []),  # the same name keeps the block
    ("digits", "optimizer.nesterov=true", {"optimizer.nesterov": True}, []),  # a key that the file lacks
    ("digits", "clip_norm=1", {"clip_norm": 1.0}, []),
    *(("digits", f"ema_decay={none}", {"ema_decay": None}, []) for none in ("None", "none")),
    (
        "digits",
        "train_steps=7 eval_every_epochs=2",  # a duration in one unit replaces the other
        {"train_steps": 7, "train_epochs": None, "eval_every_steps": None, "eval_every_epochs": 2.0},
        ["config.train_steps=7 replaces train_epochs=60"],
    ),
    ("digits", f"schedule.name=warmup_cosine {WARM}", {"schedule.warmup_steps": 5}, None),
    ("cifar10", WARM, {"schedule.warmup_steps": 5, "schedule.warmup_epochs": None}, None),
    ("digits", "model.hidden_sizes=(3,4)", {"model.hidden_sizes": (3, 4)}, []),
    ("digits", "model.hidden_sizes=()", {"model.hidden_sizes": ()}, []),
    ("digits", f"{CHAIN} optimizer.transforms=({{'name':'sgd'}},)", {"optimizer.transforms.0.name": "sgd"}, None),
    *(
        (
            "digits",
            " ".join(order),  # a new name replaces the block, in any order of flags
            {"optimizer.name": "adam", "optimizer.learning_rate": 0.001, "optimizer.b1": 0.8, "optimizer.b2": 0.999},
            ["config.optimizer: adam replaces sgd; gone: learning_rate, momentum"],
        )
        for order in itertools.permutations(
            ["optimizer.name=adam", "optimizer.learning_rate=0.001", "optimizer.b1=0.8"]
        )
    ),
]


@pytest.mark.parametrize(("file", "given", "expected", "said"), FROM_FLAGS)
def test_flags_change_a_config(file, given, expected, said):
    notes = []
    config = flags.load(f"{ROOT}/configs/{file}.py", keys(given), report=notes.append)
    for key, value in expected.items():
        found = config
        for part in key.split("."):
            found = found[int(part) if part.isdecimal() else part]
        assert found == value and type(found) is type(value), key
    assert said is None or notes == said
    assert config.optimizer.name == "sgd" or "momentum" not in config.optimizer


def test_both_forms_of_a_flag():
    others, overrides = flags.split(
        ["x", "--config=a.py", "--config.seed", "3", "-config.num_workers=4", "--", "--config.z=1"]
    )
    assert others == ["x", "--config=a.py", "--", "--config.z=1"]
    assert overrides == ["--config.seed=3", "-config.num_workers=4"]
    with pytest.raises(ConfigError, match=r"--config.optimizer.nesterov: must be --config.key=value"):
        flags.load(DIGITS, ["--config.optimizer.nesterov"])


# ---- flag files ------------------------------------------------------------------------------------------------------


def test_a_flag_file_stands_for_its_lines(tmp_path, monkeypatch):
    values = flag_values()
    (tmp_path / "inner").write_text(f"--config={DIGITS}\n--config.model.hidden_sizes=(3, 4)\n")
    (tmp_path / "outer").write_text("# a comment\n\n--config.seed=3\n--flagfile=inner\n  --config.num_workers=2\n")
    monkeypatch.chdir(tmp_path)
    config, _ = flags.parse(["x", "--config.seed=1", "--flagfile", "outer", "--config.num_workers=4"], known=values)
    assert (config.seed, config.num_workers, config.model.hidden_sizes) == (3, 4, (3, 4))  # the last one of a key holds


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "^flagfile: .*Unable to open flagfile.*No such file"),
        (b"--config.sead=1\n", "^config.sead: unknown key; did you mean 'seed'"),
        (b"--config.seed=x\n", "^config.seed='x': must be int"),
        (b"--confg=x\n", "confg"),
        (b"seed=1\n", "'seed=1': is not a flag"),
        (b"--config.seed=\xff\n", "^flagfile: .*must be a text file of flags"),
        (b"--flagfile=there\n", "^flagfile: .*No such file"),
    ],
)
def test_broken_flag_files(content, message, tmp_path):
    if content is not None:
        (tmp_path / "flags").write_bytes(content)
    given = ["x", f"--config={DIGITS}", f"--flagfile={tmp_path}/flags"]
    check_refused(message, given, known=flag_values(), load=flags.parse)


def check_refused(message, *given, load=flags.load, **options):
    with refused(ConfigError, message):
        load(*given, **options)


def flag_values():
    """Flags of a command, as train.py's."""
    values = absl.flags.FlagValues()
    absl.flags.DEFINE_string("config", DIGITS, "", flag_values=values)
    absl.flags.DEFINE_string("flagfile", "", "", flag_values=values)
    return values


def test_config_is_locked():
    config = flags.load(DIGITS)
    with pytest.raises((AttributeError, KeyError)):
        config.surprise = 1


BARE = "from ml_collections import ConfigDict\ndef get_config(v=''):\n  return ConfigDict({{{}}})"
# A file that is right but for one line.
IN_FILE = """
from ml_collections.config_dict import required_placeholder
from configs import digits

def get_config(variant=""):
    config = digits.get_config()
    with config.ignore_type():
        {}
    return config
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_config(variant=''):\n  return {'seed': 1}", "not a ConfigDict"),
        ("def get_config(variant=''):\n  return 1 / 0", "ZeroDivisionError"),
        ("def get_config(variant='')\n  return 1", "SyntaxError"),
        ("from configs.schema import experiment\ndef get_config(v=''):\n  return experiment(modell={})", "modell"),
        (BARE.format("'data': {'name': ''}"), "config.model: missing"),
        (BARE.format("'data': {'name': ''}, 'model': 3, 'optimizer': {'name': ''}"), "config.model=3: must be a block"),
        (BARE.format("'data': {'name': 'digits'}, 'modle': {'name': 'mlp'}"), "config.modle: unknown key"),
        (IN_FILE.format("config[3] = 4"), r"^config='.*broken.py': config: each key must be a str$"),
        (IN_FILE.format("config.model = {'name': 'mlp', 3: 4}"), "config.model: each key must be a str"),
        (IN_FILE.format("config.seed = required_placeholder(int)"), "^config='.*: RequiredValueError"),
        *(
            (IN_FILE.format(line), f"^config='.*broken.py': config.{key}: is a reference to another key")
            for line, key in (
                ("config.train_steps = config.get_ref('num_workers') * 50", "train_steps"),
                ("config.eval_batch_size = config.get_ref('num_workers')", "num_workers"),
                ("config.eval_batch_size = config.get_oneway_ref('num_workers')", "eval_batch_size"),
                ("config.model.hidden_sizes = (config.get_ref('num_workers') * 2, 3)", "model.hidden_sizes"),
                ("config.outer = config.get_ref('optimizer')", "outer"),
            )
        ),
    ],
)
def test_broken_files(text, message, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(text)
    check_refused(message, str(path))


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (int, [0, -3, -(2**31), 2**31 - 1], [True, 1.0, "1", None, -(2**31) - 1, 2**31]),
        (float, [1, 1.5], [float("nan"), float("inf"), True, "1"]),
        (bool, [True], [1, None, "true"]),
        (int | None, [None, 3], [2.5]),
        (tuple[int, ...], [(), (1, 2), [3]], [(1, "a"), 3]),
        (tuple[int, float], [(1, 2.0)], [(1,), (1.5, 1)]),
        (Literal["a", "b"], ["a"], ["c", None]),
        (Annotated[float, "(0, 1]"], [1.0, 0.5], [0.0, 1.01, float("nan")]),
        (Annotated[int, "[1, inf)"] | None, [1, None, 2**31 - 1], [0, 2**31]),
        (Annotated[int, "[0, 4294967295]"], [2**32 - 1], [2**32]),
        (Mapping | str, [{}, "name"], [3, None]),
        (complex | None, [1j, None], ["1j"]),
        (Any, [1j, None, "x"], [float("nan")]),
    ],
)
def test_types_and_ranges(annotation, good, bad):
    assert all(registry.matches(annotation, value) for value in good)
    assert not any(registry.matches(annotation, value) for value in bad)


@pytest.mark.parametrize("block", schema.BLOCKS)
def test_defaults_are_allowed_values(block):
    for name in schema.BLOCKS[block]:
        for key, parameter in schema.BLOCKS[block].parameters(name).items():
            default = parameter.default
            assert default is parameter.empty or registry.matches(parameter.annotation, default), key


def scaled(*, base: int, factor: Annotated[float, "(0, inf)"] = 1.0, sizes: tuple[int, ...] = ()):
    if factor > 100:
        raise ValueError(f"factor={factor}: too large")
    return base * factor, sizes


def unscaled():
    return "unscaled"


REGISTRY = registry.Registry(
    {"scaled": scaled, "unscaled": unscaled}, given={"base"}, refused={"log": "has no inverse"}
)


def test_a_constructor_gets_the_given_values_that_it_has_parameters_for():
    assert REGISTRY.build({"name": "scaled", "factor": 3, "sizes": [1, 2]}, base=2) == (6.0, (1, 2))
    assert REGISTRY.build("unscaled", base=2) == "unscaled"
    assert REGISTRY.make("scaled", base=2, factor=0.5) == (1.0, ())
    assert REGISTRY.check("scaled") == {"factor": 1.0, "sizes": ()}


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("scalde", "combine.name='scalde': unknown name; did you mean 'scaled'"),
        ("mean", "combine.name='mean': unknown name; allowed: scaled, unscaled"),
        ("log", "combine.name='log': has no inverse"),
        ({"name": ["scaled"]}, r"combine.name=\['scaled'\]: unknown name"),
        ({"factor": 1.0}, "combine.name: missing"),
        ({"name": "scaled", "base": 1}, "combine.base: unknown key; allowed: factor, sizes"),
        ({"name": "scaled", "factor": 0}, r"combine.factor=0: must be float in \(0, inf\)"),
        ({"name": "scaled", "factor": 101}, "combine.factor=101.0: too large"),
    ],
)
def test_a_block_is_refused_where_it_stands(block, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        REGISTRY.build(block, where="combine", base=1)


# ---- the config of a run ---------------------------------------------------------------------------------------------


def test_the_saved_config_of_a_run_is_a_config_file(tmp_path):
    whole = flags.load(DIGITS, keys("reducer.name=adasum model.hidden_sizes=(8,4)"))
    saved = tmp_path / "config.json"
    saved.write_text(json.dumps(whole.to_dict()))
    assert identity.fingerprint(flags.load(str(saved)).to_dict()) == identity.fingerprint(whole.to_dict())
    one, other = (make_setup(config).worker_shapes.params for config in (flags.load(str(saved)), whole))
    assert one.keys() == other.keys()
    assert flags.load(str(saved), keys("reducer.name=sum seed=3")).reducer.name == "sum"


@pytest.mark.parametrize(
    ("content", "spec", "message"),
    [
        ("{", "{}", "is not JSON"),
        ("[]", "{}", "must be an object"),
        ("{}", "{}:smoke", "has no variant 'smoke'"),
        ('{"speed": 1}', "{}", "config.speed: unknown key"),
        (None, "{}", r"cannot be read \(No such file"),
    ],
)
def test_what_is_no_saved_config(content, spec, message, tmp_path):
    saved = tmp_path / "config.json"
    if content is not None:
        saved.write_text(content)
    check_refused(message, spec.format(saved))
