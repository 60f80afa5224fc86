"""Reads a run's own state, and the parameters of another run, from checkpoints."""

import contextlib
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

import data.assumed
import models
import runs
from data.sources import SOURCES
from models import tasks
from models.tasks import Task
from optim.frozen import join, matching, split
from optim.schedules import corrects_by_step
from parallel import Layout, processes
from reducers.leaves import kept, leaf_names
from reducers.registry import components
from runs.errors import ConfigError, refusing
from training import noise_scale, own_parts
from training.evaluate import make_evaluation
from training.own_params import evaluates_mean
from training.setup import TrainSetup
from training.task import init_shapes, make_task, open_source
from training.train_state import Initial, TrainState, map_per_worker, to_devices

# Places of the parameters at which a run is evaluated: the mean of the workers' own, or the moving average, if the run
# has one of the two.
_AVERAGE = "state/ema"
_FROZEN = "state/frozen"
_OPTIMIZER = "state/opt_state"
_STATISTICS = "state/worker/model_state"
_STEP, _AVERAGED = "state/step", "state/averaged"
BATCHES = "batches"
EVALUATED = ("mean_params", _AVERAGE, "state/params")


class Restored(NamedTuple):
    """A checkpoint on the devices.

    Attributes:
      step: number of steps done.
      state: the state after them.
      counters: the run's totals after that step.
      batches: the state of the iterator that gives this process its batches; None if there is none.
    """

    step: int
    state: TrainState
    counters: runs.RunCounters
    batches: str | None = None


def open_checkpoints(
    config: ConfigDict, task: Task, folder: pathlib.Path, *, access: Literal["write", "read"] = "write"
) -> runs.Checkpoints:
    """Opens the checkpoints of a run's folder; the best is the best by the task's own metric."""
    metric, mode = task.best
    keep = config.keep_checkpoints
    return runs.Checkpoints(folder / "checkpoints", keep_last=keep, best_metric=metric, best_mode=mode, access=access)


def restore(
    setup: TrainSetup,
    layout: Layout,
    checkpoints: runs.Checkpoints,
    *,
    which: Any = "latest",
    to: Literal["train", "evaluate"] = "train",
) -> Restored | None:
    """Restores an undamaged checkpoint, the "latest", the "best" or that of a step; None if there is none.

    To evaluate it, any number of processes will do; iterators of batches do not go on.
    """
    tree = abstract(setup, sharding=layout.saved_sharding)
    in_order = setup.source.reads == "in_order"
    whole = tuple(f"{part}/" for part in tree) if in_order else ("",)
    with refusing():
        restored = checkpoints.restore(tree, which=which, whole=whole)
    if restored is None:
        return None
    step, found = restored
    counters = initial_counters(setup).restored(found["counters"])
    batches = _state_of_batches(checkpoints, step) if in_order and to == "train" else None
    return Restored(step, to_devices(found["state"], layout, setup.state_axes), counters, batches)


def states_of_batches(state: str) -> np.ndarray:
    """Returns what a checkpoint saves of the iterators of all processes, [bytes] uint8, given this process's state."""
    return np.frombuffer(json.dumps(processes.exchange(state)).encode(), np.uint8)


def _state_of_batches(checkpoints: runs.Checkpoints, step: int) -> str | None:
    """Returns the state of this process's iterator, given to ``states_of_batches``; None if there is none.

    Raises:
      ConfigError: if another number of processes has saved it.
    """
    shape = processes.from_first(lambda: checkpoints.names(step).get(BATCHES))
    if shape is None:
        return None
    with refusing():
        found = checkpoints.restore({BATCHES: jax.ShapeDtypeStruct(tuple(shape), np.uint8)}, which=step, whole=())
    assert found is not None
    states = json.loads(found[1][BATCHES].tobytes())
    if len(states) != processes.count():
        reason = f"checkpoint {step} has the places of the iterators of {len(states)} processes"
        raise ConfigError(f"num_processes={processes.count()}: must be {len(states)}, since {reason}")
    return states[processes.index()]


