"""The launcher of several processes, with programs that train nothing, and the files for clusters."""

import ast
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import yaml
from absl.testing import flagsaver

import train
from configs import flags as config_flags
from launch import __main__ as command_line
from launch import local
from launch.children import Children
from tests.started import wait_for

LAUNCH = pathlib.Path(local.__file__).parent
CONFIG = LAUNCH.parent / "configs" / "digits.py"
ENDS = "import os, sys, time; p = int(sys.argv[-1].split('=')[1]); "


def launch(program, *, processes=2, seconds_to_notice=5.0):
    command = [sys.executable, "-c", ENDS + program]
    return local.run(command, num_processes=processes, seconds_to_notice=seconds_to_notice)


def test_a_run_whose_processes_all_succeed(capfd):
    assert launch("print(sys.argv[1:]) if p == 0 else None", processes=3) == 0
    said = capfd.readouterr()
    assert "--num_processes=3" in said.out and "--process_id=0" in said.out and said.err == ""


@pytest.mark.parametrize("given", [{}, {"no_proxy": "intranet"}, {"NO_PROXY": "intranet", "no_grpc_proxy": "other"}])
def test_processes_meet_beside_a_proxy(given, capfd, monkeypatch):
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    shows = "p or print(*(os.environ.get(n, '-') for n in ('no_proxy', 'NO_PROXY', 'no_grpc_proxy')))"
    assert launch(shows) == 0
    hosts = "intranet,127.0.0.1" if given else "127.0.0.1"
    assert capfd.readouterr().out.split() == [hosts, hosts, "other,127.0.0.1" if "no_grpc_proxy" in given else "-"]


@pytest.mark.parametrize(
    ("program", "code", "line"),
    [
        ("sys.exit(3) if p else time.sleep(1)", 3, "process 1 of 2 ended with exit code 3; the same command goes on"),
        ("p and sys.exit('no disk')", 1, "process 1 of 2 ended with exit code 1: no disk; the same command goes on"),
        ("p and os.kill(os.getpid(), 9)", 137, "process 1 of 2 was killed by SIGKILL; the same command goes on"),
        # The end of the process that lost the other is reported first.
        ("(time.sleep(1), os.kill(os.getpid(), 9)) if p else sys.exit(1)", 137, "process 1 of 2 was killed by SIGKILL"),
        ("p or os.kill(os.getpid(), 9)", 137, "process 0 of 2 was killed by SIGKILL; the same command goes on"),
    ],
)
def test_the_first_to_fail_is_named(capfd, program, code, line):
    assert launch(program) == code
    assert line in capfd.readouterr().err


@pytest.mark.parametrize("code", [2, 143])
def test_an_end_that_the_first_process_reports_is_not_reported_again(capfd, code):
    assert launch(f"sys.exit({code})") == code
    assert capfd.readouterr().err == ""


def test_processes_that_do_not_notice_a_failure_are_killed():
    began = time.monotonic()
    assert launch("sys.exit(1) if p else time.sleep(100)", seconds_to_notice=1.0) == 1
    assert time.monotonic() - began < 50


@pytest.mark.parametrize(
    ("code", "said", "more"), [(143, "stopped by SIGTERM", "; the same command goes on"), (2, "seed=-1: must be", "\n")]
)
def test_processes_that_wait_for_one_that_has_ended_are_asked_to_stop(code, said, more, capfd, monkeypatch):
    """What another process than the first refuses is printed, without a word of going on."""
    monkeypatch.setattr(local, "SECONDS_TO_ASK", 0.5)
    assert launch(f"print({said!r}) or sys.exit({code}) if p else time.sleep(100)", seconds_to_notice=600) == code
    assert f"process 1 of 2 ended with exit code {code}: {said}{more}" in capfd.readouterr().err


