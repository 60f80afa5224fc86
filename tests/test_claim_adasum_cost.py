"""The claim about the cost of Adasum: one reduction, whole steps over a link, the rule and the report."""

import subprocess
import sys

import pytest

from experiments.claims.adasum_cost import claim as adasum_cost
from experiments.claims.adasum_cost import hosts
from tests import two_hosts

CLAIM = adasum_cost.CLAIM


def benchmark(*, missing=""):
    """Returns the results of three rounds at 10 and at 20 floats, as the benchmark writes them."""
    measured = {
        "adasum over mean, 10": [4.0, 6.0, 4.5],
        "sum over mean, 10": [2.0, 1.0, 4.5],
        "adasum sends, 10": [1.01],
        "sum sends, 10": [1.0],
        "gradient, 10": [10],
        "mean, 10": [1.0, 1.0, 1.0, 2.0, 2.0, 2.0],  # beside Adasum and beside the sum
        "adasum over mean, 20": [3.0, 3.0, 3.0],
        "sum over mean, 20": [2.0, 2.0, 1.0],
        "adasum sends, 20": [2.0],
        "sum sends, 20": [2.0],
        "gradient, 20": [20],
        "mean, 20": [1.0] * 6,
    }
    rows = [{"name": name, "values": values, "missing": missing} for name, values in measured.items()]
    return {"measured": rows, "environment": {"devices": ["cpu"] * 8, "cpu_count": 2}}


def test_digest_pairs_the_calls_of_a_round():
    row = adasum_cost.digest(benchmark())
    assert row["num_floats"] == [10, 20]
    assert row["time_ratio"] == [2.0, 1.5]  # medians of 2, 3, 1 and of 1.5, 1.5, 3
    assert row["bytes_ratio"] == [1.01, 1.0]
    assert row["sum_seconds"] == [2.0, 2.0]
    assert row["mean_ratio"] == [4.5, 3.0]
    assert (row["num_devices"], row["device_kind"], row["cpu_count"]) == (8, "cpu", 2)


def test_digest_refuses_what_was_not_measured():
    with pytest.raises(ValueError, match="adasum over mean, 10: too slow"):
        adasum_cost.digest(benchmark(missing="too slow"))


def test_cost_is_measured_in_a_process_of_its_own():
    row = CLAIM.measure(sizes=[10_000], repeats=1, seed=0)
    assert row["num_devices"] == 8
    assert row["time_ratio"][0] > 0
    assert 0.9 < row["bytes_ratio"][0] < 8  # small leaves are gathered


def test_a_cost_that_cannot_be_measured_is_one_line():
    with pytest.raises(ValueError, match=r"resnet50_like has .* floats at least"):
        CLAIM.measure(sizes=[10], repeats=1, seed=0)


def test_a_machine_without_the_means_says_so_in_one_line(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match="two hosts with a link between them need the program ip"):
        CLAIM.measure(gigabits=1, data="digits", steps=2, seed=0)


def test_steps_over_a_link_are_measured():
    if reason := two_hosts.why_no_link():
        pytest.skip(reason)
    row = CLAIM.measure(gigabits=10, data="digits", steps=10, seed=1)
    assert row["sum_seconds"] > 0 and row["adasum_seconds"] > 0
    assert 0.8 < row["adasum_bytes"] / row["sum_bytes"] < 1.5


def test_two_hosts_see_each_other_over_a_link_of_a_bandwidth():
    if reason := two_hosts.why_no_link():
        pytest.skip(reason)
    listen = (
        "import socket; server = socket.create_server(('', 5555)); print(flush=True)\n"
        "connection = server.accept()[0]\n"
        "while connection.recv(9999): pass"
    )
    send = "import socket, sys; socket.create_connection((sys.argv[1], 5555)).sendall(bytes(10**6))"
    with hosts.TwoHosts(bits_per_second=1e9) as two:
        command = two.inside(0, [sys.executable, "-c", listen])
        with subprocess.Popen(command, stdout=subprocess.PIPE) as listening:
            listening.stdout.readline()
            subprocess.run(two.inside(1, [sys.executable, "-c", send, two.addresses[0]]), check=True)
        assert 1_000_000 < two.bytes_sent(1) < 1_200_000 and two.bytes_sent(0) < 100_000
        for host in range(hosts.NUM_HOSTS):
            limits = subprocess.run(two.inside(host, ["tc", "qdisc", "show"]), capture_output=True, text=True)
            assert "rate 1Gbit" in limits.stdout
        inside = two.inside(0, ["true"])
        assert subprocess.run(inside).returncode == 0
    assert subprocess.run(inside, capture_output=True).returncode != 0  # gone
