"""Workers that are Ray's processes: whole runs by the command, and kills. They need Ray: requirements-live.txt."""

import contextlib
import functools
import importlib.util
import ipaddress
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from experiments.claims.adasum_cost.hosts import TwoHosts
from tests.in_process import keys
from tests.started import start, wait_for
from tests.stepper import records
from tests.test_live import ASYNC, BACKUP, DIGITS, HUNDRED, assert_replayed
from tests.two_hosts import why_no_link

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: make test-live")

FORTY = "--config.train_steps=40"
# Each worker imports JAX, again after a kill: three are enough for two to go on without one.
TWO_OF_THREE = (*keys("num_workers=3 reducer.name=backup_workers reducer.num_required=2"), FORTY)
DELAYS = '--delays={"name": "shifted_exponential", "shift_seconds": 0.02, "scale_seconds": 0.03}'


def command(workdir, *flags):
    return [sys.executable, "train.py", "--live", *DIGITS, *HUNDRED, *flags, DELAYS, f"--workdir={workdir}"]


def run(line, **environment):
    process = start(line, **environment)
    output, _ = process.communicate(timeout=280)
    return process.returncode, output


def processes_of(server):
    """Returns the server and all processes below it, id -> command."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    parents = {int(pid): int(parent) for pid, parent, _ in rows}

    def is_below(pid):
        while pid in parents and pid != server:
            pid = parents[pid]
        return pid == server

    return {int(pid): text for pid, _, text in rows if is_below(int(pid))}


def workers_of(server):
    """Returns the ids of a server's worker processes."""
    return [pid for pid, text in processes_of(server).items() if text.startswith("ray::_Process")]


def listening(processes):
    """Returns (address, port) of each socket at which one of the processes listens."""
    inodes = set()
    for pid in processes:
        with contextlib.suppress(OSError):
            inodes |= {os.readlink(fd) for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir()}
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in inodes:
                host, port = local.split(":")
                words = [bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8)]
                address = ipaddress.ip_address(b"".join(words))
                yield getattr(address, "ipv4_mapped", None) or address, int(port, 16)


def other_address():
    """Returns the address by which this host reaches others, or one of the loopback network; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.254", 9))
        except OSError:
            return "127.0.0.2"
        return probe.getsockname()[0]


def lines_of(workdir):
    path = workdir / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def until(condition, process):
    """Waits until a condition holds; the process must not end before."""
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def assert_gone(processes):
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in processes))


def test_a_live_run_equals_its_replay(tmp_path):
    """Two processes with two devices each, a worker on each device."""
    code, output = run(command(tmp_path / "live", "--workers_per_process=2", "--devices_per_process=2"))
    assert code == 0, output
    assert_replayed(tmp_path, *HUNDRED)


def ray_settings(folder):
    """The variables of a user who asks Ray for no token, and for a folder of one's own."""
    folder.mkdir()
    short = len(os.fsencode(folder)) <= 20  # a socket's path is short
    found = {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "0" * 64, **({"RAY_TMPDIR": str(folder)} if short else {})}
    return {"HOME": os.devnull, **found}


def check_nobody_from_elsewhere_reaches(server):
    """Returns the path of the token without which not even this machine's programs do."""
    processes = processes_of(server)
    sockets = set(listening(processes))
    assert len(sockets) >= 3 and all(address.is_loopback for address, _ in sockets), (sockets, processes)
    tokens = {
        value.partition("=")[2]
        for pid in workers_of(server)
        for value in pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0")
        if value.startswith("RAY_AUTH_TOKEN_PATH=")
    }
    (token,) = map(pathlib.Path, tokens)
    assert token.stat().st_mode & 0o777 == 0o600 and token.parent.stat().st_mode & 0o777 == 0o700
    for _, port in sockets:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((other_address(), port), timeout=5).close()
    return token


