"""Careless flags: whatever is changed in a config, it would run, or one line and exit code 2, at once, nothing written.

Commands go as far as a run is ready to compile: all that a config names is built, workers are laid out.
"""

import faulthandler
import os
import pathlib
import re
import signal
import sys
import time

import jax
import numpy as np
import pytest

import models
import optim
import reducers
import train
from asynchronous import settings
from configs import flags, schema
from data import sources
from models import tasks
from parallel import Layout
from reducers import arrivals, registry
from reducers.wrappers import communication
from tests.in_process import DIGITS, keys, train_py
from tests.test_refusals import listing

BASES = {
    "digits": (),
    "asynchronous": keys("arrivals.name=lognormal server.name=asynchronous"),
    "backups": keys("arrivals.name=lognormal reducer.name=backup_workers reducer.num_required=6"),
    "adasum": keys("""
        reducer.name=adasum reducer_on=updates
        optimizer.name=adam optimizer.learning_rate=0.001
    """),
}
FLAGS_OF_THE_RUN = (
    *("workdir", "num_devices", "fresh", "evaluate_only", "checkpoint", "record_times", "dry_run"),
    *("dry_run_compile", "config"),
)
NAMES = {
    "accumulation": ("micro_batches", "local_steps"),
    "arrivals": tuple(arrivals.ARRIVALS),
    "communication": tuple(communication.COMMUNICATIONS),
    "data": (*sources.SOURCES, "digits", "mnist"),
    "loss_scaling": ("none", "dynamic"),
    "model": tuple(models.MODELS),
    "optimizer": ("sgd", "adam", "lamb", "lars", "chain", "sm3", "adafactor"),
    "reducer": tuple(reducers.REDUCERS),
    "schedule": tuple(optim.schedules.SCHEDULES),
    "server": tuple(settings.SETTINGS),
    "task": tuple(tasks.TASKS),
}
NUMBERS = (
    *("0", "-0.0", "-1", "1e-308", "1e-45", "1e308", "1e400", "nan", "inf", "-inf", "NaN"),
    *("2147483647", "2147483648", "-2147483649", "4294967295", "9223372036854775808", "1" + "0" * 30, "9" * 5000),
)
OTHERS = (
    *("", "None", "True", "0x10", "1_000", "()", "(0,)", "(-1,)", "(nan,)", "(1e400,)", "({},)", "{}", "{'name': 3}"),
    *("(2147483648,)", "(" + "1" * 400 + ",)", "[" * 3000, "((1, 2), 3)", "{'name': 'lognormal', 'sigma': 1e999}"),
    *("lambda: 0", "__import__('os')", "../../etc/passwd", "/proc/self/mem", "~nobody-here/x", "x" * 100_000, "a\nb"),
    *("\x1b[2J", "ключ", "🙂", "\ud800", "%s{0}", "a=b=c", "float32", "sum", "mean", "adasum", "gradients", "nul\0"),
)
LONGEST_LINE, MOST_SECONDS = 400, 10


def leaves(base: str) -> list[str]:
    """The keys of a config that have no keys of their own."""
    config = flags.load(DIGITS, BASES[base])
    found = []
    for key in registry.parameters(schema.experiment):
        inner = schema.block_parameters(key, config[key].name) if key in schema.BLOCKS else None
        found += [key] if inner is None else [f"{key}.{name}" for name in inner]
    return found


def mutated(rng: np.random.Generator, known: list[str]) -> list[str]:
    """One to three changes of a command line."""

    def one(options):
        return options[int(rng.integers(len(options)))]

    def key() -> str:
        return one(known)

    def misspelt() -> str:
        word, at = key(), int(rng.integers(100))
        at %= len(word)
        return word[:at] + one(["", "x", ".", word[at] * 2, "é", " "]) + word[at + 1 :]

    def of_another_block() -> str:
        return f"{one(list(NAMES))}.{key().split('.')[-1]}"

    def renamed() -> str:
        block = one(list(NAMES))
        return f"--config.{block}.name={one(NAMES[one([block, block, one(list(NAMES))])])}"

    def noise() -> str:
        return "".join(chr(int(c)) for c in rng.integers(1, 0x3000, int(rng.integers(1, 40))))

    kinds = [
        lambda: f"--config.{key()}={one(NUMBERS)}",
        lambda: f"--config.{key()}={one(NUMBERS)}",
        lambda: f"--config.{key()}={one(OTHERS)}",
        lambda: f"--config.{key()}={noise()}",
        renamed,
        renamed,
        lambda: f"--config.{misspelt()}={one(NUMBERS)}",
        lambda: f"--config.{of_another_block()}={one(NUMBERS + OTHERS)}",
        lambda: f"--config.{key()}.{one(['name', 'x', 'x.y.z', ''])}={one(OTHERS)}",
        lambda: f"--config.{key()}",  # its value is the next flag, or nothing
        lambda: f"--{one(FLAGS_OF_THE_RUN)}={one(NUMBERS + OTHERS)}",
        lambda: f"--{one(['', '-', 'no', 'noconfig.', 'config.', 'config..', 'config='])}{noise()}",
    ]
    changes = [one(kinds)() for _ in range(int(rng.choice([1, 1, 2, 3])))]
    return [*changes, changes[0]] if rng.random() < 0.1 else changes  # a flag twice


