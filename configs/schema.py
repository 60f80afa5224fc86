"""The keys of a config: the signature is the schema.

The keys of a config are the parameters of ``experiment``. A block (model, reducer, ...) has a ``name``; its other keys
are the parameters of the constructor with this name. Annotations give types and ranges, defaults give defaults, and a
parameter without a default is a key that must be given.
"""

import inspect
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from ml_collections import ConfigDict

from asynchronous.settings import SETTINGS
from data.shares import SPLITS
from data.sources import SOURCES
from models import MODELS
from models.tasks import TASKS
from optim.optimizers import OPTIMIZERS
from optim.outer import OUTERS
from optim.schedules import SCHEDULES
from parallel import DeviceMapping, Lanes, PartitionOf
from reducers import REDUCERS, registry
from reducers.arrivals import ARRIVALS
from reducers.registry import Parameters, Registry
from reducers.wrappers.communication import COMMUNICATIONS
from runs.errors import ConfigError, in_block
from training.steps import late_workers
from training.steps.gradient_wrappers import ACCUMULATIONS, LOSS_SCALINGS, Weigh
from training.steps.late_workers import LateWorkers
from training.steps.nonfinite import OnNonfinite

Count = Annotated[int, "[1, 2147483647]"]  # JAX counts in 32 bits
Workers = Annotated[int, "[1, 65536]"]
Duration = Annotated[float, "(0, inf)"]


BLOCKS: dict[str, Registry] = {
    "accumulation": ACCUMULATIONS,
    "arrivals": ARRIVALS,
    "communication": COMMUNICATIONS,
    "data": SOURCES,
    "loss_scaling": LOSS_SCALINGS,
    "model": MODELS,
    "optimizer": OPTIMIZERS,
    "outer": OUTERS,
    "reducer": REDUCERS,
    "schedule": SCHEDULES,
    "server": SETTINGS,
    "split": SPLITS,
    "task": TASKS,
}


def _named(name: str) -> Mapping:
    return types.MappingProxyType({"name": name})


