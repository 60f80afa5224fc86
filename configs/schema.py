"""What a config may say: the signature is the schema.

The keys of a config are the parameters of ``experiment``. A block with a ``name`` (model, reducer, ...) is a union: its
other keys are the parameters of the function that the name stands for. Annotations give types and ranges, defaults
give defaults, and a parameter without a default is a key that must be given.
"""

import difflib
import importlib
import inspect
import types
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal

from ml_collections import ConfigDict, config_dict

import reducers
from configs import annotations
from parallel import Lanes, Lift
from reducers import blocks
from runs.errors import ConfigError, in_block
from training.nonfinite import OnNonfinite

Parameters = dict[str, inspect.Parameter]
Count = Annotated[int, "[1, 2147483647]"]  # what JAX counts with has 32 bits
Workers = Annotated[int, "[1, 65536]"]
Duration = Annotated[float, "(0, inf)"]


# block -> its module, whose lookup(name) has the block's keys as parameters, but for those in GIVEN.
BLOCKS: dict[str, str] = {
    "accumulation": "optim.accumulation",
    "arrivals": "reducers.arrivals",
    "communication": "reducers.communication",
    "data": "data.sources",
    "loss_scaling": "optim.loss_scaling",
    "model": "models",
    "optimizer": "optim.optimizers",
    "reducer": "reducers",
    "schedule": "optim.schedules",
    "server": "asynchronous.modes",
    "task": "models.tasks",
}


def experiment(
    *,
    model: Mapping,
    data: Mapping,
    optimizer: Mapping,
    schedule: Mapping = types.MappingProxyType({"name": "constant"}),
    reducer: Mapping = types.MappingProxyType({"name": "mean"}),
    arrivals: Mapping = types.MappingProxyType({"name": "none"}),
    server: Mapping = types.MappingProxyType({"name": "synchronous"}),
    task: Mapping = types.MappingProxyType({"name": "classification"}),
    accumulation: Mapping = types.MappingProxyType({"name": "micro_batches"}),
    loss_scaling: Mapping = types.MappingProxyType({"name": "none"}),
    communication: Mapping = types.MappingProxyType({"name": "full"}),
    seed: Annotated[int, "[0, 4294967295]"] = 0,
    num_workers: Workers = 8,
    batch_size_per_worker: Count = 32,
    train_steps: Count | None = None,
    train_epochs: Duration | None = None,
    log_every_steps: Count | None = None,
    log_every_epochs: Duration | None = None,
    eval_every_steps: Count | None = None,
    eval_every_epochs: Duration | None = None,
    checkpoint_every_steps: Count | None = None,
    checkpoint_every_epochs: Duration | None = None,
    reducer_on: Literal["gradients", "updates"] = "gradients",
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = "none",
    clip_norm: Annotated[float, "(0, inf)"] | None = None,
    ema_decay: Annotated[float, "[0, 1)"] | None = None,
    on_nonfinite: OnNonfinite = "stop",
    init_from: str = "",
    lift: Lift = "pmap",
    lanes: Lanes = "auto",
    keep_checkpoints: Count = 2,
    eval_batch_size: Count = 1000,
) -> ConfigDict:
    """The whole experiment, as a ConfigDict; durations as steps or as epochs, exactly one of the two.

    Args:
      model: block; the network.
      data: block; the data set.
      optimizer: block; any optax optimizer, with ``learning_rate`` the peak rate.
      schedule: block; the learning rate as a factor of its peak.
      reducer: block; how the workers' gradients become one.
      arrivals: block; who is late, and by how much, on the simulated clock.
      server: block; whether workers wait for each other.
      task: block; the loss.
      accumulation: block; a worker's batch in parts: gradients of micro-batches, or local steps.
      loss_scaling: block; for gradients in float16.
      communication: block; the precision in which updates are sent.
      seed: of parameters, order of examples, dropout and augmentation.
      num_workers: W, independent of the hardware.
      batch_size_per_worker: B, examples of one worker and step.
      train_steps: length of the run; an epoch is one pass over the examples that are trained on.
      train_epochs: the same in epochs.
      log_every_steps: between records of training.
      log_every_epochs: the same in epochs.
      eval_every_steps: between evaluations, on what ``data.evaluate_on`` names; the last step is always evaluated.
      eval_every_epochs: the same in epochs.
      checkpoint_every_steps: between checkpoints; the last step is always saved.
      checkpoint_every_epochs: the same in epochs.
      reducer_on: reduce gradients, then one optimizer step; or updates, of optimizers local to each worker.
      learning_rate_scaling: factor on the rate: 1, W or its root; with N required of W = N + b workers, of N.
      clip_norm: largest global norm of a worker's gradient, before the reduction.
      ema_decay: of the moving average of the parameters that is evaluated; none evaluates the parameters.
      on_nonfinite: what to do about a loss or gradient that is not finite: stop, with the state before it saved; skip
        the step; or ignore it.
      init_from: folder of a run whose parameters this one begins with; all else begins anew.
      lift: how devices are mapped.
      lanes: how the local half goes over the workers of one device.
      keep_checkpoints: how many of the last ones to keep, the best one aside.
      eval_batch_size: examples per call when evaluating, over all devices.

    >>> experiment(model={"name": "mlp"}, data={"name": "digits"}, optimizer={"name": "sgd"}).num_workers
    8
    """
    return ConfigDict({k: dict(v) if isinstance(v, Mapping) else v for k, v in locals().items()})