class TooSlow(BaseException):
    """Not an Exception, which a program might catch."""


def attempt(arguments, capsys, monkeypatch, *, folder: pathlib.Path) -> tuple[int, str]:
    """Runs a command up to where it would compile; returns its exit code and what it said, and checks its promises."""

    def describe(setup, *, num_devices=None, **_):
        Layout.of(setup.config.num_workers, num_devices=num_devices, devices=8 * jax.devices()[:1])
        return "it would run"

    def give_up(*_):
        faulthandler.dump_traceback()
        raise TooSlow

    monkeypatch.setattr(train.dry_run, "describe", describe)
    monkeypatch.setattr(train.runs, "open_run", lambda workdir, config, **_: pytest.fail("a run was opened"))
    before = (listing(folder), os.environ.copy())
    began = time.perf_counter()
    old = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(MOST_SECONDS)
    try:
        code = train_py(*arguments)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
    assert time.perf_counter() - began < MOST_SECONDS
    said = capsys.readouterr()
    assert (listing(folder), os.environ.copy()) == before, "something was written"
    if code == 0:
        assert said.out in ("it would run\n", "") and not said.err
    else:
        assert code == 2 and said.out == "" and len(said.err.splitlines()) == 1 and said.err.endswith("\n"), said
        assert 3 <= len(said.err) <= LONGEST_LINE + 1 and said.err[:-1].isprintable(), said.err
    return code, said.err


@pytest.mark.parametrize("base", BASES)
def test_every_number_of_every_key_is_taken_or_refused_by_its_name(base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    keys_of_base, codes = leaves(base), []
    if base != "digits":  # those that the digits have not
        keys_of_base = [*sorted({*keys_of_base} - {*leaves("digits")}), "num_workers"]
    for key in keys_of_base:
        for value in NUMBERS:
            arguments = (f"--config={DIGITS}", *BASES[base], f"--config.{key}={value}", "--dry_run")
            code, said = attempt(arguments, capsys, monkeypatch, folder=tmp_path)
            # A refusal may name another key: that of a length for a duration below a step, that of a rule for too few
            # workers, and the arrival model, as in tests/test_refusals.py, for seconds that several options make.
            is_of_the_model = re.match(r"config\.arrivals\.name='\w+': gives seconds\[", said) is not None
            is_told = key in said or "steps of" in said or "num_workers" in key
            is_told = is_told or (key.startswith("arrivals.") and is_of_the_model)
            assert code == 0 or is_told, (key, value, said)
            codes.append(code)
    assert len(codes) >= 3 * len(NUMBERS) and {0, 2} == set(codes)


@pytest.mark.parametrize("seed", [1, 0, 2, 3])
def test_mutations(seed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng, codes = np.random.default_rng(seed), []
    base = list(BASES)[seed]
    known = leaves(base)
    for _ in range(100):
        arguments = [f"--config={DIGITS}", *BASES[base], *mutated(rng, known)]
        try:
            codes.append(attempt([*arguments, "--dry_run"], capsys, monkeypatch, folder=tmp_path)[0])
        except BaseException as error:
            error.add_note(f"{arguments}"[:2000])
            raise
    assert codes.count(0) >= 2 and codes.count(2) >= 50


def test_what_a_config_file_may_hold(tmp_path, monkeypatch, capsys):
    """Python has numbers and objects that no flag can give."""
    monkeypatch.chdir(tmp_path)
    values = ("10**400", "-10**400", "float('nan')", "10**30", "2**32", "object()", "[[]]", "b'x'", "1j", "lambda: 0")
    path = tmp_path / "config.py"
    for key in ("seed", "num_workers", "train_steps", "clip_norm", "optimizer.learning_rate", "model.hidden_sizes"):
        for value in values:
            path.write_text(
                f"import runpy\ndef get_config(variant=''):\n"
                f"  config = runpy.run_path({DIGITS!r})['get_config']()\n"
                f"  with config.unlocked(), config.ignore_type():\n"
                f"    config['train_epochs'] = None if {key!r} == 'train_steps' else config.train_epochs\n"
                f"    config.update_from_flattened_dict({{{key!r}: {value}}})\n  return config\n"
            )
            with monkeypatch.context() as patch:
                patch.setattr(sys, "dont_write_bytecode", True)
                code, said = attempt([f"--config={path}", "--dry_run"], capsys, monkeypatch, folder=tmp_path)
            if key == "optimizer.learning_rate" and value in ("10**30", "2**32"):
                assert code == 0  # which a float holds
            else:
                assert code == 2 and (f"config.{key}" in said or "OverflowError" in said), (key, value, said)