def experiment(
    *,
    model: Mapping,
    data: Mapping,
    optimizer: Mapping,
    schedule: Mapping = _named("constant"),
    reducer: Mapping = _named("mean"),
    arrivals: Mapping = _named("none"),
    late_workers: LateWorkers | None = None,
    server: Mapping = _named("synchronous"),
    task: Mapping = _named("classification"),
    accumulation: Mapping = _named("micro_batches"),
    loss_scaling: Mapping = _named("none"),
    communication: Mapping = _named("full"),
    outer: Mapping = _named("none"),
    split: Mapping = _named("shuffled"),
    flip_labels: tuple[int, ...] = (),
    seed: Annotated[int, "[0, 4294967295]"] = 0,
    num_workers: Workers = 8,
    batch_size_per_worker: Count = 32,
    devices_per_worker: Count = 1,
    partition: PartitionOf = "none",
    train_steps: Count | None = None,
    train_epochs: Duration | None = None,
    log_every_steps: Count | None = None,
    log_every_epochs: Duration | None = None,
    eval_every_steps: Count | None = None,
    eval_every_epochs: Duration | None = None,
    checkpoint_every_steps: Count | None = None,
    checkpoint_every_epochs: Duration | None = None,
    reducer_on: Literal["gradients", "updates"] = "gradients",
    weigh: Weigh = "workers",
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = "none",
    clip_norm: Annotated[float, "(0, inf)"] | None = None,
    ema_decay: Annotated[float, "[0, 1)"] | None = None,
    on_nonfinite: OnNonfinite = "stop",
    check_replicas_every_steps: Count | None = None,
    freeze: str = "",
    init_from: str = "",
    init_what: Literal["params", "shared"] = "params",
    init_only: str = "",
    schedule_from_step: Annotated[int, "[0, inf)"] = 0,
    mapping: DeviceMapping = "pmap",
    lanes: Lanes = "auto",
    lanes_at_once: Count | None = None,
    keep_checkpoints: Count = 2,
    eval_batch_size: Count = 1000,
) -> ConfigDict:
    """Returns an experiment as a ConfigDict. Each duration is in steps or in epochs; exactly one of the two is given.

    Epochs are rounded up to whole steps, and what happens every so many epochs happens at multiples of that many steps.

    Args:
      model: the network.
      data: the data set.
      optimizer: any optax optimizer; its ``learning_rate`` is the peak rate.
      schedule: the learning rate over the run, as a factor of its peak.
      reducer: how the workers' gradients are combined into one.
      arrivals: a model of how long each worker takes, in simulated seconds.
      late_workers: "finish": a worker that a step leaves out finishes its gradient first, as real workers do, and
        begins the next step late. "interrupt": it is interrupted, so that all begin each step together. None: "finish"
        if the reducer leaves workers out of steps.
      server: synchronous training, or asynchronous training with a parameter server or without one.
      task: the loss and its metrics.
      accumulation: how a worker splits its batch: gradients of micro-batches, or local optimizer steps.
      loss_scaling: keeps gradients in float16 from underflow and overflow.
      communication: how workers encode the updates that they send, in the innermost reducer.
      outer: with reducer_on="updates", an optimizer that takes the workers' combined progress as its gradient.
      split: whether each worker draws from all training examples, or from a share of its own.
      flip_labels: the indices of Byzantine workers, whose training examples have the label C - 1 - c in place of c, for
        labels 0 to C - 1; needs shares.
      seed: seed of parameters, order of examples, dropout and augmentation.
      num_workers: number of workers W, independent of the hardware.
      batch_size_per_worker: number of examples B in one worker's step.
      devices_per_worker: number of devices that compute each gradient of a worker together, each a part of its batch; a
        run may go on with another number. More than one needs mapping="shard_map".
      partition: what of a worker lies in parts on its devices: "none", "state" (of optimizers and of the reducer, with
        gradients and updates) or "parameters" (they too). A run may go on with another one.
      train_steps: length of the run; an epoch is one pass over the training examples.
      train_epochs: the same in epochs.
      log_every_steps: steps between records of training.
      log_every_epochs: the same in epochs.
      eval_every_steps: steps between evaluations on the split ``data.evaluate_on``; the last step is always evaluated.
      eval_every_epochs: the same in epochs.
      checkpoint_every_steps: steps between checkpoints; the last step is always saved.
      checkpoint_every_epochs: the same in epochs.
      reducer_on: "gradients" reduces gradients, which one optimizer then applies; "updates" reduces the updates of
        optimizers that are local to each worker.
      weigh: "workers" weighs all workers, and all micro-batches of a worker, the same; "count" weighs them by the
        number of examples, or of counted tokens, in their losses, so that the distribution over workers does not
        matter; "share" weighs workers by the number of examples in their shares, as FedAvg does.
      learning_rate_scaling: factor of the learning rate: 1, the number of workers, or its square root. With backup
        workers only the number of required ones counts; in asynchronous runs, that of the gradients of an update.
      clip_norm: largest global norm of a worker's gradient, applied before the reduction.
      ema_decay: decay of a moving average of the parameters, which is evaluated; None evaluates the parameters.
      on_nonfinite: treatment of a step whose loss or gradient is not finite: "stop" saves the state before it and ends
        the run, "skip" leaves it out, "ignore" applies it.
      check_replicas_every_steps: steps between comparisons of the devices' copies of the parameters and of all other
        shared state, bit for bit; None compares them only after the first call of each start.
      freeze: a regular expression; parameters whose names contain a match, such as "Embed_0/embedding", stay as they
        are and are not sent. "" freezes none.
      init_from: folder of a run; this run starts from its last checkpoint. The numbers of workers may differ.
      init_what: "params" takes the parameters at which that run is evaluated, and everything else starts anew; "shared"
        takes all that its workers share: the parameters, the optimizer's state and the moving average. Of each worker's
        own state, BatchNorm's statistics then start from their mean over the workers, the rest anew.
      init_only: a regular expression; only parameters whose names contain a match are taken, the others start anew. ""
        takes all.
      schedule_from_step: the step of the schedule at which this run begins, such as the other run's last one.
      mapping: how devices are mapped: pmap or shard_map.
      lanes: how one device computes the gradients of its workers.
      lanes_at_once: the most workers of one device that compute their gradients at once; groups of that size follow
        each other. None: as many as the device's memory allows.
      keep_checkpoints: number of latest checkpoints to keep, besides the best one.
      eval_batch_size: number of examples in one evaluation call, over all devices.

    >>> experiment(model={"name": "mlp"}, data={"name": "digits"}, optimizer={"name": "sgd"}).num_workers
    8
    """
    return ConfigDict({k: dict(v) if isinstance(v, Mapping) else v for k, v in locals().items()})


