# SPDX-License-Identifier: MIT
"""TERM: what was accepted before it arrives, exit 0. What cannot be delivered ends at the deadline with exit 3 and is
counted to the line."""
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest
from conftest import free_port, wait_for
from faults import (Counters, Sender, numbered, read_out, send_datagrams, signal_all, wait_ready, wait_settled, wait_stopped)

pytestmark = pytest.mark.usefixtures("apart")

LINES = 20000
CONF = """
workers: {workers}
drain_timeout: {drain}
inputs:
  udp: {{ type: udp, bind: "127.0.0.1:{{port}}", to: [out] }}
  tcp: {{ type: tcp, bind: "127.0.0.1:{{port}}", to: [out] }}
  unix: {{ type: unix, bind: {path}/s, to: [out] }}
  unixgram: {{ type: unixgram, bind: {path}/g, to: [out] }}
outputs: {{ out: {{ type: statsite, backends: [{backends}] }} }}
"""


def start(bench, backends, workers=2, drain="5s", **kw):
    return bench.millrace(workers=workers, conf=CONF.format(
        workers=workers, drain=drain, path=bench.path, backends=", ".join(f'"{b}"' for b in backends)), **kw)


def send_unixgram(bench, n):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        for i in range(0, n, 50):
            s.sendto("".join(numbered(i, 50)).encode(), str(bench.path / "g"))
    return n


def send(bench, transport, n=LINES):
    if transport == "unixgram":
        return send_unixgram(bench, n)
    extra = {"udp": ["--sources", 16], "tcp": ["--tcp", "--sources", 4], "unix": ["--tcp"]}[transport]
    target = f"unix:{bench.path}/s" if transport == "unix" else None
    return bench.replay("--number", "--lines", n, *extra, target=target)["lines"]


def ends_exactly(millrace, sink, lines, code=0):
    assert millrace.wait() == code
    sink.wait_lines(lines)
    report = read_out(sink)
    assert (report["lines"], report["distinct"], report["malformed"], report["unread_bytes"]) == (lines, lines, 0, 0)
    received = sum(int(m.group(1)) for m in re.finditer(r"input \"\w+\": (\d+) lines received", "\n".join(millrace.err)))
    assert received == lines


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("transport", ["udp", "tcp", "unix", "unixgram"])
def test_term_right_after_the_last_send(bench, transport, workers):
    sink = bench.sink("--number", ports=2)
    millrace = start(bench, sink.addresses, workers)
    lines = send(bench, transport)
    millrace.send_signal(signal.SIGTERM)
    ends_exactly(millrace, sink, lines)


@pytest.mark.parametrize("transport", ["udp", "tcp", "unix", "unixgram"])
def test_term_with_all_of_it_in_the_kernel(bench, transport):
    """The workers are stopped while the lines come: nothing is read, no connection accepted, when TERM comes."""
    sink = bench.sink("--number", ports=2)
    millrace = start(bench, sink.addresses)
    pids = list(millrace.worker_pids().values())
    signal_all(pids, signal.SIGSTOP)
    wait_stopped(pids)
    lines = send(bench, transport, {"unixgram": 300, "unix": 5000}.get(transport, LINES))
    assert Counters(millrace).sum("input", "received_lines") == 0
    millrace.send_signal(signal.SIGTERM)
    millrace.wait_line("draining")
    signal_all(pids, signal.SIGCONT)
    ends_exactly(millrace, sink, lines)


@pytest.mark.needs_root
def test_term_with_many_empty_datagrams(own_network, bench):
    """A read that brings nothing but empty datagrams is not the end of a unix socket: what waits behind them arrives."""
    empty = 200  # more than three reads
    Path("/proc/sys/net/unix/max_dgram_qlen").write_text("1000")  # of this namespace
    sink = bench.sink("--number", ports=1)
    millrace = start(bench, sink.addresses, workers=1)
    pids = list(millrace.worker_pids().values())
    signal_all(pids, signal.SIGSTOP)
    wait_stopped(pids)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        for _ in range(empty):
            s.sendto(b"", str(bench.path / "g"))
    lines = send_unixgram(bench, 50)
    millrace.send_signal(signal.SIGTERM)
    millrace.wait_line("draining")
    signal_all(pids, signal.SIGCONT)
    ends_exactly(millrace, sink, lines)


