"""Bad input: exit code 2, one line that names the key, before any compile, and nothing written."""

import os
import pathlib

import pytest

import configs.flags
import train
from runs.errors import ConfigError
from tests import ROOT
from tests.in_process import DIGITS, train_py
from tests.started import python
from training.setup import make_setup

LATE = "--config.arrivals.name=lognormal"
STALE = "--config.reducer.name=stale --config.reducer.delay_steps=1"
PATTERN = "--config.communication.name=by_pattern --config.communication.rules=(('kernel','full'),)"
LOW_RANK = "--config.communication.name=low_rank"
GOSSIP = "--config.reducer.name=gossip --config.reducer_on=updates"
SERVER = "--config.server.name=asynchronous"
ASYNC = f"{SERVER} --config.arrivals.name=constant"
NO_SERVER = "--config.optimizer.momentum=None --config.ema_decay=None --config.server.name=decentralised"
SPREAD = f"{NO_SERVER} --config.arrivals.name=shifted_exponential"
IT, LATENCY = "config.server.name='decentralised'", "config.server.latency_seconds"
ONLY = "--dry_run --dry_run_compile=False"
CONV = "{{'name':'adasum','granularity':'Conv'}}"
BYTES = "--config=configs/shakespeare.py:smoke --config.data.source=pydoc"

