# SPDX-License-Identifier: MIT
"""Handover: one worker goes on with what another one held, whatever the backends do meanwhile. Each line arrives once, and no
backend sees a new connection."""
import os
import resource
import signal

import pytest
from conftest import free_port, wait_for
from faults import Counters, Sender, signal_all, wait_ready, wait_settled, wait_stopped
from peers import Collector, client, wait_read
from reload_rig import Config, worker_rows

pytestmark = pytest.mark.usefixtures("apart")

CHANGES = [", memory_limit: 512MiB", ", memory_limit: 256MiB", ", memory_limit: 1GiB"]


class Stalling:
    """A relay whose backends have 4 KiB buffers, and a load that goes on for all of the test."""

    def __init__(self, bench, workers, pps=15000, ports=2, lines=None):
        self.sink = bench.sink("--number", "--keys", 10000, "--rcvbuf", "4KiB", ports=ports)
        self.config = Config(bench, self.sink.addresses, workers=workers, top="drain_timeout: 20s")
        self.millrace = self.config.start()
        self.sender = Sender(bench, "--one", "--sources", 64, "--pps", pps, "--time", "60s")
        self.sink.wait_lines(500)
        self.connections = self.sink.report()["connections"]

    def stall(self):
        self.sink.ask("stall on")
        wait_for(lambda: Counters(self.millrace).waiting() > 20000, "lines to wait")

    def ends_exactly(self):
        self.sink.ask("stall off")
        lines = self.sender.stop()["lines"]
        report = self.sink.wait_lines(lines, key="distinct", timeout=60)
        counters = wait_settled(self.millrace)
        assert (report["distinct"], report["doubles"], report["malformed"]) == (lines, 0, 0)
        assert counters.sum("input", "received_lines") == lines == counters.sum("backend", "delivered_records")
        assert (counters.dropped(), counters.resent(), counters.lost_at_death()) == (0, 0, 0)
        assert counters.sum("backend", "unconfirmed_records") == 0
        assert counters.sum("backend", "passed_records") == counters.sum("backend", "taken_over_records")
        assert counters.unbalanced() == []
        self.millrace.check()
        return report


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_backends_that_stall_during_reloads(bench, workers):
    rig = Stalling(bench, workers)
    rig.stall()
    for change in CHANGES:
        first, lines = rig.config.reload(output=change)
        assert first == "1 change, applied by rolling the workers", lines
        rig.millrace.check()
    report = rig.ends_exactly()
    assert report["connections"] == rig.connections


def test_backends_that_stall_while_one_worker_is_told_to_end(bench):
    rig = Stalling(bench, 2)
    rig.stall()
    for slot in (0, 1, 0):
        pid = wait_ready(rig.millrace)[slot]
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: wait_ready(rig.millrace)[slot] != pid, "its successor")
    assert rig.ends_exactly()["connections"] == rig.connections


def test_fewer_and_more_workers_while_backends_stall(bench):
    """What a slot that ends has in flight is finished by a sibling, on the connection that it was begun on."""
    rig = Stalling(bench, 4)
    rig.stall()
    for n in (2, 1, 3):
        rig.config.reload(workers=n)
        assert set(worker_rows(rig.millrace)) == set(range(n))
        rig.millrace.check()
    rig.ends_exactly()


def test_a_backend_leaves_the_configuration_while_it_stalls(bench):
    """What was begun on its connection is finished there; the other lines go to who has their keys now."""
    rig = Stalling(bench, 2, ports=3)
    rig.stall()
    first, _ = rig.config.reload(backends=rig.sink.addresses[:2])
    assert "applied by rolling" in first
    rig.ends_exactly()


def test_a_stopped_backend(bench):
    """SIGSTOP: its kernel goes on answering."""
    rig = Stalling(bench, 2)
    os.kill(rig.sink.pid, signal.SIGSTOP)
    wait_stopped([rig.sink.pid])
    wait_for(lambda: Counters(rig.millrace).waiting() > 20000, "lines to wait")
    for change in CHANGES[:2]:
        rig.config.reload(output=change)
    signal_all([rig.sink.pid], signal.SIGCONT)
    assert rig.ends_exactly()["connections"] == rig.connections