def abstract(setup: TrainSetup, *, sharding: Any = None) -> dict[str, Any]:
    """Returns the shapes of what ``Run.save`` saves.

    Args:
      setup: the run's setup.
      sharding: sharding of the per-worker fields, if no single process holds them whole.
    """

    def of_all_workers(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((setup.config.num_workers, *x.shape), x.dtype, sharding=sharding)

    state = map_per_worker(of_all_workers, setup.worker_shapes._replace(stopped=None))
    saved = {"state": state, "counters": initial_counters(setup).abstract()}
    if evaluates_mean(state):
        saved["mean_params"] = state.params
    return saved


def initial_counters(setup: TrainSetup) -> runs.RunCounters:
    """Returns the counters of a run before its first step."""
    sent_bytes = None if setup.sends_alike else 0.0
    averages = noise_scale.initial_averages(setup)
    return runs.RunCounters(averages=averages, sent_bytes=sent_bytes, peak_bytes=sent_bytes)


def checkpoint_named(text: str) -> Literal["best", "latest"] | int:
    """Returns the checkpoint that a flag names.

    Raises:
      ConfigError: one line, if it names none.

    >>> checkpoint_named("best"), checkpoint_named("200")
    ('best', 200)
    """
    if text in ("best", "latest"):
        return "best" if text == "best" else "latest"
    if not text.isdecimal() or len(text) >= 20:
        raise ConfigError(f"checkpoint={text!r}: must be latest, best or a step")
    return int(text)


def restore_params(
    folder: str | os.PathLike,
    *,
    checkpoint: Literal["best", "latest"] | int = "best",
    trusted: Iterable[str] = (),
) -> dict[str, Any]:
    """Returns the parameters of a run at which it is evaluated; see ``restore_variables``."""
    return restore_variables(folder, checkpoint=checkpoint, trusted=trusted)[0]


def restore_variables(
    folder: str | os.PathLike,
    *,
    checkpoint: Literal["best", "latest"] | int = "best",
    trusted: Iterable[str] = (),
) -> tuple[dict[str, Any], Any]:
    """Returns the parameters and the other variables with which a run is evaluated, as nested dicts of NumPy arrays.

    The parameters are the moving average if the run keeps one; BatchNorm's statistics are the mean over the workers.
    The model's code must be that of the run; its data need not be present.

    Args:
      folder: the run's folder; the run need not be finished.
      checkpoint: "best", "latest", or a step.
      trusted: modules outside of this project that config.json may name ("module:attribute"); they are imported and
        called.

    Returns:
      ``(params, model_state)``, the first argument of ``Task.evaluate``.

    Raises:
      ConfigError: one line, if the folder holds no run, or no such checkpoint, or one of another model, or if its
        config.json names a module that is not trusted.
    """
    path = runs.expand(os.fspath(folder))
    with refusing():
        config = runs.identity.read_object(path / "config.json", way_out="copy the run's folder again")
    if config is None:
        raise ConfigError(f"folder={str(path)!r}: must be the folder of a run, with a config.json")
    used = [config.get(block) for block in ("data", "model", "task")]
    shipped = {*SOURCES.values(), *models.MODELS.values(), *tasks.TASKS.values()}
    with refusing():
        components.check_trusted(used, trusted=trusted, shipped=shipped, where=f"folder={str(path)!r}: config.json")
    config = ConfigDict(config)
    with own_parts.refusing(config):
        task = make_task(config, source=open_source(config, open_data=data.assumed.make_or_assume))
        trained, frozen = split(init_shapes(config, task), config.freeze)
        statistics = jax.eval_shape(task.init, jax.random.key(0))[1]
    with refusing(), open_checkpoints(config, task, path, access="read") as checkpoints:
        found = checkpoints.restore(trained, which=checkpoint, part=EVALUATED)
        if found is None:
            raise ConfigError(f"folder={str(path)!r}: has no checkpoint to restore")
        step, params = found
        others = {_FROZEN: frozen, _STATISTICS: _of_workers(statistics, checkpoints.names(step))}
        if jax.tree.leaves(others):
            read = checkpoints.restore(others, which=step, whole=tuple(f"{each}/" for each in others))
            assert read is not None
            others = read[1]
    return join(params, others[_FROZEN]), _mean_of_workers(others[_STATISTICS])


def _of_workers(statistics: Any, saved: dict[str, tuple[int, ...]]) -> Any:
    """Returns the shapes of all workers' statistics in a checkpoint, given its names and one worker's shapes."""
    counts = [shape[0] for name, shape in saved.items() if name.startswith(f"{_STATISTICS}/")]
    count = counts[0] if counts else 0
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), statistics)