# flags -> what the line must name. `{tmp}` is an empty folder, `{file}` a file.
BROKEN = {
    # config files and variants
    "--config=nope.py": "nope.py",
    "--config={tmp}": "must be a Python file",
    "--config=configs/digits.py:nope": "'nope': allowed: smoke",
    "--config={file}": "must be a Python file",
    "--flagfile={tmp}": "Unable to open flagfile",
    "--config=configs/__init__.py": "get_config",
    # unknown keys, at every level
    "--config.reduser.name=sum": "did you mean 'reducer'?",
    "--config.model.hiden_sizes=(1,)": "config.model.hiden_sizes: unknown key; did you mean 'hidden_sizes'?",
    "--config.reducer.axis_name=x": "config.reducer.axis_name",
    "--config.seed.x=1": "config.seed is not a block",
    "--config.reducer=sum": "config.reducer.name",
    # unknown names
    "--config.reducer.name=adasumm": "config.reducer.name='adasumm'",
    "--config.reducer.name=trimmed_mean --config.reducer.num_trimmed=4": "config.reducer.num_trimmed=4",
    "--config.task.name=regression": "allowed: causal_lm, classification",
    "--config.data.name=digitz": "did you mean 'digits'?",
    "--config.mapping=xmap": "one of 'pmap', 'shard_map'",
    "--config.lanes=fast": "one of 'auto'",
    "--config.lanes=dispatched --steps_per_dispatch=2": "steps_per_dispatch=2: must be 1 where lanes are dispatched",
    "--record_times --steps_per_dispatch=2": "steps_per_dispatch=2: must be 1 where lanes are dispatched",
    "--steps_per_dispatch=0": "steps_per_dispatch",
    "--config.lanes_at_once=0": "config.lanes_at_once=0: must be int in [1, 2147483647] or None",
    "--config.lanes_at_once=9": "config.lanes_at_once=9: must be at most config.num_workers=8",
    "--config.lanes_at_once=2 --config.lanes=dispatched": "must be None where config.lanes='dispatched'",
    "--config.learning_rate_scaling=cubic": "one of 'none', 'linear', 'sqrt'",
    "--config.data.augment=mixup": "one of 'none', 'crop_flip'",
    "--config.accumulation.combine=median": "one of 'mean', 'sum', 'adasum'",
    "--config.loss_scaling.name=static": "allowed: dynamic, none",
    "--config.communication.name=quarter": "did you mean 'quantised'?",
    "--config.communication.name=quantised --config.communication.bits=17": "bits=17: must be int in [2, 16]",
    "--config.communication.name=float8 --config.communication.format=e3m4": "one of 'e4m3', 'e5m2'",
    "--config.communication.name=top_k --config.communication.ratio=0": "ratio=0.0: must be float in (0, 1]",
    "--config.communication.name=low_rank --config.communication.rank=0": "rank=0: must be int in [1, inf)",
    "--config.communication.name=low_rank --config.communication.then=top_k": "then: must encode numbers one by one",
    f"{LOW_RANK} --config.reducer.name=coordinate_median": "reducer: must be the mean, or one around it",
    f"--config.communication.name=sign {GOSSIP}": "'sign': reducer: must emit every update",
    f"--config.communication.name=half {GOSSIP}": "'float16': reducer: must emit every update",
    f"{PATTERN}": "config.communication.rules: 'Dense_0/bias' matches none of 'kernel'",
    f"{PATTERN} {STALE} --config.reducer.combine=corrupt": (
        "config.communication.rules: 'Dense_0/bias' matches none of 'kernel'"
    ),
    "--config.communication.name=half --config.communication.dtype=float32": "one of 'float16', 'bfloat16'",
    "--config.model.dtype=float64": "one of 'float32', 'bfloat16', 'float16'",
    "--config.optimizer.accumulator_dtype=float33": "config.optimizer.accumulator_dtype='float33'",
    # blocks that do not go together
    "--config.optimizer.name=prodigy --config.optimizer.learning_rate=1": (
        "config.optimizer.name='prodigy': needs a config.schedule that begins above 0"
    ),
    "--config.accumulation.count=3": "config.accumulation.count=3: must divide config.batch_size_per_worker=16",
    "--config.accumulation.name=local_steps --config.accumulation.count=2": "needs config.reducer_on='updates'",
    "--config.accumulation.name=local_steps": "config.accumulation.count: missing",
    "--config.communication.name=half --config.reducer.name=sign_majority": "needs a homogeneous reducer",
    "--config.model.name=pixelcnn": (
        "config.model.name='pixelcnn': does not suit config.task.name='classification': PixelCNN returns (1, 8, 8, 1, "
        "256), must be (1, 10)"
    ),
    "--dry_run --config.model.name=pixelcnn": "config.model.name='pixelcnn': does not suit config.task.name",
    f"{BYTES} --config.model.name=bert_mini": (
        "config.model.name='bert_mini': does not suit config.task.name='causal_lm': BertMini cannot take its inputs"
    ),
    f"{BYTES} --config.model.name=transformer --config.data.form=masked --config.task.name=masked_lm": (
        "config.model.name='transformer': does not suit config.task.name='masked_lm': Transformer cannot take its"
    ),
    # time
    "--config.reducer.name=backup_workers --config.reducer.num_required=6": "config.arrivals.name='none'",
    f"{STALE} --config.reducer.combine=dynamic_backup_workers": (
        "config.arrivals.name='none': config.reducer.name='stale' needs arrival times; allowed: constant"
    ),
    f"{LATE} --config.reducer.name=backup_workers --config.reducer.num_required=9": "required=9: exceeds num_workers=8",
    f"{LATE} --config.reducer.name=backup_workers": "config.reducer.num_required: missing",
    f"{LATE} --config.reducer.name=deadline --config.reducer.deadline_seconds=2 "
    "--config.reducer.combine=dynamic_backup_workers": "config.reducer.combine: must be a reducer that takes a mask",
    f"{STALE} --config.reducer.combine={{{{'name':'sum','nmae':3}}}}": "config.reducer.combine.nmae: unknown key",
    f"{STALE} --config.reducer.combine={{{{'name':'adasm'}}}}": (
        "config.reducer.combine.name='adasm': unknown name; did you mean 'adasum'?"
    ),
    "--config.reducer.name=adasum --config.reducer.granularity=Conv": (
        "config.reducer.granularity='Conv': matches no leaf; the leaves are 'Dense_0/bias'"
    ),
    "--config.reducer.name=adasum --config.reducer.algorithm=butterfly": "one of 'gram', 'halving', 'gather'",
    f"{LATE} {STALE} --config.reducer.combine={{{{'name':'backup_workers','num_required':9}}}}": (
        "config.reducer.combine.num_required=9: exceeds num_workers=8"
    ),
    f"{STALE} --config.reducer.combine={{{{'name':'corrupt','combine':{CONV}}}}}": (
        "config.reducer.combine.combine.granularity='Conv': matches no leaf"
    ),
    f"--config.communication.name=quantised {STALE} --config.reducer.combine={CONV}": (
        "config.reducer.combine.granularity='Conv': matches no leaf"
    ),
    f"{STALE} --config.reducer.combine={{{{'name':'stale','delay_steps':1}}}}": (
        "config.reducer.name='stale': metrics: two reducers report staleness"
    ),
    f"{LATE} --config.reducer.name=k_batch --config.reducer.num_batches=9": "config.reducer.name='k_batch': is backup_",
    f"{LATE} --config.reducer.name=deadline --config.reducer.deadline_seconds=0": "config.reducer.deadline_seconds=0.0",
    f"{LATE} --config.arrivals.sigma=-1": "config.arrivals.sigma=-1.0",
    f"{LATE} --config.arrivals.alpha=2": "config.arrivals.alpha: unknown key",
    "--config.arrivals.name=slow_workers --config.arrivals.num_slow=9": "num_slow=9: exceeds num_workers=8",
    "--config.arrivals.name=mixture --config.arrivals.base={{'name':'slow_workers','num_slow':9}}": (
        "config.arrivals.base.num_slow=9: exceeds num_workers=8"
    ),
    "--config.arrivals.name=slow_workers --config.arrivals.base=nobody": "config.arrivals.base.name='nobody'",
    "--config.arrivals.name=scripted --config.arrivals.events=((8,0,1.0),)": "worker 8 is not one of num_workers=8",
    "--config.arrivals.name=scripted --config.arrivals.events=0": "config.arrivals.events=0: must be a tuple of",
    "--config.arrivals.name=scripted --config.arrivals.events=((0,2147483648,1.0),)": "events[0]=(0, 2147483648, 1.0)",
    "--config.arrivals.name=trace": "config.arrivals.path: missing",
    "--config.arrivals.name=trace --config.arrivals.path={file}": "must end in .csv or .npz",
    f"{LATE} --config.late_workers=finish": "config.late_workers='finish': must be 'interrupt' or left out, since "
    "config.reducer.name='mean' leaves nobody out",
    f"{LATE} --config.late_workers=finish --config.server.name=asynchronous": "config.late_workers='finish': must be",
    # without waiting, with a server
    SERVER: "config.arrivals.name='none': config.server.name='asynchronous' needs arrival times; allowed: constant",
    f"{ASYNC} --config.reducer.name=sum": "needs config.reducer.name='mean', not 'sum'",
    f"{ASYNC} --config.reducer_on=updates": "needs config.reducer_on='gradients', not 'updates'",
    f"{ASYNC} --config.loss_scaling.name=dynamic": "needs config.loss_scaling.name='none', not 'dynamic'",
    f"{ASYNC} --config.communication.name=half": "needs config.communication.name='full', not 'half'",
    f"{ASYNC} --config.accumulation.name=local_steps --config.accumulation.count=2": "config.reducer_on",
    f"{ASYNC} --config.on_nonfinite=skip": (
        "config.on_nonfinite='skip': config.server.name='asynchronous' needs 'stop' or 'ignore'"
    ),
    f"{ASYNC} --config.server.rule=inverze": (
        "config.server.rule.name='inverze': unknown name; did you mean 'inverse'?"
    ),
    f"{ASYNC} --config.server.rule=threshold": "config.server.rule.max_staleness: missing",
    f"{ASYNC} --config.server.rule={{{{'name':'none','x':1}}}}": "config.server.rule.x: unknown key",
    f"{ASYNC} --config.server.gradients_per_update=0": "must be int in [1, inf)",
    f"{ASYNC} --config.server.staleness_bound=-1": "must be int in [0, inf) or None",
    f"{ONLY} {SERVER} --config.arrivals.name=mixture --config.arrivals.base=none": (
        "config.arrivals.name='mixture': gives seconds[0, 0]=0.0: must be in (0, inf)"
    ),
    f"{ONLY} {SERVER} --config.arrivals.name=lognormal --config.arrivals.sigma=100": (
        "config.arrivals.name='lognormal': gives seconds["
    ),
    "--config.server.rule=inverse": "config.server.rule: unknown key",
    "--config.server.name=asynchronos": "did you mean 'asynchronous'?",
    # and without a server
    f"{SPREAD} --config.optimizer.momentum=0.9": f"{IT}: needs config.optimizer.momentum=None, not 0.9",
    f"{SPREAD} --config.optimizer.name=rmsprop --config.optimizer.learning_rate=1": (
        f"{IT}: needs config.optimizer.name='sgd', not 'rmsprop'"
    ),
    f"{SPREAD} --config.ema_decay=0.9": f"{IT}: needs config.ema_decay=None, not 0.9",
    f"{SPREAD} --config.reducer.name=sum": f"{IT}: needs config.reducer.name='mean', not 'sum'",
    f"{SPREAD} --config.reducer_on=updates": f"{IT}: needs config.reducer_on='gradients', not 'updates'",
    f"{SPREAD} --config.communication.name=half": f"{IT}: needs config.communication.name='full', not 'half'",
    f"{SPREAD} --config.loss_scaling.name=dynamic": f"{IT}: needs config.loss_scaling.name='none', not 'dynamic'",
    f"{SPREAD} --config.on_nonfinite=skip": f"config.on_nonfinite='skip': {IT} needs 'stop' or 'ignore'",
    NO_SERVER: f"config.arrivals.name='none': {IT} needs arrival times; allowed: constant",
    f"{SPREAD} --config.arrivals.scale_seconds=1e38": "config.arrivals.name='shifted_exponential': gives seconds[",
    f"{SPREAD} --{LATENCY}=-1": f"{LATENCY}=-1: must be",
    f"{SPREAD} --{LATENCY}={{{{'name':'lognormal','sigma':100.0}}}}": (
        f"{LATENCY}: is inf for a message, must be in [0, inf)"
    ),
    f"{SPREAD} --{LATENCY}=lognormall": f"{LATENCY}.name='lognormall': unknown name; did you mean 'lognormal'?",
    f"{SPREAD} --{LATENCY}={{{{'name':'slow_workers','num_slow':9}}}}": f"{LATENCY}.num_slow=9: exceeds num_workers=8",
    # another run's state
    "--config.init_what=shared": "config.init_what='shared': needs config.init_from, the folder of another run",
    "--config.init_only=Dense": "config.init_only='Dense': needs config.init_from",
    "--dry_run --config.init_only=(": "config.init_only='(': needs config.init_from",
    f"{ONLY} --config.server.name=asynchronous --config.arrivals.name=scripted --config.arrivals.base=none": (
        "config.arrivals.name='scripted': gives seconds[0, 0]=0.0: must be in (0, inf)"
    ),
    "--dry_run --dry_run_compile=False --config.init_from={tmp}/nope": "nope': must be the folder of a run",
    "--dry_run --dry_run_compile=False --config.init_from={tmp}": "config.init_from='{tmp}': must be the folder",
    "--config.init_from={file}": "config.init_from='{file}': must be the folder of a run with a checkpoint",
    "--config.reducer_on=updates --config.outer.name=schedule_free_sgd --config.outer.learning_rate=1.0": (
        "config.ema_decay=0.99: config.outer.name='schedule_free_sgd' needs None"
    ),
    # wrong types
    "--config.seed=1.5": "config.seed='1.5': must be int",
    "--config.seed=None": "config.seed='None': must be int",
    "--config.num_workers=True": "config.num_workers='True'",
    "--config.num_workers=": "config.num_workers=''",
    "--config.optimizer.learning_rate=fast": "config.optimizer.learning_rate='fast': must be float in (0, inf)",
    "--config.optimizer.learning_rate=1e300": "learning_rate=1e+300: must be float in (0, inf) of 32 bits",
    "--config.optimizer.nesterov=perhaps": "must be bool",
    "--config.model.hidden_sizes=12": "must be a tuple of int",
    # out of range, not finite
    "--config.num_workers=0": "config.num_workers=0: must be int in [1, 65536]",
    "--config.batch_size_per_worker=-1": "config.batch_size_per_worker=-1",
    "--config.seed=-1": "config.seed=-1",
    "--config.model.hidden_sizes=(0,)": "config.model.hidden_sizes=(0,)",
    "--config.model.dropout_rate=1.0": "in [0, 1)",
    "--config.optimizer.learning_rate=-0.1": "config.optimizer.learning_rate=-0.1",
    "--config.optimizer.momentum=1.5": "config.optimizer.momentum=1.5",
    "--config.schedule.warmup_fraction=2": "config.schedule.warmup_fraction=2.0",
    "--config.train_epochs=1e9": "config.train_epochs=1000000000.0: is 1.12e+10 steps of which 11.2 are an epoch",
    "--config.ema_decay=1": "config.ema_decay=1.0",
    "--config.clip_norm=0": "config.clip_norm=0.0",
    "--config.schedule.name=staircase --config.schedule.every_epochs=1e-9": "every_epochs=1e-09: drops more than 1000",
    "--config.schedule.name=linear_onecycle_schedule --config.schedule.transition_epochs=1e-45": (
        "config.schedule.transition_epochs=1e-45: must be at least a step"
    ),
    "--config.reducer.name=stale --config.reducer.delay_steps=2147483647": "delay_steps=2147483647: must be",
    "--config.keep_checkpoints=0": "config.keep_checkpoints=0",
    "--config.check_replicas_every_steps=0": "config.check_replicas_every_steps=0: must be int in [1, 2147483647]",
    "--config.accumulation.count=0": "config.accumulation.count=0: must be int in [1, inf)",
    "--config.loss_scaling.name=dynamic --config.loss_scaling.growth_factor=1": "in (1, inf)",
    "--config.loss_scaling.name=dynamic --config.loss_scaling.backoff_factor=1": "in (0, 1)",
    "--config.communication.name=half --config.communication.initial_scale=0": "in [1.1754943508222875e-38, ",
    # missing, contradictory
    "--config.optimizer.name=adam": "config.optimizer.learning_rate: missing",
    "--config.train_steps=5 --config.train_epochs=1": "give exactly one",
    "--config.train_epochs=None": "give exactly one",
    "--config.eval_every_steps=5 --config.eval_every_epochs=1": "config.eval_every_steps=5",
    "--config.optimizer.name=chain --config.optimizer.learning_rate=1 --config.optimizer.transforms=()": "exactly one",
    # devices and folders
    "--num_devices=3": "num_devices=3: must be one of 1, 2, 4, 8 for num_workers=8 on 8 cpu devices",
    "--num_devices=0": "num_devices",
    "--num_processes=0": "num_processes",
    "--coordinator=here:1": "must be given together",
    "--dry_run --num_devices=3": "num_devices=3: must be one of 1, 2, 4, 8 for num_workers=8",
    "--nodry_run_compile": "dry_run_compile=False: must be left out without --dry_run",
    "--dry_run_compile --dry_run=false": "dry_run_compile=True: must be left out without --dry_run",
    # flags without a use for each other
    "--checkpoint=best": "checkpoint=best: must be left out without --evaluate_only",
    "--evaluate_only --fresh": "fresh=True: must be left out with --evaluate_only",
    "--evaluate_only --profile": "profile=True: must be left out with --evaluate_only",
    "--evaluate_only --record_times": "record_times=True: must be left out with --evaluate_only",
    "--evaluate_only --sink=builtins:list": "sink=['builtins:list']: must be left out with --evaluate_only",
    "--dry_run --evaluate_only --checkpoint=best": "evaluate_only=True: must be left out with --dry_run",
    "--dry_run --profile": "profile=True: must be left out with --dry_run",
    "--dry_run --coordinator=localhost:1 --num_processes=2": "coordinator=localhost:1: must be left out with --dry_run",
    "--compilation_cache={file}": "is not a folder",
    "--record_times --config.devices_per_worker=2 --config.mapping=shard_map": (
        "record_times=True: needs config.devices_per_worker=1, not 2"
    ),
    "--record_times --config.lanes=vmap": "record_times=True: needs config.lanes='auto' or 'dispatched', not 'vmap'",
    "--record_times --config.lanes_at_once=2": "record_times=True: needs config.lanes_at_once=None, not 2",
    "--workdir=/proc/nope": "workdir='/proc/nope'",
    "--workdir=": "workdir=''",
    "--evaluate_only --workdir={tmp}": "no such run",
    "--evaluate_only --checkpoint=first --workdir={tmp}": "checkpoint='first'",
    # data sets
    "--config.data.on_damage=skip": "config.data.on_damage='skip': must be left out without an image_size",
    "--config.data.processes=2": "config.data.processes=2: must be left out without an image_size",
    "--dry_run --config.data.name=mnist --config.data.dir={tmp} --config.data.processes=2": "processes=2: must be left",
    "--config.data.name=mnist --config.data.dir={tmp}": "python -m data.prepare mnist",
    "--config.data.name=mnist --config.data.dir={tmp}/nope": "data.dir",
    "--config.data.name=mnist --config.data.dir={file}": "data.dir",
    # flags of the run
    "--nope": "nope",
    "--fresh=maybe": "fresh",
    "leftover": "'leftover'",
}