def test_the_whole_group_is_told_to_end_while_a_backend_is_slow(bench):
    """T7: a drain, not a roll: nobody is forked anew."""
    rig = Stalling(bench, 2)
    rig.sink.ask("slow 50000")
    wait_for(lambda: Counters(rig.millrace).waiting() > 5000, "lines to wait")
    pids = list(wait_ready(rig.millrace).values())
    rig.sender.process.send_signal(signal.SIGTERM)
    signal_all([*pids, rig.millrace.pid], signal.SIGTERM)
    rig.sink.ask("slow off")
    lines = rig.sender.finish()["lines"]
    assert rig.millrace.wait(30) == 0
    report = rig.sink.wait_lines(lines, key="distinct")
    assert (report["distinct"], report["doubles"]) == (lines, 0)
    assert not any("is ready" in line for line in rig.millrace.err[-200:])


def test_many_connections_in_the_middle_of_a_line(bench, n=1000):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 3 * n)), hard))
    backend = Collector(bench)
    config = Config(bench, backend.addresses, workers=2)
    config.inputs["tcp"] = f'{{ type: tcp, bind: "127.0.0.1:{{port}}", max_connections: {2 * n}, to: [out] }}'
    millrace = config.start()
    clients = [client(bench, "tcp") for _ in range(n)]
    try:
        for i, s in enumerate(clients):
            s.sendall(f"half.{i}:".encode())
        wait_for(lambda: Counters(millrace).sum("input", "unfinished_lines", input="tcp") == n, "the halves to be read")
        for change in CHANGES[:2]:
            config.reload(output=change)
        for i, s in enumerate(clients):
            s.sendall(f"{i}|c\n".encode())
        assert set(backend.wait_lines(n)) == {f"half.{i}:{i}|c".encode() for i in range(n)}
        counters = wait_settled(millrace)
        assert counters.sum("input", "passed_connections", input="tcp") == \
            counters.sum("input", "taken_connections", input="tcp") == 2 * n
        assert counters.sum("input", "dropped_truncated_lines") == 0
    finally:
        for s in clients:
            s.close()


def test_connections_that_hold_long_lines(bench, n=100):
    backend = Collector(bench)
    config = Config(bench, backend.addresses, workers=2)
    millrace = config.start()
    long = b"x" * 59990
    clients = [client(bench, "tcp") for _ in range(n)]
    try:
        for i, s in enumerate(clients):
            s.sendall(b"%05d." % i + long)
        for s in clients:
            wait_read(s)
        for change in CHANGES[:2]:
            config.reload(output=change)
        for s in clients:
            s.sendall(b":1|c\n")
        assert set(backend.wait_lines(n, 30)) == {b"%05d." % i + long + b":1|c" for i in range(n)}
        assert Counters(millrace).sum("input", "dropped_truncated_lines") == 0
    finally:
        for s in clients:
            s.close()


def test_a_backend_that_is_away_keeps_its_lines(bench):
    port = free_port()
    config = Config(bench, [f"127.0.0.1:{port}"], output=", reconnect_max: 300ms")
    millrace = config.start()
    lines = bench.replay("--number", "--lines", 5000, "--sources", 16)["lines"]
    wait_for(lambda: Counters(millrace).waiting() == lines, "the lines to be held")
    for change in CHANGES:
        config.reload(output=", reconnect_max: 300ms" + change)
        wait_for(lambda: Counters(millrace).waiting() == lines, "the lines to be held by the next")
    late = Collector(bench, ports=[port])
    assert len(late.wait_lines(lines)) == lines
    counters = wait_settled(millrace)
    assert counters.sum("backend", "delivered_records") == lines
    assert (counters.dropped(), counters.resent()) == (0, 0)