@pytest.mark.usefixtures("hears_sighup")
@pytest.mark.parametrize("first, second", [(signal.SIGINT, signal.SIGINT), (signal.SIGUSR1, signal.SIGTERM)])
def test_a_signal_is_handed_on_as_sigterm_and_a_second_one_kills(tmp_path, first, second):
    program = (
        "import signal; signal.signal(signal.SIGTERM, lambda *_: open(f'{os.getcwd()}/heard-{p}', 'w').close()); "
        f"os.chdir({str(tmp_path)!r}); open(f'ready-{{p}}', 'w').close(); [time.sleep(0.1) for _ in range(600)]"
    )

    def interrupt_twice():
        for name, number in (("ready", first), ("heard", second)):
            while len(list(tmp_path.glob(f"{name}-*"))) < 2:
                time.sleep(0.05)
            os.kill(os.getpid(), number)

    threading.Thread(target=interrupt_twice, daemon=True).start()
    assert launch(program) == 128 + signal.SIGKILL


@pytest.mark.parametrize("received", [[signal.SIGHUP, signal.SIGHUP], [signal.SIGUSR2, signal.SIGTERM]])
def test_a_terminal_that_closes_stops_the_children_once(tmp_path, received):
    """It may send several signals at once: all of them are one request, and a later SIGHUP is none."""
    program = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(7)))\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "time.sleep(60)"
    )
    with Children() as children:
        process = children.start([sys.executable, "-c", program, str(tmp_path / "ready")])
        wait_for((tmp_path / "ready").exists)
        children.signals += received
        children.forward_signals()
        children.signals += signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2
        assert children.wait(process) == 7


@pytest.mark.parametrize(
    "given", ["=0", "=-1", "=two", "=65", "=1.5", "=", "", f"={'9' * 5000}"], ids=lambda text: text[:9]
)
def test_numbers_of_processes_out_of_range_are_refused(capsys, given):
    assert command_line.main([f"--processes{given}", "--config=configs/digits.py"]) == 2
    assert capsys.readouterr().err == f"processes={given.removeprefix('=')!r}: must be in [1, 64]\n"


# ---- clusters --------------------------------------------------------------------------------------------------------


ROOT = LAUNCH.parent
PAGE = (ROOT / "docs" / "processes.md").read_text()
MANIFESTS = sorted(LAUNCH.glob("jobset*.yaml"))
SCRIPTS = [LAUNCH / "slurm.sh", ROOT / ".ci" / "run"]

# Stand-ins: sbatch runs the script, with the variables that SLURM sets for it, in place of its own options and those of
# the script; srun shows what it would start; kubectl shows its arguments.
SBATCH = f"""#!{sys.executable}
import itertools, os, re, sys
options = list(itertools.takewhile(lambda word: word.startswith("--"), sys.argv[1:]))
script, *arguments = sys.argv[1 + len(options):]
given = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", open(script).read(), re.MULTILINE))
given |= dict(option.removeprefix("--").split("=", 1) for option in options)
variables = {{"SLURM_SUBMIT_DIR": os.getcwd(), "SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": given["gpus-per-node"],
              "SLURM_CPUS_PER_TASK": given["cpus-per-task"]}}
os.environ.pop("SRUN_CPUS_PER_TASK", None)
print(given)
sys.stdout.flush()
os.execvpe("bash", ["bash", script, *arguments], os.environ | variables)
"""
SHOWS = f"""#!{sys.executable}
import os, sys
print(sys.argv[1:])
print([os.environ.get(name) for name in ("SRUN_CPUS_PER_TASK", "JAX_LOCAL_DEVICE_IDS")])
"""


def cluster_commands(name):
    found = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    return [line for line in found if name in line.split()]


