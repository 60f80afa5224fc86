"""The launcher of several processes, with programs that train nothing, and the files for clusters."""

import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

import pytest
import yaml

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


def check_flags(arguments):
    for argument in config_flags.split(["train.py", *arguments])[0][1:]:
        assert argument.removeprefix("--").partition("=")[0] in train.FLAGS, argument


def test_the_script_for_slurm():
    script = LAUNCH / "slurm.sh"
    subprocess.run(["bash", "-n", script], check=True)
    assert re.search(r"^srun .*train\.py \"\$@\" &$", script.read_text(), re.MULTILINE)
    (example,) = re.findall(r"^#     sbatch --nodes=\d+ launch/slurm.sh (.*)$", script.read_text(), re.MULTILINE)
    check_flags(shlex.split(example))


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


def test_the_manifest_for_kubernetes():
    manifest = yaml.safe_load((LAUNCH / "jobset.yaml").read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (job,) = manifest["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"][:2] == ["python", "train.py"]
    check_flags(container["command"][2:])
    count = spec["parallelism"]
    assert spec["completions"] == count and f"--num_processes={count}" in container["command"]
    host = f"{manifest['metadata']['name']}-{job['name']}-0-0.{manifest['metadata']['name']}"
    assert f"--coordinator={host}:8476" in container["command"]