def listing(folder: pathlib.Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


@pytest.fixture
def places(tmp_path):
    folder, file = tmp_path / "empty", tmp_path / "file"
    folder.mkdir()
    file.write_text("hello")
    return {"tmp": str(folder), "file": str(file)}


@pytest.mark.parametrize("flags", BROKEN)
def test_refused_in_one_line(flags, places, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = [argument.format(**places).replace("configs/", f"{ROOT}/configs/") for argument in flags.split()]
    if not any(argument.startswith("--config=") for argument in arguments):
        arguments.insert(0, f"--config={DIGITS}")
    before = listing(tmp_path)
    monkeypatch.setattr(train, "train", lambda *_, **__: pytest.fail("training began"))
    assert train_py(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1, captured
    assert BROKEN[flags].format(**places) in captured.err
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("reducer", "absent_at", "needed"),
    [
        (dict(name="backup_workers", num_required=3), 1, 3),
        (dict(name="quorum", num_required=3), 1, 3),
        (dict(name="quorum", num_required=3, grace_seconds=1.0), 1, 3),
        (dict(name="quorum", num_required=2, grace_seconds=None), 1, 4),
        (dict(name="stale", delay_steps=1, combine=dict(name="quorum", num_required=3, grace_seconds=1.0)), 1, 3),
        (dict(name="dynamic_backup_workers"), 1, 4),
        (dict(name="dynamic_backup_workers", min_required=3), 12, 3),
        (dict(name="quorum", num_required=2, grace_seconds=1.0), 1, None),
        (dict(name="deadline", deadline_seconds=9.0), 1, None),
        (dict(name="dynamic_backup_workers"), 12, None),
    ],
    ids=str,
)
def test_a_trace_in_which_too_few_arrive_is_refused(reducer, absent_at, needed, tmp_path):
    """Two of four workers arrive at one step; who waits for more is refused, as no simulated time is to be infinite."""
    rows = [[1.0, 1.0, 1.0, 1.0]] * 14
    rows[absent_at] = [1.0, float("inf"), float("inf"), 1.0]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(",".join(map(str, row)) for row in rows))
    overrides = ["--config.num_workers=4", "--config.arrivals.name=trace", f"--config.arrivals.path={path}"]
    overrides += [f"--config.reducer.{key}={value}" for key, value in reducer.items()]
    overrides += ["--config.late_workers=interrupt"]  # else nobody may be absent
    config = configs.flags.load(DIGITS, overrides)
    if needed is None:
        make_setup(config)
        return
    said = f"at step {absent_at} 2 workers arrive; config.reducer.name={reducer['name']!r} waits for {needed}"
    with pytest.raises(ConfigError, match=f"^config.arrivals.path=.*: {said}$"):
        make_setup(config)


OF_A_PROCESS = {  # (flag, platform) -> what the line must name; another platform is to be seen before JAX starts
    ("--num_devices=3", "cpu"): "num_devices",  # the last to be found out
    ("--nope", "cpu"): "nope",
    ("--config.seed=0", "nonsense"): "JAX_PLATFORMS='nonsense': JAX cannot start",
    ("--config.seed=0", "cuda"): "JAX_PLATFORMS='cuda': JAX cannot start",  # whether or not jaxlib knows CUDA
}


@pytest.mark.parametrize(("flag", "platform"), OF_A_PROCESS)
def test_refused_by_a_real_process(flag, platform, tmp_path):
    where = {"JAX_PLATFORMS": platform, "CUDA_VISIBLE_DEVICES": "-1"}
    done = python(ROOT / "train.py", f"--config={DIGITS}:smoke", flag, cwd=tmp_path, **where)
    assert done.returncode == 2 and done.stdout == "", done
    assert done.stderr.count("\n") == 1 and OF_A_PROCESS[flag, platform] in done.stderr, done
    assert listing(tmp_path) == []


def test_paths_in_flags_are_those_of_the_shell(tmp_path, monkeypatch):
    (tmp_path / "one.py").write_text("import os\nfrom configs.digits import get_config\nos.chdir('/')")
    monkeypatch.chdir(tmp_path)
    assert train_py("--config=one.py:smoke", "--workdir=run") == 0
    assert os.getcwd() == str(tmp_path) and (tmp_path / "run" / "DONE").exists()


def test_a_working_folder_that_is_gone(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert train_py(f"--config={DIGITS}:smoke", f"--workdir={tmp_path}/run") == 2
    assert capsys.readouterr().err == "working folder: No such file or directory; change to a folder that is there\n"
    assert listing(tmp_path) == []
