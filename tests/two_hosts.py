"""Two hosts on this machine: network namespaces with a link between them that delays, and can be cut."""

import contextlib
import ctypes
import fcntl
import os
import pathlib
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections import deque

NAMES = ("A", "B")
DELAY_SECONDS = 0.02  # one way
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_LARGEST_FRAME = 1 << 16


def why_not():
    """Returns what this machine lacks for two hosts, or ""."""
    if shutil.which("ip") is None:
        return "needs the program ip"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "needs /dev/net/tun"
    made = subprocess.run(["ip", "netns", "add", "two-hosts-trial"], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", "two-hosts-trial"], capture_output=True)
    return made.stderr.strip()


class TwoHosts:
    """Two network namespaces that see each other and nothing else; made on entry, removed on exit.

    The link is a network interface in each whose frames this process passes on, since kernels without a delay of their
    own are common.
    """

    def __init__(self):
        self._namespaces = [f"two-hosts-{os.getpid()}-{name}" for name in NAMES]
        self.addresses = ["10.231.77.1", "10.231.77.2"]
        self._ends: list[int] = []
        self._is_cut, self._stop = threading.Event(), threading.Event()
        self.frames_passed = self.frames_lost = 0

    def __enter__(self):
        with contextlib.ExitStack() as undo:
            for namespace, address in zip(self._namespaces, self.addresses, strict=True):
                subprocess.run(["ip", "netns", "add", namespace], check=True)
                undo.callback(subprocess.run, ["ip", "netns", "del", namespace], check=False)
                # `ip netns exec` puts this file in the place of /etc/hosts: a host's name is its address on the link.
                etc = pathlib.Path("/etc/netns") / namespace
                etc.mkdir(parents=True)
                undo.callback(shutil.rmtree, etc, ignore_errors=True)
                (etc / "hosts").write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
                self._ends.append(_interface(namespace, address))
                undo.callback(os.close, self._ends[-1])
            link = threading.Thread(target=self._pass_on, daemon=True)
            link.start()
            undo.callback(link.join)
            undo.callback(self._stop.set)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_):
        self._undo.close()

    def inside(self, host, command):
        """The command line that runs a command on one of the two hosts."""
        return ["ip", "netns", "exec", self._namespaces[host], *command]

    def cut(self, seconds):
        """Loses all frames for a while."""
        self._is_cut.set()
        time.sleep(seconds)
        self._is_cut.clear()

    def _pass_on(self):
        waiting = deque()  # (when, where to, frame)
        while not self._stop.is_set():
            timeout = max(0.0, min(0.1, waiting[0][0] - time.monotonic())) if waiting else 0.1
            for end in select.select(self._ends, [], [], timeout)[0]:
                frame = os.read(end, _LARGEST_FRAME)
                if self._is_cut.is_set():
                    self.frames_lost += 1
                else:
                    waiting.append((time.monotonic() + DELAY_SECONDS, sum(self._ends) - end, frame))
            while waiting and waiting[0][0] <= time.monotonic():
                _, end, frame = waiting.popleft()
                self.frames_passed += 1
                with contextlib.suppress(OSError):  # the other end is full: lost, as on any link
                    os.write(end, frame)


def _interface(namespace, address):
    """A network interface in a namespace, whose frames are read from and written to what is returned."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as here, open(f"/run/netns/{namespace}") as there:
        if libc.setns(there.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            end = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", b"wire", _IFF_TAP | _IFF_NO_PI))
            for line in (f"address add {address}/30 dev wire", "link set dev wire up", "link set lo up"):
                subprocess.run(["ip", *line.split()], check=True)
        finally:
            libc.setns(here.fileno(), _CLONE_NEWNET)
    return end
