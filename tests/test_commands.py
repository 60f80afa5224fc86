"""Commands as processes: each signal ends them in one line at any moment, and output never decides how they end."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from launch import signals
from tests import ROOT
from tests.started import signals_of, wait_for

BEGIN = "import ctypes, os, signal, sys, tempfile, time\nfrom launch import command, signals\ncommand.begin()\n"
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore"}


def start(*arguments, shell='exec "$@"', **options):
    """Starts Python by a line of a shell, which can close streams and ignore signals."""
    command = ["bash", "-c", shell, "bash", sys.executable, *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen(command, cwd=ROOT, env={**ENVIRONMENT}, **options)


def program(text, **options):
    """Starts a program that is a command, and waits until it prints its first line."""
    started = start("-c", BEGIN + text, **options)
    assert started.stdout.readline() == "ready\n", started.communicate()[1]
    return started


def ended_by(process, number):
    """Sends a signal; returns the exit code, and what the process says at its end."""
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


def wait_until_it_listens(process):
    wait_for(lambda: process.poll() is not None or signal.SIGTERM in signals_of(process.pid, "SigCgt"))


# ---- signals ---------------------------------------------------------------------------------------------------------


COMMANDS = {
    "train": ("train.py", "--config=configs/digits.py", "--dry_run"),
    "experiments": ("-m", "experiments", "report", "convergence_constants"),
    "one benchmark": ("-m", "benchmarks.step", "--repeats=1"),
    "data": ("-m", "data.prepare", "mnist"),
}


@pytest.mark.usefixtures("hears_sighup")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_starts_up_ends_in_one_line(name):
    more = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1) if name == "train" else ()
    for number in (signal.SIGINT, *more):
        process = start(*COMMANDS[name])
        wait_until_it_listens(process)
        assert ended_by(process, number) == (128 + number, f"stopped by {number.name}\n")


@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.0, 2.0, 3.0])
def test_ctrl_c_twice_at_any_moment_of_the_start(seconds, tmp_path):
    process = start("train.py", "--config=configs/digits.py", f"--workdir={tmp_path}/run", "--config.train_epochs=500")
    wait_until_it_listens(process)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out + said).count("stopped by SIGINT") == 1
    assert "Traceback" not in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_that_waits_inside_a_library(number):
    waits = "lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)\n"
    process = program(waits + "lock(mutex)\nprint('ready')\nlock(mutex)\n")  # a deadlock, which no signal interrupts
    assert ended_by(process, number) == (128 + number, f"stopped by {number.name}\n")


COMPILES = """
import train
def compile(*arguments, **options):
    print("ready")
    time.sleep(20)
train.make_step = lambda *arguments, **options: compile
sys.exit(train.main(["train.py", "--config.model.name=softmax", "--num_devices=1", f"--workdir={FOLDER}/run"]))
"""


def test_a_signal_ends_a_run_that_compiles_its_first_step(tmp_path):
    process = program(f"FOLDER = {str(tmp_path)!r}\n{COMPILES}")
    code, said = ended_by(process, signal.SIGTERM)
    assert (code, said.splitlines()[-1]) == (143, "stopped by SIGTERM")
    assert not list(tmp_path.glob("run/checkpoints/[0-9]*"))


def test_a_signal_is_not_lost_in_a_callback_that_swallows_exceptions():
    swallows = "class Swallows:\n    def __del__(self):\n        print('ready')\n        time.sleep(60)\n"
    process = program(swallows + "one = Swallows()\ndel one\nprint('on')\n")
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert (process.returncode, out, said) == (130, "", "stopped by SIGINT\n")


CLEANS = """
def work():
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        print("ready")
        time.sleep(60)