@pytest.mark.parametrize("flags", [TWO_OF_THREE, (*ASYNC, FORTY)], ids=["backups", "asynchronous"])
def test_a_run_loses_nothing_by_a_kill_and_a_sigterm_and_nobody_from_elsewhere_reaches_it(flags, tmp_path):
    """The home folder cannot be written to, and the user's environment asks Ray for no token."""
    workdir = tmp_path / "live"
    line = command(workdir, *flags)
    server = start(line, **ray_settings(tmp_path / "ray"))
    until(lambda: lines_of(workdir) >= 5, server)
    token = check_nobody_from_elsewhere_reaches(server.pid)
    os.kill(workers_of(server.pid)[0], signal.SIGKILL)
    until(lambda: lines_of(workdir) >= 20, server)
    server.terminate()
    output, _ = server.communicate(timeout=120)
    assert not token.parent.exists()
    before = records(workdir)
    last = before[-1]["step"]
    assert server.returncode == 143 and "died" in output and f"stopped by SIGTERM at step {last}" in output, output
    code, output = run(line)
    assert code == 0, output
    assert last >= 10 and records(workdir)[:last] == before
    assert [record["step"] for record in records(workdir)] == list(range(1, 41))
    assert_replayed(tmp_path, *HUNDRED, *flags, same=None if flags is TWO_OF_THREE else ["staleness"])
    assert flags is TWO_OF_THREE or max(record["staleness"] for record in records(workdir)) >= 2


@pytest.mark.parametrize(
    "parts", [["raylet/raylet"], ["gcs/gcs_server"], ["ray::DashboardAgent", "ray::RuntimeEnvAgent"]]
)
def test_processes_of_ray_are_killed(parts, tmp_path):
    """The run goes on without them, or ends in a line that says how to go on."""
    flags = ("--config.train_steps=80",)
    server = start(command(tmp_path / "live", *flags))
    until(lambda: lines_of(tmp_path / "live") >= 20, server)
    processes = processes_of(server.pid)
    for part in parts:
        os.kill(next(pid for pid, text in processes.items() if part in text), signal.SIGKILL)
    output, _ = server.communicate(timeout=280)
    assert server.returncode in (0, 1), output
    if server.returncode:
        assert "the same command goes on" in output.splitlines()[-1], output
    assert_gone(processes)
    code, output = run(command(tmp_path / "live", *flags))
    assert code == 0, output
    assert [record["step"] for record in records(tmp_path / "live")] == list(range(1, 81))
    assert_replayed(tmp_path, *HUNDRED, *flags)


TROUBLED = """
import pathlib
from data import decoded
from data.sources import source_of

class Troubled:
    def __init__(self, examples, folder):
        self.num_examples, self._examples = examples.num_examples, examples
        self._trouble = pathlib.Path(folder, "trouble")

    def gather(self, index, batch_index):
        if self._trouble.exists():
            kind = self._trouble.read_text()
            self._trouble.unlink(missing_ok=True)
            raise MemoryError("no room for a batch") if kind == "memory" else FileNotFoundError("the data are gone")
        return self._examples.gather(index, batch_index)

    def part(self, start, stop, *, mode):
        return Troubled(self._examples.part(start, stop, mode=mode), self._trouble.parent)

def digits(folder, evaluate_on="test"):
    def load(seed):
        dataset = decoded.load("digits")
        return dataset._replace(train=Troubled(dataset.train, folder))
    return source_of(decoded.check("digits"), load, placement="stream", evaluate_on=evaluate_on)
"""
# Kills of workers, kills of the server, SIGTERMs, exceptions: LIVE_TROUBLES=20,3,5,5 for many.
TROUBLES = tuple(int(count) for count in os.environ.get("LIVE_TROUBLES", "2,1,1,1").split(","))


