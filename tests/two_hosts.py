"""Two hosts on this machine whose link delays, and can be cut."""

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import threading
import time
from collections import deque

from experiments.claims.adasum_cost import hosts

DELAY_SECONDS = 0.02  # one way
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_LARGEST_FRAME = 1 << 16


def why_no_link():
    """Returns what this machine lacks for two hosts with a link of a bandwidth, or ""."""
    trial = f"syncsum-{os.getpid()}-trial"
    up = f"ip netns add {trial} && ip -n {trial} link set lo up"
    limited = f"tc -n {trial} qdisc add dev lo root tbf rate 1mbit burst 10kb latency 1ms"
    tried = subprocess.run(f"{up} && {limited}", shell=True, capture_output=True, text=True)
    subprocess.run(f"ip netns del {trial}", shell=True, capture_output=True)
    if tried.returncode == 0:
        return ""
    return tried.stderr.strip() or f"exit code {tried.returncode}"


def why_not():
    """Returns what this machine lacks for two hosts whose link can be cut, or ""."""
    has_tun = os.access("/dev/net/tun", os.R_OK | os.W_OK)
    return why_no_link() or ("" if has_tun else "needs /dev/net/tun")


class TwoHosts(hosts.TwoHosts):
    """Two hosts whose link is a network interface in each.

    This process passes their frames on, since kernels without a delay of their own are common.
    """

    def __init__(self):
        super().__init__()
        self._ends: list[int] = []
        self._is_cut = threading.Event()
        self._stop = threading.Event()
        self.frames_passed = self.frames_lost = 0

    def connect(self, namespaces, undo):
        for namespace in namespaces:
            self._ends.append(_interface(namespace))
            undo.callback(os.close, self._ends[-1])
        link = threading.Thread(target=self._pass_on, daemon=True)
        link.start()
        undo.callback(link.join)
        undo.callback(self._stop.set)

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


def _interface(namespace):
    """A network interface in a namespace, whose frames are read from and written to what is returned."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as here, open(f"/run/netns/{namespace}") as there:
        if libc.setns(there.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            end = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", hosts.INTERFACE.encode(), _IFF_TAP | _IFF_NO_PI))
        finally:
            libc.setns(here.fileno(), _CLONE_NEWNET)
    return end