def test_term_with_open_connections(bench):
    """Connections that stay open do not keep it; a line without newline is counted as dropped."""
    sink = bench.sink("--number")
    millrace = start(bench, sink.addresses)
    clients = [socket.create_connection(("127.0.0.1", bench.port)) for _ in range(5)]
    for i, c in enumerate(clients):
        c.sendall("".join(numbered(i * 10, 10)).encode())
    sink.wait_lines(50)
    clients[0].sendall(b"m.k000001:1")
    wait_for(lambda: Counters(millrace).sum("input", "unfinished_lines") == 1, "the unfinished line to be read")
    millrace.expected_exit = 3
    assert millrace.terminate() == 3
    assert any(re.search(r'input "tcp": 51 lines received = 50 to outputs .* \+ 1 dropped', line) for line in millrace.err)
    assert read_out(sink)["distinct"] == 50
    for c in clients:
        c.close()


@pytest.mark.parametrize("backend", ["dead", "stalled"])
def test_backend_that_takes_nothing(bench, backend):
    """Exit 3 at the deadline; the last lines of the log say what was left, per backend, to the line."""
    good = bench.sink("--number")
    stalled = bench.sink("--number", "--stall", "--rcvbuf", "8KiB")
    bad = f"127.0.0.1:{free_port()}" if backend == "dead" else stalled.addresses[0]
    millrace = start(bench, [*good.addresses, bad], workers=1, drain="1s")
    # more than the sockets of the stalled one can hold
    lines = bench.replay("--number", "--lines", 1000000, "--bytes", 8900, "--pps", 1500, "--sources", 16)["lines"]
    wait_for(lambda: Counters(millrace).sum("input", "received_lines") == lines, "all to be read")
    to_good = Counters(millrace).sum("backend", "offered_records", backend=good.addresses[0])
    began = time.monotonic()
    millrace.expected_exit = 3
    assert millrace.terminate() == 3
    assert time.monotonic() - began >= 0.9
    left = [re.search(rf'backend {re.escape(bad)}: left (\d+) undelivered, (\d+) sent and not confirmed', line)
            for line in millrace.err[-3:]]
    undelivered, unconfirmed = next(tuple(map(int, m.groups())) for m in left if m)
    account = re.search(r'output "out": (\d+) offered = (\d+) delivered \+ (\d+) unconfirmed \+ 0 failed \+ (\d+) dropped '
                        r'\+ 0 lost at death', "\n".join(millrace.err[-3:]))
    assert tuple(map(int, account.groups())) == (lines, lines - undelivered - unconfirmed, unconfirmed, undelivered)
    assert read_out(good)["distinct"] == to_good
    if backend == "dead":
        assert (undelivered, unconfirmed) == (lines - to_good, 0)
    else:
        assert undelivered > 0 and unconfirmed > 0
        stalled.ask("stall off")  # what was confirmed is there, and at most what was not
        acked = lines - to_good - undelivered - unconfirmed
        report = read_out(stalled)
        assert acked <= report["distinct"] <= acked + unconfirmed
        assert report["malformed"] == 0


def test_quit_ends_at_once(bench):
    millrace = start(bench, [f"127.0.0.1:{free_port()}"], drain="300s")
    lines = send(bench, "udp")
    wait_for(lambda: Counters(millrace).sum("input", "received_lines") == lines, "all to be read")
    millrace.expected_exit = 3
    assert millrace.terminate(signal.SIGQUIT) == 3
    assert any(f"left {lines} undelivered, 0 sent and not confirmed" in line for line in millrace.err[-3:])


def test_quit_shortens_a_drain(bench):
    """TERM waits for a dead backend; QUIT ends it, with the same exact account and nobody killed."""
    millrace = start(bench, [f"127.0.0.1:{free_port()}"], drain="300s")
    lines = send(bench, "udp")
    wait_for(lambda: Counters(millrace).sum("input", "received_lines") == lines, "all to be read")
    millrace.expected_exit = 3
    millrace.send_signal(signal.SIGTERM)
    millrace.wait_line("draining")
    millrace.send_signal(signal.SIGQUIT)
    assert millrace.wait() == 3
    assert any(f"left {lines} undelivered, 0 sent and not confirmed" in line for line in millrace.err[-3:]), millrace.err