def run_with_stand_ins(line, folder):
    """Runs a command line of a page; returns the lines that the stand-ins print."""
    for name, text in (("sbatch", SBATCH), ("srun", SHOWS), ("kubectl", SHOWS)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, env={**os.environ, **path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [ast.literal_eval(printed) for printed in done.stdout.splitlines()]


def check_flags(arguments, *, num_devices):
    """Checks that the flags are those of train.py, and that the config's workers fill so many devices."""
    for argument in config_flags.split(["train.py", *arguments])[0][1:]:
        assert argument.removeprefix("--").partition("=")[0] in train.FLAGS, argument
    with flagsaver.flagsaver():
        config, _ = config_flags.parse(["train.py", *(word for word in arguments if "JOB_COMPLETION" not in word)])
    assert config.num_workers % num_devices == 0


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shell_scripts_are_free_of_what_shellcheck_finds(script):
    beside = shutil.which("shellcheck", path=os.path.dirname(sys.executable))
    found = beside or shutil.which("shellcheck") or pytest.skip("needs shellcheck, which requirements-dev.txt has")
    done = subprocess.run([found, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("line", [*cluster_commands("sbatch"), "the script's own"])
def test_commands_of_slurm_start_a_process_on_each_machine_with_all_of_its_devices(line, tmp_path):
    if line == "the script's own":
        (line,) = re.findall(r"^# +(sbatch .*)$", (LAUNCH / "slurm.sh").read_text(), re.MULTILINE)
    given, (_, _, program, *flags), (cpus, devices) = run_with_stand_ins(line, tmp_path)
    gpus = int(given["gpus-per-node"])
    assert given["ntasks-per-node"] == "1" and {"partition", "account"} <= set(given)
    assert cpus == given["cpus-per-task"] and devices == ",".join(map(str, range(gpus)))
    assert program == "train.py" and any(flag.startswith("--workdir=") for flag in flags)
    check_flags(flags, num_devices=int(given["nodes"]) * gpus)


# The script's commands of SLURM. The stand-in of srun does as srun does: SIGTERM kills the step, SIGUSR1 is passed on.
SRUN = """#!/bin/bash
trap 'echo killed; exit 137' TERM
trap 'echo heard; exit 138' USR1
touch ready
for _ in {1..600}; do sleep 0.1; done
"""


@pytest.mark.parametrize("sent", ["the signal that it asks for", "SIGTERM"])
def test_the_script_for_slurm_saves_and_requeues(sent, tmp_path):
    script = LAUNCH / "slurm.sh"
    (asked,) = re.findall(r"^#SBATCH --signal=B:(\w+)@\d+$", script.read_text(), re.MULTILINE)
    for name, text in (("srun", SRUN), ("scontrol", '#!/bin/bash\necho "$@"\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    slurm = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "7"}
    job = subprocess.Popen(["bash", script], env={**os.environ, **slurm}, stdout=subprocess.PIPE, text=True)
    wait_for((tmp_path / "ready").exists)
    job.send_signal(signal.SIGTERM if sent == "SIGTERM" else signal.Signals[f"SIG{asked}"])
    assert job.communicate(timeout=60)[0] == "heard\nrequeue 7\n" and job.returncode == 138


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_for_kubernetes(path, tmp_path):
    (line,) = [line for line in cluster_commands("kubectl") if path.name in line.split("#")[0]]
    (arguments, _) = run_with_stand_ins(line, tmp_path)
    assert arguments == ["apply", "-f", f"launch/{path.name}"]
    manifest = yaml.safe_load(path.read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (job,) = manifest["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    ((_, devices),) = container["resources"]["limits"].items()
    count = spec["parallelism"]
    assert container["command"][:2] == ["python", "train.py"]
    check_flags(container["command"][2:], num_devices=count * devices)
    assert spec["completions"] == count and f"--num_processes={count}" in container["command"]
    host = f"{manifest['metadata']['name']}-{job['name']}-0-0.{manifest['metadata']['name']}"
    assert f"--coordinator={host}:8476" in container["command"]
    if slice_shape := pod.get("nodeSelector", {}).get("cloud.google.com/gke-tpu-topology"):
        assert math.prod(map(int, slice_shape.split("x"))) == count * devices
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {mount["name"] for mount in mounts.values()} == {volume["name"] for volume in pod["volumes"]}
    (data,) = (each["value"] for each in container["env"] if each["name"] == "TFDS_DATA_DIR")
    (out,) = (word.partition("=")[2] for word in container["command"] if word.startswith("--workdir="))
    assert mounts[data]["readOnly"] and not mounts[f"/{out.split('/')[1]}"].get("readOnly")
