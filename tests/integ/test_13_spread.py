# SPDX-License-Identifier: MIT
"""spread: flow, packet, shared: how workers share a UDP address."""
import pytest

from conftest import wait_for
from peers import Collector, config, statsite


def start(bench, spread, workers):
    sink = bench.sink("--number")
    bench_conf = config({"in": {"type": "udp", "bind": "127.0.0.1:{port}", "to": "out", "spread": spread, "receive_buffer": "256MiB"}},
                        {"out": statsite(sink.addresses)}, workers=workers)
    return sink, bench.millrace(conf=bench_conf)


def by_worker(millrace):
    return [c["value"] for c in sorted((c for c in millrace.stats()["counters"] if c["name"] == "received_datagrams"),
                                       key=lambda c: c["worker"])]


def all_arrived(sink, millrace, n):
    report = sink.wait_lines(n)
    assert (report["distinct"], report["doubles"], report["malformed"]) == (n, 0, 0)
    wait_for(lambda: sum(by_worker(millrace)) == n, "the counters")
    return by_worker(millrace)


@pytest.mark.parametrize("workers", [2, 4])
def test_packet_spreads_one_sender_evenly(bench, workers):
    """100,000 datagrams of one socket: each worker has 1/N of them within 5 %."""
    sink, millrace = start(bench, "packet", workers)
    bench.replay("--number", "--one", "--count", 100000, "--sources", 1, "--pps", 60000)
    shares = all_arrived(sink, millrace, 100000)
    assert len(shares) == workers
    assert all(abs(s * workers / 100000 - 1) < 0.05 for s in shares), shares


@pytest.mark.parametrize("workers", [2, 4])
def test_flow_keeps_a_sender_at_one_worker(bench, workers):
    sink, millrace = start(bench, "flow", workers)
    bench.replay("--number", "--one", "--count", 5000, "--sources", 1, "--pps", 10000)
    shares = all_arrived(sink, millrace, 5000)
    assert sorted(shares) == [0] * (workers - 1) + [5000]
    assert len(millrace.status()["endpoints"]) == workers


def test_flow_spreads_many_senders(bench):
    """256 senders: each of 4 workers has some, each sender's lines stay in order."""
    sink, millrace = start(bench, "flow", 4)
    bench.replay("--number", "--one", "--count", 25600, "--sources", 256, "--pps", 20000)
    shares = all_arrived(sink, millrace, 25600)
    assert all(s % 100 == 0 and s > 2000 for s in shares), shares


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_shared_is_one_socket(bench, workers):
    sink, millrace = start(bench, "shared", workers)
    bench.replay("--number", "--one", "--count", 20000, "--sources", 4, "--pps", 20000)
    all_arrived(sink, millrace, 20000)
    endpoints = millrace.status()["endpoints"]
    assert len(endpoints) == 1
    assert len([c for c in millrace.stats()["counters"] if c["name"] == "received_datagrams"]) == workers


@pytest.mark.parametrize("spread", ["flow", "packet", "shared"])
def test_unix_and_udp6_beside_it(bench, spread):
    """The same on IPv6, and two addresses of one input."""
    import socket
    backend = Collector(bench)
    bench.millrace(conf=config({"in": {"type": "udp", "bind": ["[::1]:{port}", "127.0.0.1:{port}"], "to": "out", "spread": spread}},
                               {"out": statsite(backend.addresses)}, workers=2))
    for i in range(50):
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.socket(family, socket.SOCK_DGRAM) as s:
                s.sendto(b"a.%d.%d:1|c" % (family, i), (host, bench.port))
    assert len(set(backend.wait_lines(100))) == 100
