# SPDX-License-Identifier: MIT
"""Upgrade: the binary is replaced under load. UDP sockets, TCP connections and counters go on; a new binary that does not start
changes nothing."""
import os
import signal
import socket

import pytest
from conftest import free_port, wait_for
from faults import Counters, Sender, is_alive, wait_ready, wait_settled
from peers import Collector, client, wait_read
from reload_rig import Load, master_counters, worker_rows
from upgrade_rig import FAULTS, refuse, set_fault, start, wait_children

pytestmark = pytest.mark.usefixtures("apart")


def run_upgrades(bench, n, pps):
    """Every fourth fails, each at another point."""
    sink = bench.sink("--number", "--keys", 10000, ports=2)
    config, millrace = start(bench, sink.addresses)
    common = ("--pps", pps, "--bytes", 300, "--time", "240s")
    senders = [Sender(bench, "--sources", 64, *common),
               Sender(bench, "--tcp", "--sources", 8, "--number-from", 10_000_000, *common)]
    sink.wait_lines(1000)
    faults = list(FAULTS)
    descriptors, started_us = None, master_counters(millrace)["started_us"]
    for i in range(n):
        if i % 4 == 1:
            refuse(bench, millrace, faults[i // 4 % len(faults)])
        else:
            millrace.upgrade()
        here = sink.report()["lines"]
        sink.wait_lines(here + 500)
        millrace.check()
        wait_children(millrace)
        if i == 0:
            descriptors = len(os.listdir(f"/proc/{millrace.pid}/fd"))
    wait_for(lambda: len(os.listdir(f"/proc/{millrace.pid}/fd")) <= descriptors, f"{descriptors} descriptors")  # one may just have been closing
    lines = sum(s.stop()["lines"] for s in senders)
    report = sink.wait_lines(lines, key="distinct")
    assert (report["distinct"], report["doubles"], report["malformed"]) == (lines, 0, 0)
    counters = wait_settled(millrace)
    # the counters of all of them, by name
    assert counters.sum("input", "received_lines") == counters.sum("backend", "delivered_records") == lines
    assert counters.sum("input", "accepted_connections") == 8
    assert master_counters(millrace)["started_us"] == started_us  # it is the same program to who asks
    assert (counters.dropped(), counters.lost_at_death(), counters.kernel_drops()) == (0, 0, 0)
    assert counters.sum("input", "dropped_truncated_lines") == counters.sum("input", "dropped_stream_bytes") == 0
    assert counters.unbalanced() == []


def test_another_file_each_time(bench):
    """What the new program finds in the file is applied by the same roll."""
    sink = bench.sink("--number", "--keys", 10000, ports=3)
    config, millrace = start(bench, sink.addresses[:2])
    load = Load(bench, sink)
    udp = '{ type: udp, bind: "127.0.0.1:{port}", %s to: [out] }'
    for change in (lambda: setattr(config, "workers", 4), lambda: config.inputs.update(udp=udp % "spread: shared,"),
                   lambda: setattr(config, "backends", sink.addresses), lambda: config.inputs.update(udp=udp % "spread: packet,"),
                   lambda: config.inputs.update(metrics=config.inputs.pop("udp")), lambda: setattr(config, "workers", 1)):
        change()
        config.write()
        millrace.upgrade()
        load.go_on()
        wait_children(millrace, config.workers)
        millrace.check()
    load.ends_exactly(millrace)


@pytest.mark.parametrize("n, pps", [
    pytest.param(6, 1000, id="some"),
    pytest.param(40, 3000, id="forty", marks=pytest.mark.soak),
])
def test_upgrades_under_load(bench, n, pps):
    run_upgrades(bench, n, pps)


def test_an_unfinished_line_and_unix_sockets(bench):
    backend = Collector(bench)
    path = bench.path / "in.sock"
    config, millrace = start(bench, backend.addresses, inputs={
        "tcp": '{ type: tcp, bind: "127.0.0.1:{port}", to: [out] }',
        "u": f'{{ type: unix, bind: "{path}", to: [out] }}'})
    with client(bench, "tcp") as a, socket.socket(socket.AF_UNIX) as b:
        b.connect(str(path))
        a.sendall(b"half:")
        b.sendall(b"other:")
        for s in (a, b):
            wait_read(s)
        millrace.upgrade()
        a.sendall(b"1|c\n")
        b.sendall(b"2|c\n")
        assert set(backend.wait_lines(2)) == {b"half:1|c", b"other:2|c"}
    assert path.exists()
    with socket.socket(socket.AF_UNIX) as b:
        b.connect(str(path))
        b.sendall(b"third:3|c\n")
        backend.wait_lines(3)


def test_what_waits_for_a_backend_that_is_away(bench):
    """The old workers hand it to the new ones, after these have begun."""
    port = free_port()
    config, millrace = start(bench, [f"127.0.0.1:{port}"], output=", reconnect_max: 300ms")
    lines = bench.replay("--number", "--lines", 5000, "--sources", 16)["lines"]
    wait_for(lambda: Counters(millrace).waiting() == lines, "the lines to be held")
    millrace.upgrade()
    wait_for(lambda: Counters(millrace).waiting() == lines, "the lines to be held there")
    late = Collector(bench, ports=[port])
    assert len(late.wait_lines(lines)) == lines
    counters = wait_settled(millrace)
    assert counters.sum("input", "received_lines") == lines == counters.sum("backend", "delivered_records")
    assert (counters.dropped(), counters.unbalanced()) == (0, [])


def test_usr2_and_a_new_configuration(bench):
    """The new one reads the file as it is then: more workers and another backend come with it."""
    sink = bench.sink("--number", "--keys", 10000, ports=2)
    config, millrace = start(bench, sink.addresses[:1])
    sender = Sender(bench, "--sources", 64, "--pps", 2000, "--bytes", 300, "--time", "60s")
    sink.wait_lines(1000)
    config.workers, config.backends = 4, sink.addresses
    config.write()
    os.kill(millrace.pid, signal.SIGUSR2)
    millrace.wait_line("upgraded: millrace .* serves now")
    assert len(wait_ready(millrace)) == 4
    here = sink.report()["lines"]
    sink.wait_lines(here + 1000)
    lines = sender.stop()["lines"]
    assert sink.wait_lines(lines)["doubles"] == 0
    counters = wait_settled(millrace)
    assert counters.sum("input", "received_lines") == lines
    assert is_alive(millrace.pid)
    wait_children(millrace, 4)
    config.reload(workers=5)  # takes the page of the history over
    assert len(worker_rows(millrace)) == 5
    assert Counters(millrace).sum("input", "received_lines") == lines


def test_a_broken_file_changes_nothing(bench):
    sink = bench.sink("--number")
    config, millrace = start(bench, sink.addresses)
    pids = wait_ready(millrace)
    taken = free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", taken))
        other.listen()
        good = config.text()
        for text, words in (("workers: many\n", "many"), (good.replace("tcp:", "tcpx:", 1).replace("type: tcp", "type: none"), "none"),
                            (good.replace("outputs:", f'  t2: {{ type: tcp, bind: "127.0.0.1:{taken}", to: [out] }}\noutputs:'), str(taken)),
                            (good.replace("outputs:", '  f: { type: file, path: [/dev/null], to: [out] }\noutputs:'), "restart")):
            config.write(text)
            answer = "\n".join(millrace.refuse_upgrade())
            assert words in answer, answer
            assert wait_ready(millrace) == pids
    config.write(good)
    lines = bench.replay("--number", "--lines", 2000, "--sources", 64)["lines"]
    assert sink.wait_lines(lines)["distinct"] == lines


def test_fewer_workers_and_other_things(bench):
    """What the new file has and lacks: an input renamed, one removed, one added, another backend, one worker instead of three."""
    backend, added = Collector(bench), free_port()
    gone = bench.path / "gone.sock"
    inputs = {"udp": '{ type: udp, bind: "127.0.0.1:{port}", to: [out] }', "tcp": '{ type: tcp, bind: "127.0.0.1:{port}", to: [out] }',
              "u": f'{{ type: unix, bind: "{gone}", to: [out] }}'}
    config, millrace = start(bench, backend.addresses, workers=3, inputs=inputs)
    with client(bench, "tcp") as stays, socket.socket(socket.AF_UNIX) as ends:
        ends.connect(str(gone))
        stays.sendall(b"begun:")
        ends.sendall(b"last:1|c\n")
        wait_read(stays)
        backend.wait_lines(1)
        config.inputs = {"udp": inputs["udp"], "stream": inputs["tcp"],
                         "new": f'{{ type: tcp, bind: "127.0.0.1:{added}", to: [out] }}'}
        config.workers = 1
        config.write()
        millrace.upgrade()
        assert set(worker_rows(millrace)) == {0}
        wait_children(millrace, 1)
        assert not gone.exists()
        assert ends.recv(1) == b""
        stays.sendall(b"2|c\n")
        with socket.create_connection(("127.0.0.1", added)) as s:
            s.sendall(b"third:3|c\n")
        assert set(backend.wait_lines(3)) == {b"last:1|c", b"begun:2|c", b"third:3|c"}
    counters = wait_settled(millrace)
    assert counters.sum("input", "received_lines") == 3 == counters.sum("backend", "delivered_records")
    assert counters.sum("input", "accepted_connections") == 3
    lines = bench.replay("--lines", 500, "--sources", 64)["lines"]
    backend.wait_lines(3 + lines)


def test_clients_that_wait_and_clients_that_go(bench):
    """Who waits for an answer keeps his place whoever else comes, and gets it; who goes away meanwhile is forgotten."""
    backend = Collector(bench)
    config, millrace = start(bench, backend.addresses)
    old, pids = millrace.master, wait_ready(millrace)
    millrace.expected_errors.append("upgrade: ")
    fifo = bench.path / "fifo"
    os.mkfifo(fifo)
    millrace.point_at(set_fault(bench, "rehearse", "wait", fifo, "/bin/false"))

    def connect(words=b""):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(20)
        s.connect(str(millrace.control))
        s.sendall(words)
        return s

    def slow_upgrade(n):
        asker = connect(b"upgrade\n")
        wait_for(lambda: sum("upgrade: rehearsing" in line for line in millrace.err) == n, "the new program to be started")
        return asker

    def end_it():
        with open(fifo, "w") as f:
            f.write("on\n")

    asker = slow_upgrade(1)
    others = [connect() for _ in range(20)]
    assert millrace.ctl("log", "info").returncode == 0  # they leave room for who asks
    end_it()
    assert b"Nothing has changed" in asker.recv(4096)
    for s in others:
        s.setblocking(False)
        try:
            assert s.recv(100) == b""  # evicted; it asked nothing
        except BlockingIOError:
            pass
        s.close()
    slow_upgrade(2).close()
    for s in [connect() for _ in range(20)]:
        s.close()
    end_it()
    wait_for(lambda: sum("Nothing has changed" in line for line in millrace.err) == 2, "the end of the second upgrade")
    assert (millrace.master, wait_ready(millrace)) == (old, pids)
