"""Two hosts on this machine: network namespaces with a link between them that carries so many bits a second."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
from collections.abc import Sequence

NUM_HOSTS = 2
_INTERFACE = "wire"
_QUEUE_MILLISECONDS = 200  # frames that would wait for longer are lost, as on any link
_BURST_BYTES = 128 * 1024  # two of the largest packets that the kernel hands over at once
_PROGRAMS = ("ip", "tc")


class TwoHosts:
    """Two network namespaces that see each other and nothing else; made on entry, removed on exit.

    Each end of the link sends at most ``bits_per_second``, and receives as much meanwhile. The link adds no latency
    of its own.

    Args:
      bits_per_second: what each host can send.

    Raises:
      ValueError: on entry: one line that says what this machine lacks.
    """

    def __init__(self, *, bits_per_second: float):
        self._bits_per_second = bits_per_second
        self._namespaces = [f"syncsum-{os.getpid()}-{host}" for host in range(NUM_HOSTS)]
        self.addresses = [f"10.231.78.{host + 1}" for host in range(NUM_HOSTS)]

    def __enter__(self) -> "TwoHosts":
        if reason := why_not():
            raise ValueError(f"two hosts with a link between them: {reason}")
        with contextlib.ExitStack() as undo:
            for namespace, address in zip(self._namespaces, self.addresses, strict=True):
                _run(["ip", "netns", "add", namespace])
                undo.callback(subprocess.run, ["ip", "netns", "del", namespace], check=False, capture_output=True)
                # `ip netns exec` puts this file in the place of /etc/hosts: a host's name is its address on the link.
                etc = pathlib.Path("/etc/netns") / namespace
                etc.mkdir(parents=True)
                undo.callback(shutil.rmtree, etc, ignore_errors=True)
                (etc / "hosts").write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
            one, other = self._namespaces
            ends = (_INTERFACE, "netns", one, "type", "veth", "peer", "name", _INTERFACE, "netns", other)
            _run(["ip", "link", "add", *ends])
            rate = ("rate", f"{self._bits_per_second:.0f}bit", "burst", str(_BURST_BYTES))
            for namespace, address in zip(self._namespaces, self.addresses, strict=True):
                _run(["ip", "-n", namespace, "address", "add", f"{address}/30", "dev", _INTERFACE])
                for interface in (_INTERFACE, "lo"):
                    _run(["ip", "-n", namespace, "link", "set", interface, "up"])
                queue = ("root", "tbf", *rate, "latency", f"{_QUEUE_MILLISECONDS}ms")
                _run(["tc", "-n", namespace, "qdisc", "add", "dev", _INTERFACE, *queue])
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def inside(self, host: int, command: Sequence[str]) -> list[str]:
        """Returns the command line that runs a command on one of the hosts."""
        return ["ip", "netns", "exec", self._namespaces[host], *command]

    def bytes_sent(self, host: int) -> int:
        """Returns how many bytes a host has sent so far."""
        counter = f"/sys/class/net/{_INTERFACE}/statistics/tx_bytes"
        return int(_run(self.inside(host, ["cat", counter])))


def why_not() -> str:
    """Returns what this machine lacks for two hosts, or ""."""
    if missing := [program for program in _PROGRAMS if shutil.which(program) is None]:
        return f"needs the program {missing[0]} (iproute2)"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    trial = f"syncsum-{os.getpid()}-trial"
    try:
        _run(["ip", "netns", "add", trial])
        try:
            limit = ("rate", "1mbit", "burst", "10kb", "latency", "1ms")
            _run(["tc", "-n", trial, "qdisc", "add", "dev", "lo", "root", "tbf", *limit])
        finally:
            _run(["ip", "netns", "del", trial])
    except ValueError as error:
        return str(error)
    return ""


def _run(command: Sequence[str]) -> str:
    """Returns what a command prints; raises ValueError, one line, if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        line = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        raise ValueError(f"{' '.join(command)}: {line}")
    return done.stdout