@pytest.mark.parametrize("signals", [[signal.SIGTERM] * 5, [signal.SIGTERM, signal.SIGINT], [signal.SIGHUP, signal.SIGTERM]])
def test_second_signal_does_not_hang(bench, signals):
    sink = bench.sink("--number")
    millrace = start(bench, sink.addresses)
    lines = send(bench, "udp")
    for sig in signals:
        millrace.send_signal(sig)
    ends_exactly(millrace, sink, lines)
    assert sum("draining: at most" in line for line in millrace.err) == 1


def test_second_term_after_the_drain_began(bench):
    millrace = start(bench, [f"127.0.0.1:{free_port()}"], drain="1s")
    lines = send(bench, "udp")
    millrace.expected_exit = 3
    millrace.send_signal(signal.SIGTERM)
    millrace.wait_line("draining")
    millrace.send_signal(signal.SIGTERM)
    assert millrace.wait() == 3
    assert any(f"left {lines} undelivered" in line for line in millrace.err[-3:])


@pytest.mark.parametrize("delay", [0, 0.002, 0.005, 0.01, 0.02])
def test_term_during_start(bench, delay):
    """At any moment of the start: it ends by itself, with 0 or, before it has a handler, by the signal."""
    sink = bench.sink()
    millrace = bench.millrace(backends=sink.addresses, workers=2, wait=False)
    time.sleep(delay)  # not for luck: the moment is what is varied
    millrace.send_signal(signal.SIGTERM)
    code = millrace.wait()
    millrace.expected_exit = code
    assert code in (0, -signal.SIGTERM)


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_the_whole_group(bench, sig):
    """Ctrl-C reaches every process, and so does systemd's TERM: one drain, nothing lost."""
    sink = bench.sink("--number", ports=2)
    millrace = start(bench, sink.addresses, start_new_session=True)
    pids = list(millrace.worker_pids().values())
    signal_all(pids, signal.SIGSTOP)
    wait_stopped(pids)
    lines = send(bench, "udp", LINES)
    lines += bench.replay("--number", "--number-from", lines, "--lines", LINES, "--tcp", "--sources", 4)["lines"]
    os.killpg(millrace.pid, sig)
    signal_all(pids, signal.SIGCONT)
    ends_exactly(millrace, sink, lines)
    assert sum("draining: at most" in line for line in millrace.err) == 1
    assert not any("killed by" in line for line in millrace.err)


def test_term_to_one_worker(bench):
    """It leaves without a loss; its sockets go on with the next worker, and nobody else notices."""
    sink = bench.sink("--number", ports=2)
    millrace = start(bench, sink.addresses)
    sender = Sender(bench, "--sources", 64, "--pps", 2000, "--bytes", 600, "--time", "60s")
    sink.wait_lines(5000)
    for slot in (0, 1):
        old = wait_ready(millrace)
        os.kill(old[slot], signal.SIGTERM)
        millrace.wait_line(rf"worker {slot} \(pid {old[slot]}\) left with exit code 0")
    pids = wait_ready(millrace)
    assert pids[1] != old[1]
    before = {s: Counters(millrace).sum("input", "received_datagrams", worker=s) for s in pids}
    wait_for(lambda: all(Counters(millrace).sum("input", "received_datagrams", worker=s) > n for s, n in before.items()),
             "both slots to read again")
    sent = sender.stop()
    lines = sent["lines"] + bench.replay("--number", "--number-from", sent["number_next"], "--lines", 1000, "--tcp",
                                         "--sources", 8)["lines"]
    wait_settled(millrace)
    report = sink.wait_lines(lines)
    assert (report["distinct"], report["doubles"]) == (lines, 0)
    assert Counters(millrace).lost_at_death() == 0


def test_ctl_drain(bench):
    sink = bench.sink("--number")
    millrace = start(bench, sink.addresses)
    lines = send(bench, "udp")
    assert "draining" in millrace.ctl("drain").stdout
    ends_exactly(millrace, sink, lines)


def test_term_while_a_slot_is_vacant(bench):
    """What waits for a slot in its back-off is read by a sibling before that leaves."""
    sink = bench.sink("--number")
    millrace = start(bench, sink.addresses)
    for _ in range(4):
        pid = wait_ready(millrace, [0])[0]
        wait_settled(millrace)
        os.kill(pid, signal.SIGKILL)
        millrace.wait_line(rf"worker 0 \(pid {pid}\) killed by signal 9")
    send_datagrams(bench, numbered(0, 256), sources=64)
    millrace.send_signal(signal.SIGTERM)
    ends_exactly(millrace, sink, 256)