def _mean_of_workers(of_workers: Any) -> Any:
    """Returns the mean of all workers' statistics, [W, ...], in their dtypes."""
    return jax.tree.map(lambda x: np.mean(x, 0, dtype=np.float64).astype(x.dtype), of_workers)


def check_init_from(setup: TrainSetup, workdir: pathlib.Path, *, start: Literal["resume", "fresh"]) -> None:
    """Refuses a ``config.init_from`` that cannot be read, if the run might begin with it; writes nothing."""
    if not setup.config.init_from:
        return
    if start == "resume":
        folder = workdir / "checkpoints"
        saved = processes.from_first(lambda: os.listdir(folder) if os.path.isdir(folder) else [])
        if any(name[0].isdecimal() for name in saved):  # damaged ones have such names, too
            return
    initial_of(setup, setup.config.init_from)


def initial_of(setup: TrainSetup, folder: str) -> Initial:
    """Returns the part of another run's last checkpoint that ``config.init_what`` and ``init_only`` select.

    "params" takes the parameters at which that run is evaluated; "shared" never takes a moving average in their place.

    Raises:
      ConfigError: one line, if the folder has no checkpoint, or the last is damaged or of another model or optimizer.
    """
    return take_initial(setup, folder)[0]


def take_initial(
    setup: TrainSetup, folder: str, *, before: Mapping[str, str] | None = None
) -> tuple[Initial, dict[str, str]]:
    """Returns the result of ``initial_of`` and the manifest of the checkpoint used.

    Args:
      setup: the run's setup.
      folder: the other run's folder; that run may still be going on.
      before: manifest of the checkpoint that an earlier start used; it is used again if it still exists.

    Raises:
      ConfigError: one line, if the folder has no checkpoint, or the last is damaged or of another model or optimizer.
    """
    config = setup.config
    shapes = setup.worker_shapes
    is_shared = config.init_what == "shared"
    names = leaf_names(shapes.all_params)
    taken = np.array(matching(names, config.init_only))
    if is_shared and corrects_by_step(shapes.opt_state):
        reason = "the optimizer corrects its steps by their number, which would begin at 0 again"
        raise ConfigError(f"config.init_what='shared': {reason}; take config.init_what='params'")

    def choose() -> int | None:
        if before is not None:
            with contextlib.suppress(KeyError, ValueError):  # it is no longer there
                step = int(pathlib.Path(before["path"]).parent.name)
                if checkpoints.manifest_file(step)["sha256"] == before["sha256"]:
                    return step
        return checkpoints.latest_step()

    def read() -> tuple[dict[str, str], str, dict[str, Any]] | None:
        step = processes.from_first(choose)
        if step is None:
            return None
        manifest = checkpoints.manifest_file(step)
        saved = processes.from_first(lambda: checkpoints.names(step))
        places = [place for place in EVALUATED if any(name.startswith(f"{place}/") for name in saved)]
        has_average = _AVERAGE in places
        if is_shared and has_average:
            places.remove(_AVERAGE)
        place = places[0] if places else EVALUATED[-1]
        was_frozen = np.array([f"{_FROZEN}/{name}" in saved for name in names])
        tree = {
            place: kept(shapes.all_params, (taken & ~was_frozen).tolist()),
            _FROZEN: kept(shapes.all_params, (taken & was_frozen).tolist()),
        }
        if is_shared:
            trained = [name for name in names if f"{place}/{name}" in saved]
            of_optimizer = {f"{_OPTIMIZER}/{name}" for name in leaf_names(shapes.opt_state)}
            is_same_model = len(trained) + was_frozen.sum() == len(names)
            has_same_state = of_optimizer == {name for name in saved if name.startswith(f"{_OPTIMIZER}/")}
            if is_same_model and not (has_same_state and trained == leaf_names(shapes.params)):
                keys = "config.optimizer, config.freeze, config.reducer_on or config.reducer.fragments"
                reason = f"its optimizer's state is that of another {keys}"
                raise ValueError(f"{reason}; take config.init_what='params'")
            tree |= {_OPTIMIZER: shapes.opt_state, _AVERAGE: shapes.ema if has_average else None}
            tree |= {name: shapes.step for name in (_STEP, _AVERAGED) if name in saved and has_average}
            tree[_STATISTICS] = _of_workers(shapes.worker.model_state, saved)
        whole = () if config.init_only else tuple(f"{each}/" for each in tree)
        found = checkpoints.restore(tree, which=step, whole=whole)
        return None if found is None else (manifest, place, found[1])

    with refusing():
        path = runs.expand(folder, key="config.init_from")
    with refusing(), open_checkpoints(config, setup.task, path, access="read") as checkpoints:
        try:
            chosen = checkpoints.choose_again(read)
        except (ValueError, OSError) as error:
            said = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"config.init_from={folder!r}: {said}") from None
    if chosen is None:
        raise ConfigError(f"config.init_from={folder!r}: must be the folder of a run with a checkpoint")
    manifest, place, found = chosen
    params = join(found[place], found[_FROZEN])
    if not is_shared:
        return Initial(params), manifest
    model_state = _mean_of_workers(found[_STATISTICS])
    averaged = sum(int(found.get(name, 0)) for name in (_STEP, _AVERAGED))
    return Initial(params, found[_OPTIMIZER], found[_AVERAGE], model_state, averaged), manifest