def block_parameters(block: str, name: Any) -> Parameters:
    """Returns the keys of a block except ``name``; raises ConfigError if no constructor has this name."""
    with in_block(block):
        return BLOCKS[block].parameters(name)


def same_keys(block: str, old: Any, new: Any) -> bool:
    """Returns whether two names of a block have the same constructor, as those of image sets do."""
    with in_block(block):
        return old == new or (old is not None and BLOCKS[block].find(old) is BLOCKS[block].find(new))


def parameter(config: ConfigDict, path: str) -> inspect.Parameter:
    """Returns the parameter of a dotted key.

    Args:
      config: a config with all blocks, each with its name.
      path: the key, such as ``reducer.num_required``.

    Raises:
      ConfigError: if there is no such key, or if it is the key of a whole block.
    """
    keys = registry.parameters(experiment)
    where = "config"
    head, dot, key = path.partition(".")
    if head in BLOCKS:
        if not dot:
            raise ConfigError(f"config.{head}: is a block; set config.{head}.name and its other keys")
        name = inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, annotation=str)
        keys = {"name": name, **block_parameters(head, config[head].get("name"))}
        where = f"config.{head}"
    elif head in keys and dot:
        raise ConfigError(f"config.{path}: unknown key; config.{head} is not a block")
    else:
        key = head
    if key not in keys:
        elsewhere = _places_of(path.rpartition(".")[2], config)
        meant = f"did you mean {' or '.join(elsewhere)}?" if elsewhere else registry.suggest(key, keys)
        raise ConfigError(f"{where}.{key}: unknown key; {meant}")
    return keys[key]


def _places_of(key: str, config: ConfigDict) -> list[str]:
    """Returns the dotted keys that end in ``key``, to suggest them for a key given in a wrong place."""
    places = {"": registry.parameters(experiment)}
    places |= {f"{block}.": block_parameters(block, config[block].get("name")) for block in BLOCKS}
    return [f"config.{block}{key}" for block, keys in places.items() if key in keys]


def with_blocks(config: ConfigDict) -> ConfigDict:
    """Returns the config with all blocks; those that it lacks have their defaults.

    Raises:
      ConfigError: if a key is unknown, a block without a default is missing, or a value is not a block.
    """
    keys = registry.parameters(experiment)
    values = _checked({key: config[key] for key in config if key in BLOCKS or key not in keys}, keys)
    return ConfigDict({**config, **{block: dict(values[block]) for block in BLOCKS}})


def complete(config: ConfigDict) -> ConfigDict:
    """Returns the config with all keys of its schema, each value checked.

    Raises:
      ConfigError: one line, if a key is unknown or missing, if a value has a wrong type or range, or if a duration is
        not given in exactly one form.
    """
    keys = registry.parameters(experiment)
    filled = _checked(config, keys)
    for block, registry_of_block in BLOCKS.items():
        with in_block(block):
            values = registry_of_block.check(filled[block])
        filled[block] = {**values, "name": filled[block]["name"]}
    completed = ConfigDict(filled)
    for steps in keys:
        epochs = twin(steps)
        if steps.endswith("_steps") and epochs in keys and (completed[steps] is None) == (completed[epochs] is None):
            given = f"config.{steps}={completed[steps]!r}, config.{epochs}={completed[epochs]!r}"
            raise ConfigError(f"{given}: give exactly one of the two")
    default = late_workers.by_default(completed.reducer.to_dict())
    if completed.late_workers is None:
        completed.late_workers = default
    elif completed.late_workers == "finish" and default == "interrupt":
        reason = f"config.reducer.name={completed.reducer.name!r} leaves nobody out of a step alone"
        raise ConfigError(f"config.late_workers='finish': must be 'interrupt' or left out, since {reason}")
    return completed


def _checked(options: Mapping, keys: Parameters) -> dict[str, Any]:
    try:
        return registry.check(options, parameters=keys)
    except ValueError as error:
        raise ConfigError(f"config.{error}") from None


def twin(key: str) -> str | None:
    """Returns the other form of a duration: ``train_steps`` for ``train_epochs``, None for other keys."""
    for one, other in (("_steps", "_epochs"), ("_epochs", "_steps")):
        if key.endswith(one):
            return key.removesuffix(one) + other
    return None