def going_on_at(output):
    found = re.search(r"going on at step (\d+) of", output)
    return int(found[1]) if found else 0


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(int(os.environ.get("LIVE_TROUBLE_SEEDS", "1"))))
@pytest.mark.parametrize(
    ("flags", "kind"),
    [(BACKUP, "memory"), (ASYNC, "gone")],
    ids=["backups", "asynchronous"],
)
def test_troubles_at_random_moments_lose_nothing_that_was_saved(flags, kind, seed, tmp_path, monkeypatch):
    module = tmp_path.name  # no other test's
    (tmp_path / f"{module}.py").write_text(TROUBLED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    draw = random.Random(seed)
    workdir = tmp_path / "live"
    every = 20
    names = ("worker", "server", "stop", "exception")
    troubles = [name for name, count in zip(names, TROUBLES, strict=True) for _ in range(count)]
    draw.shuffle(troubles)
    data = (f"--config.data.name={module}:digits", f"--config.data.folder={tmp_path}")
    steps = (f"--config.train_steps={40 * len(troubles) + 100}", f"--config.checkpoint_every_steps={every}")
    flags = (*flags, *data, *steps, "--config.eval_every_steps=100000")
    line = command(workdir, *flags)
    server = start(line)
    last = 0
    for trouble in troubles:
        goal = max(lines_of(workdir), last) + draw.randint(3, 25)
        until(lambda goal=goal: lines_of(workdir) >= goal, server)
        if trouble == "exception":
            (tmp_path / "trouble").write_text(kind)
        elif trouble == "worker":
            until(functools.partial(workers_of, server.pid), server)
            os.kill(draw.choice(workers_of(server.pid)), signal.SIGKILL)
        else:
            processes = processes_of(server.pid)
            server.send_signal(signal.SIGTERM if trouble == "stop" else signal.SIGKILL)
            output, _ = server.communicate(timeout=280)
            assert_gone(processes)
            (tmp_path / "trouble").unlink(missing_ok=True)  # of a start it would be a refusal
            done = records(workdir)[-1]["step"]
            if trouble == "stop":
                assert server.returncode == 143 and f"stopped by SIGTERM at step {done};" in output, output
                last = done
            else:
                last = max(last, done // every * every - every)  # the latest checkpoint may not have been whole
            server = start(line)
            until(lambda last=last: lines_of(workdir) > last, server)
    output, _ = server.communicate(timeout=280)
    assert server.returncode == 0 and going_on_at(output) >= last, output
    count = 40 * len(troubles) + 100
    assert [record["step"] for record in records(workdir)] == list(range(1, count + 1))
    assert_replayed(tmp_path, *HUNDRED, *flags, same=["step"], tolerance=1e-5, trusted=[module])


@contextlib.contextmanager
def ray_node(hosts, host, *flags, environment):
    """Starts a node of a cluster on one of the hosts, away from the repository; it ends with the block."""
    ray = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--block", "--num-cpus=1"]
    line = hosts.inside(host, [*ray, f"--node-ip-address={hosts.addresses[host]}", *flags])
    node = start(line, cwd="/", **environment)
    try:
        assert any("Ray runtime started" in text for text in node.stdout)
        yield
    finally:
        node.terminate()
        node.communicate(timeout=60)


@pytest.mark.skipif(bool(why_no_link()), reason=f"needs two hosts: {why_no_link()}")
def test_the_workers_of_a_cluster_are_on_both_of_its_hosts(tmp_path, tmp_path_factory):
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "5" * 32, "RAY_USAGE_STATS_ENABLED": "0"}
    folder = tmp_path_factory.getbasetemp().parent / "ray"  # a socket's path is short
    with TwoHosts() as hosts, contextlib.ExitStack() as nodes:
        address = f"{hosts.addresses[0]}:6379"
        head = ("--head", "--port=6379", "--include-dashboard=false", f"--temp-dir={folder}", "--num-gpus=1")
        nodes.enter_context(ray_node(hosts, 0, *head, environment=secret))
        nodes.enter_context(ray_node(hosts, 1, f"--address={address}", environment=secret))
        line = hosts.inside(0, command(tmp_path / "live", *BACKUP, f"--ray_address={address}"))
        code, output = run(line, **secret, JAX_PLATFORMS="")
        assert code == 2, output
        assert output.splitlines()[-1].startswith("devices_per_process=1: 4 processes need 4 GPUs")
        sent = hosts.bytes_sent(1)
        code, output = run(line, **secret, JAX_PLATFORMS="cpu")
        assert code == 0, output
        gradient = 4 * 65 * 10
        assert hosts.bytes_sent(1) - sent > 100 * gradient  # one that is late twice in a row sends less than 2 a step
    assert_replayed(tmp_path, *HUNDRED, *BACKUP)