def initial_state(
    setup: TrainSetup, layout: Layout, run_folder: runs.Folder, *, report: Callable[[str], None]
) -> TrainState:
    """Returns the initial state of a run, with the parts that ``config.init_from`` supplies.

    The folder records which checkpoint was used. A run that was killed before its own first checkpoint uses it again.

    Args:
      setup: the run's setup.
      layout: where the workers are.
      run_folder: the run's folder.
      report: called with a line that names the parameters that are still initialised from the seed.
    """
    folder = setup.config.init_from
    if not folder:
        return setup.init_state(layout)
    before = processes.from_first(lambda: run_folder.recorded_input("init_from"))
    initial, manifest = take_initial(setup, folder, before=before)
    with refusing():
        processes.check_same({"config.init_from": manifest["sha256"]})  # processes may have disks of their own
    if run_folder.process == 0:
        run_folder.record_input("init_from", manifest)
    taken = leaf_names(initial.params)
    if left := [name for name in leaf_names(setup.worker_shapes.all_params) if name not in taken]:
        report(f"config.init_only={setup.config.init_only!r}: takes {', '.join(taken)}; anew: {', '.join(left)}")
    return setup.init_state(layout, initial)


def evaluate_checkpoint(
    setup: TrainSetup, layout: Layout, path: pathlib.Path, *, which: str, code: runs.Code | None
) -> str:
    """Evaluates a checkpoint on the split of ``config.data.evaluate_on``; writes nothing.

    Args:
      setup: the run's setup.
      layout: where the workers are.
      path: the run's folder.
      which: "latest", "best" or a step.
      code: the files outside of this repository that the run depends on; None does not compare them.

    Returns:
      One line: step, split and metrics.

    Raises:
      ConfigError: if there is no such checkpoint, or the folder holds another config or was trained by other code.
    """
    chosen = checkpoint_named(which)
    with processes.together(ConfigError), refusing():
        if runs.check_same(path, setup.config.to_dict()) is None:
            raise ConfigError(f"workdir={str(path)!r}: no such run")
        if code is not None:
            runs.check_code(path, runs.read_starts(path), code)
    with refusing(), open_checkpoints(setup.config, setup.task, path, access="read") as checkpoints:
        restored = restore(setup, layout, checkpoints, which=chosen, to="evaluate")
    if restored is None:
        kind = "that was evaluated, so that none is the best" if chosen == "best" else "to evaluate"
        raise ConfigError(f"workdir={str(path)!r}: holds no checkpoint {kind}")
    with processes.together(ConfigError):
        dataset = setup.load_data(num_workers=math.prod(layout.own_places))
    with contextlib.closing(dataset):
        resident = layout.put_shared({"constants": dataset.constants})
        quality = make_evaluation(setup, layout, dataset.test)(restored.state, resident)
    words = runs.in_words(quality, names=(setup.task.best[0], "loss"))
    return f"step {restored.step}: {setup.split} {words}"