sys.exit(signals.interruptible(work))
"""


@pytest.mark.usefixtures("hears_sighup")
@pytest.mark.parametrize("number", signals.STOPS)
def test_an_interruptible_command_cleans_up(tmp_path, number):
    started = start("-c", BEGIN + CLEANS, str(tmp_path))
    assert started.stdout.readline() == "ready\n"
    time.sleep(0.2)  # until it has left print()
    assert ended_by(started, number) == (128 + number, f"stopped by {signal.Signals(number).name}\n")
    assert not list(tmp_path.iterdir())


def test_a_second_signal_ends_a_command_that_does_not_finish_cleaning_up():
    text = "def work():\n    try:\n        print('ready')\n        time.sleep(60)\n    finally:\n"
    text += "        print('cleans')\n        time.sleep(60)\nsys.exit(signals.interruptible(work))\n"
    process = program(text)
    time.sleep(0.2)  # until it has left print()
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "cleans\n"
    assert ended_by(process, signal.SIGTERM) == (143, "stopped by SIGTERM\n")


@pytest.mark.usefixtures("hears_sighup")
def test_nohup_keeps_its_meaning():
    process = program("print('ready')\ntime.sleep(60)\n", shell='trap "" HUP; exec "$@"')
    assert signal.SIGHUP in signals_of(process.pid, "SigIgn")
    assert signal.SIGTERM in signals_of(process.pid, "SigCgt")
    process.send_signal(signal.SIGHUP)
    assert ended_by(process, signal.SIGTERM)[0] == 143


def test_a_forked_process_has_the_signals_of_a_new_one():
    """Also if a signal comes before Python has made the process's handlers, when it still has its parent's pipe."""
    text = "print('ready')\nfor _ in range(100):\n    child = os.fork()\n"
    text += "    if not child:\n        time.sleep(5)\n        os._exit(0)\n"
    text += "    os.kill(child, signal.SIGTERM)\n    print(os.waitpid(child, 0)[1])\n"
    process = program(text)
    assert process.communicate(timeout=60)[0] == 100 * f"{int(signal.SIGTERM)}\n"
    assert process.returncode == 0


# ---- children --------------------------------------------------------------------------------------------------------


STARTS = """
from launch.children import Children
with Children() as children:
    children.wait(children.start([sys.executable, "-c", sys.argv[1]]))
"""


@pytest.mark.usefixtures("hears_sighup")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_children_end_with_the_process_that_started_them(number):
    child = BEGIN + "print(os.getpid(), 'PARENT' in ''.join(os.environ))\ntime.sleep(600)\n"
    parent = start("-c", BEGIN + STARTS, child)
    pid, has_variable = parent.stdout.readline().split()
    assert has_variable == "False"  # a process that the child starts would take another file for the pipe
    parent.send_signal(number)
    said = parent.communicate(timeout=60)[1]  # at the end of the output, which the child has open too
    assert "stopped by SIGTERM" in said
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"))


# ---- output ----------------------------------------------------------------------------------------------------------


PRINTS = BEGIN + "print('\\u0437' * 100_000)\nprint('second', file=sys.stderr)\nsys.exit(7)\n"


@pytest.mark.parametrize("closing", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing(closing, tmp_path):
    opens = f"file = open({str(tmp_path / 'file')!r}, 'w')\nassert file.fileno() > 2\nos.write(2, b'from a library')\n"
    process = start("-c", BEGIN + opens + PRINTS, shell=f'exec "$@" {closing}')
    process.communicate(timeout=60)
    assert process.returncode == 7 and (tmp_path / "file").read_text() == ""


def test_a_full_disk_changes_nothing():
    with open("/dev/full", "w") as full:
        assert start("-c", PRINTS, stdout=full, stderr=full).wait(timeout=60) == 7


def test_a_pipe_that_nobody_reads_changes_nothing():
    process = start("-c", PRINTS)
    process.stdout.close()
    with process.stderr as stderr:
        assert stderr.read() == "second\n" and process.wait(timeout=60) == 7


def test_characters_that_an_encoding_lacks_are_escaped(monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "PYTHONIOENCODING", "ascii")
    process = start("-c", PRINTS)
    assert process.communicate(timeout=60)[0].startswith("\\u0437") and process.returncode == 7


LIBRARY = "os.write(1, b'[Gloo] connected\\n')\nprint('ours')\n"
LIBRARY += "output.redirect(os.open(sys.argv[1], os.O_CREAT | os.O_RDWR))\n"
LIBRARY += "os.write(1, b'theirs\\n')\nprint('in the log')\nprint('said', file=sys.stderr)\n"


@pytest.mark.parametrize("flag", ["--num_processes=2", "--evaluate_only"])
def test_what_libraries_print_stands_before_no_line_of_several_processes(flag, tmp_path):
    process = start("-c", BEGIN + "from launch import output\n" + LIBRARY, str(tmp_path / "log"), flag)
    out, said = process.communicate(timeout=60)
    assert (out, said) == ("ours\n" if "num_processes" in flag else "[Gloo] connected\nours\n", "")
    assert (tmp_path / "log").read_text() == "theirs\nin the log\nsaid\n"