def constructor(block: str, name: Any) -> tuple[Callable, frozenset[str]]:
    """Returns what a block's name stands for, and the parameters that are not config keys."""
    module = importlib.import_module(BLOCKS[block])
    if not isinstance(name, str):
        raise ConfigError(f"config.{block}.name={name!r}: must be the name of a {block}")
    try:
        return module.lookup(name), module.GIVEN
    except ValueError as error:
        raise ConfigError(f"config.{block}.{error}") from None


def parameters(function: Callable, *, given: frozenset[str] = frozenset()) -> Parameters:
    """Returns the parameters of ``function`` that are config keys."""
    return {
        p.name: p
        for p in inspect.signature(function, eval_str=True).parameters.values()
        if p.name not in given and p.name != "name" and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }


def block_parameters(block: str, name: Any) -> Parameters:
    """Returns the keys of a block but for ``name``: the parameters of what the name stands for."""
    function, given = constructor(block, name)
    return parameters(function, given=given)


def same_keys(block: str, old: Any, new: Any) -> bool:
    """Tells whether two names of a block stand for the same function, as those of image sets do."""
    return old == new or (old is not None and constructor(block, old)[0] is constructor(block, new)[0])


def complete(config: ConfigDict, *, promised: Collection[str] = ()) -> ConfigDict:
    """Returns the config with every key of its schema: defaults filled in, optional keys as typed placeholders.

    Args:
      config: a config as a file has it.
      promised: dotted keys that will be set after this, and so may be missing.

    Raises:
      ConfigError: for a key that the schema lacks, or a key without a default that is missing.
    """
    top = parameters(experiment)
    filled = _complete(config, {k: p for k, p in top.items() if k not in BLOCKS}, "config", allowed=top)
    for block in BLOCKS:
        if block not in config:
            default = top[block].default
            if default is inspect.Parameter.empty:
                raise ConfigError(f"config.{block}: missing; it must be a block with a name")
            config = ConfigDict({**config, block: dict(default)})
        if not isinstance(config[block], ConfigDict):
            raise ConfigError(f"config.{block}={config[block]!r}: must be a block, such as {{'name': ...}}")
        name = config[block].get("name")
        if name is None:
            raise ConfigError(f"config.{block}.name: missing")
        will_come = {key.removeprefix(f"{block}.") for key in promised}
        filled[block] = _complete(config[block], block_parameters(block, name), f"config.{block}", promised=will_come)
        filled[block]["name"] = name
    return ConfigDict(filled)


def _complete(
    given: Mapping,
    schema: Parameters,
    where: str,
    *,
    allowed: Mapping | None = None,
    promised: Collection[str] = (),
) -> dict[str, Any]:
    for key in given:
        if key not in (allowed or schema) and not (allowed is None and key == "name"):
            raise ConfigError(unknown(f"{where}.{key}", [f"{where}.{k}" for k in (allowed or schema)]))
    filled = {}
    for key, parameter in schema.items():
        value = given.get(key, parameter.default)
        if value is inspect.Parameter.empty and key not in promised:
            raise ConfigError(f"{where}.{key}: missing; must be {annotations.describe(parameter.annotation)}")
        if value is inspect.Parameter.empty:
            filled[key] = config_dict.placeholder(annotations.plain_type(parameter.annotation))
            continue
        if annotations.plain_type(parameter.annotation) is float and type(value) is int and blocks.fits(value):
            value = float(value)
        if annotations.is_optional(parameter.annotation):
            reference = config_dict.placeholder(annotations.plain_type(parameter.annotation))
            if value is not None and annotations.matches(parameter.annotation, value):
                reference.set(value)
                value = None
            filled[key] = reference if value is None else value
        else:
            filled[key] = value
    return filled


def validate(config: ConfigDict) -> None:
    """Checks every value of a complete config, and that of each duration exactly one form is given.

    Raises:
      ConfigError: one line with the key, the value and what is allowed.
    """
    top = parameters(experiment)
    for key, parameter in top.items():
        schema = block_parameters(key, config[key].name) if key in BLOCKS else {key: parameter}
        holder, where = (config[key], f"config.{key}") if key in BLOCKS else (config, "config")
        for name, p in schema.items():
            if not annotations.matches(p.annotation, holder[name]):
                raise ConfigError(f"{where}.{name}={holder[name]!r}: must be {annotations.describe(p.annotation)}")
    with in_block("reducer"):
        reducers.check(config.reducer)  # and the reducers inside it
    for steps in (key for key in top if key.endswith("_steps")):
        epochs = twin(steps)
        given = [k for k in (steps, epochs) if config[k] is not None]
        if len(given) != 1:
            values = ", ".join(f"config.{k}={config[k]!r}" for k in (steps, epochs))
            raise ConfigError(f"{values}: give exactly one of the two")


def twin(key: str) -> str | None:
    """Returns the other form of a duration: ``train_steps`` for ``train_epochs``, None for other keys."""
    for one, other in (("_steps", "_epochs"), ("_epochs", "_steps")):
        if key.endswith(one):
            return key.removesuffix(one) + other
    return None


def unknown(path: str, allowed: list[str]) -> str:
    """The message for a key that does not exist."""
    close = difflib.get_close_matches(path, allowed, n=1)
    names = ", ".join(sorted(a.rpartition(".")[2] for a in allowed)) or "none"
    return f"{path}: unknown key; " + (f"did you mean {close[0]}?" if close else f"allowed: {names}")
