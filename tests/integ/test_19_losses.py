# SPDX-License-Identifier: MIT
"""What is lost is in the log when it begins, with what to do about it; the account at the end has its equation."""
import os
import re
import signal

from conftest import wait_for
from peers import Collector, client, config, counters, one_input, send_datagrams, statsite, wait_counters


def lost_at_sockets(millrace):
    return sum(e.get("dropped_datagrams", 0) for e in millrace.status()["endpoints"])


def test_a_socket_that_begins_to_lose(bench):
    """A buffer of 4 KiB, and a worker that is stopped: no line of the log said so."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "udp", backend.addresses, receive_buffer="4KiB"))
    worker = millrace.worker_pids()[0]
    os.kill(worker, signal.SIGSTOP)
    try:
        send_datagrams(bench, "udp", *(b"a.%d:1|c" % i + b"x" * 500 for i in range(200)))
        wait_for(lambda: lost_at_sockets(millrace) > 100, "datagrams to be lost")
        lost = millrace.wait_line(r" WARN .*socket loses datagrams: (\d+) so far \(dropped_datagrams\): (.*)")
        assert 0 < int(lost[1]) <= 200 and "stopped by a signal" in lost[2]
    finally:
        os.kill(worker, signal.SIGCONT)
    # each grows to its end, so only the ends make the sum; the kernel's counter is looked at each second
    wait_for(lambda: counters(millrace)["received_datagrams"] + lost_at_sockets(millrace) == 200, "all to be counted")
    total = lost_at_sockets(millrace)
    assert millrace.terminate() == 0
    assert re.search(rf' WARN .*input "in": 200 datagrams came = {200 - total} received \+ {total} dropped at full sockets',
                     "\n".join(millrace.err))
    assert sum("socket loses" in line for line in millrace.err) == 1


def test_a_backend_that_is_away_until_the_end(bench):
    """Which has no room again when its queue is thrown away."""
    millrace = bench.millrace(conf=config(
        {"in": {"type": "udp", "bind": "127.0.0.1:{port}", "to": "out"}},
        {"out": statsite(["127.0.0.1:1", "127.0.0.1:2"], queue_limit="128KiB")}, workers=1, drain_timeout="0s"))
    millrace.expected_exit = 3
    for _ in range(20):
        send_datagrams(bench, "udp", *(b"a.%d:1|c\n" % i * 100 for i in range(40)))
    wait_counters(millrace, received_lines=80000)
    lost = millrace.wait_line(r" WARN .*queue loses lines: (\d+) so far \(dropped_queue_full_records\): backend out/\S+ is down")
    assert int(lost[1]) > 0
    assert millrace.terminate() == 3
    text = "\n".join(millrace.err)
    assert "has room again" not in text
    assert re.search(r" WARN .*backend \S+: \d+ lines were dropped, until the end", text)


def test_nothing_was_lost_is_not_said_beside_what_is_at_risk(bench):
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "tcp", backend.addresses))
    with client(bench, "tcp") as s:
        s.sendall(b"a:1|c\n" * 100)
        backend.wait_lines(100)
        wait_counters(millrace, to_outputs_lines=100)
        assert "Nothing was lost." in millrace.ctl("drops").stdout
        backend.kill()
        wait_for(lambda: sum(b["at_risk_records"] for b in millrace.status()["backends"]) > 0, "lines at risk")
    text = millrace.ctl("drops").stdout
    assert "Nothing was lost" not in text
    assert re.search(r"^At most \d+ lines may be lost: a connection to out/\S+ was lost", text, re.M), text
    assert counters(millrace)["invalid_lines"] == 0


def test_each_step_that_loses_has_its_advice(bench):
    backend = Collector(bench)
    millrace = bench.millrace(conf=config(
        {"in": {"type": "udp", "bind": "127.0.0.1:{port}", "to": "out"}},
        {"out": statsite([backend.addresses[0], "127.0.0.1:1"], queue_limit="128KiB")}, workers=1, drain_timeout="0s"))
    millrace.expected_exit = 3
    for _ in range(20):
        send_datagrams(bench, "udp", *(b"a.%d:1|c\n" % i * 100 + b"bad\n" for i in range(40)))
    wait_counters(millrace, invalid_lines=800)
    wait_for(lambda: sum(b["dropped_queue_full_records"] for b in millrace.status()["backends"]) > 0, "a full queue")
    text = millrace.ctl("drops").stdout
    assert re.search(r"^(The worst|Also): queue lost [\d.]+ % \(\d+ lines\) .*: backend out/", text, re.M), text
    assert re.search(r"^(The worst|Also): invalid lost [\d.]+ % \(\d+ lines\) .*millracectl invalid", text, re.M), text
