# SPDX-License-Identifier: MIT
"""`status` on a stream: statsrelay's text, for all workers together, and clients that do not behave."""
import re
import resource
import socket
import subprocess

import pytest

from conftest import wait_for
from peers import IS_SANITIZED, STREAMS, Collector, ask_status, client, config, counters, one_input, receive_all, \
    send_datagrams, statsite, wait_counters
from test_05_connections import reset

GLOBALS = [("bytes_recv_udp", "gauge"), ("bytes_recv_tcp", "gauge"), ("total_connections", "gauge"),
           ("last_reload", "timestamp"), ("malformed_lines", "gauge")]
BACKEND = [("bytes_queued", "gauge"), ("bytes_sent", "gauge"), ("relayed_lines", "gauge"), ("dropped_lines", "gauge"),
           ("failing", "boolean")]


def both(bench, backends, workers):
    """A configuration with UDP and TCP on the same port."""
    inputs = {t: {"type": t, "bind": "127.0.0.1:{port}", "to": "out"} for t in ("udp", "tcp")}
    return config(inputs, {"out": statsite(backends)}, workers=workers)


def parse(text, backends):
    """Holds the text to statsrelay's form to the byte; the values by (scope, name)."""
    assert text.endswith("\n\n") and text.count("\n\n") == 1
    rows = [line.split(" ") for line in text[:-2].split("\n")]
    assert all(len(r) == 4 for r in rows), [r for r in rows if len(r) != 4]
    assert [tuple(r[:3]) for r in rows] == [("global", *g) for g in GLOBALS] + \
        [(f"backend:{b}", *n) for b in backends for n in BACKEND]
    assert all(re.fullmatch("0|[1-9][0-9]*", r[3]) for r in rows)
    return {(r[0], r[1]): int(r[3]) for r in rows}


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_all_workers_together_whichever_answers(bench, workers):
    sinks = [Collector(bench, n=2), Collector(bench, udp=True)]
    addresses = [a for s in sinks for a in s.addresses]
    names = [f"{a}:tcp" for a in addresses[:2]] + [addresses[2]]
    millrace = bench.millrace(conf=both(bench, addresses, workers))
    lines = [b"a.%d:1|c" % i for i in range(3000)]
    for at in range(0, 3000, 50):  # a socket each, so that the kernel spreads them
        send_datagrams(bench, "udp", *lines[at:at + 50], b"bad line")
    with client(bench, "tcp") as s:
        s.sendall(b"tcp.line:1|c\nbad\n")
    for s in sinks:
        wait_for(lambda: len(sinks[0].lines()) + len(sinks[1].lines()) == 3001, "3,001 lines")
    wait_counters(millrace, "udp", received_lines=3060)
    wait_for(lambda: all(b["in_flight_records"] + b["queued_records"] == 0 for b in millrace.status()["backends"]),
             "all to be acknowledged")
    answers = [parse(ask_status(bench), names) for _ in range(12)]
    for n, a in enumerate(answers):
        assert a["global", "bytes_recv_udp"] == sum(map(len, lines)) + 60 * 8
        assert a["global", "malformed_lines"] == 61
        assert a["global", "last_reload"] == 0
        assert a["global", "total_connections"] == 2 + n
        assert a["global", "bytes_recv_tcp"] in (17 + 7 * n, 17 + 7 * (n + 1))
        for address, name in zip(addresses, names):
            sink = sinks[address.endswith(":udp")]
            got = sink.lines(int(address.split(":")[1]))
            backend = f"backend:{name}"
            assert a[backend, "relayed_lines"] == len(got)
            sent = sum(map(len, sink.texts(int(address.split(":")[1]))))
            assert a[backend, "bytes_sent"] == sent
            assert a[backend, "bytes_queued"] in (sent, sum(len(x) + 1 for x in got))
            assert (a[backend, "dropped_lines"], a[backend, "failing"]) == (0, 0)


def test_a_failing_backend(bench):
    """failing 1 and its lines queued while it is away."""
    dead = socket.socket()
    dead.bind(("127.0.0.1", 0))  # bound, not listening: refused
    alive = Collector(bench)
    addresses = [f"127.0.0.1:{dead.getsockname()[1]}", *alive.addresses]
    millrace = bench.millrace(conf=config({"tcp": {"type": "tcp", "bind": "127.0.0.1:{port}", "to": "out"}},
                                          {"out": statsite(addresses, hash="modulo")}, workers=1, drain_timeout="200ms"))
    names = [f"{a}:tcp" for a in addresses]
    with client(bench, "tcp") as s:
        s.sendall(b"".join(b"a.%d:1|c\n" % i for i in range(100)))
    wait_counters(millrace, "tcp", received_lines=100)
    here = wait_for(lambda: len(alive.lines()), "lines at the live backend")
    a = parse(ask_status(bench), names)
    assert [a[f"backend:{n}", "failing"] for n in names] == [1, 0]
    assert a[f"backend:{names[0]}", "relayed_lines"] == 100 - here
    assert a[f"backend:{names[0]}", "bytes_sent"] == 0 < a[f"backend:{names[0]}", "bytes_queued"]
    millrace.expected_exit = 3
    millrace.finish()
    dead.close()


def test_a_thousand_backends_come_complete(bench):
    """250 KB of answer, far more than a socket takes at once; asked while lines flow, of two workers."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 4096:
        pytest.skip(f"needs 4,096 open files, the hard limit is {hard}")
    sink = bench.sink("--number", ports=1000)
    names = [f"{a}:tcp" for a in sink.addresses]
    shards = "".join(f"    {i}: {a}\n" for i, a in enumerate(sink.addresses))
    millrace = bench.millrace(conf="statsd:\n  bind: 127.0.0.1:{port}\n  shard_map:\n" + shards)
    wait_for(lambda: all(b["up"] == 2 for b in millrace.status()["backends"]), "2,000 connections", 30)
    bench.replay("--number", "--lines", 50000, "--pps", 2000, "--sources", 16)
    parse(ask_status(bench), names)
    sink.wait_lines(50000)
    wait_for(lambda: all(b["in_flight_records"] + b["queued_records"] == 0 for b in millrace.status()["backends"]),
             "all to be acknowledged")
    a = parse(ask_status(bench), names)
    assert sum(a[f"backend:{n}", "relayed_lines"] for n in names) == 50000
    assert [a[f"backend:{n}", "relayed_lines"] for n in names] == [p["lines"] for p in sink.report()["ports"]]
    assert not any(a[f"backend:{n}", "failing"] for n in names)


@pytest.mark.parametrize("transport", STREAMS)
def test_status_among_lines(bench, transport):
    """It is a command, with LF, CRLF and at EOF, only as a whole line; the lines beside it go their way."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, transport, backend.addresses))
    with client(bench, transport) as s:
        s.sendall(b"a:1|c\nstatus\nb:1|c\nstatus\r\nSTATUS\nstatus \nstatus:1|c\nstatus")
        s.shutdown(socket.SHUT_WR)
        answers = receive_all(s).decode().split("\n\n")
    assert len(answers) == 4 and answers[-1] == ""
    assert backend.wait_lines(3) == [b"a:1|c", b"b:1|c", b"status:1|c"]
    c = wait_counters(millrace, received_lines=8)
    assert (c["command_lines"], c["invalid_lines"]) == (3, 2)


def test_status_in_a_datagram_is_an_invalid_line(bench):
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "udp", backend.addresses))
    send_datagrams(bench, "udp", b"status\n", b"a:1|c")
    backend.wait_lines(1)
    c = wait_counters(millrace, received_lines=2)
    assert (c["command_lines"], c["invalid_lines"]) == (0, 1)


def test_pipelined(bench):
    """500 commands in one write: 500 answers, in order, each whole; the worker serves others meanwhile."""
    backend = Collector(bench)
    bench.millrace(conf=one_input(bench, "tcp", backend.addresses))
    with client(bench, "tcp") as s:
        s.sendall(b"status\n" * 500)
        s.shutdown(socket.SHUT_WR)
        answers = receive_all(s).decode().split("\n\n")
    assert len(answers) == 501 and answers.pop() == ""
    for a in answers:
        parse(a + "\n\n", [f"{backend.addresses[0]}:tcp"])


@pytest.mark.parametrize("flag", ["-N", "-q1"])
def test_echo_status_into_netcat(bench, flag):
    backend = Collector(bench)
    bench.millrace(backends=backend.addresses)
    r = subprocess.run(f"echo status | nc {flag} 127.0.0.1 {bench.port}",
                       shell=True, capture_output=True, text=True, timeout=15)
    assert r.returncode == 0, r.stderr
    parse(r.stdout, [f"{backend.addresses[0]}:tcp"])


def test_clients_that_reset_while_they_are_answered(bench):
    """No SIGPIPE, no dead worker: each slot keeps its process."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "tcp", backend.addresses, workers=2))
    pids = millrace.worker_pids()
    for i in range(200):
        s = client(bench, "tcp")
        s.sendall(b"status\n" * (1 + i % 50))
        if i % 3 == 0:
            s.recv(100)
        reset(s)
    with client(bench, "tcp") as s:
        s.sendall(b"a:1|c\n")
    assert backend.wait_lines(1) == [b"a:1|c"]
    wait_counters(millrace, accepted_connections=201, open_connections=0)
    assert millrace.worker_pids() == pids
    assert not [line for line in millrace.err if "killed by signal" in line]


def rss_kib(pid):
    with open(f"/proc/{pid}/smaps_rollup") as f:
        return int(re.search(r"Rss:\s+(\d+)", f.read()).group(1))


def test_a_client_that_asks_and_never_reads(bench):
    """It costs one answer, not one for each command; others are served; nothing waits for it at the end."""
    backend = Collector(bench, n=200)
    millrace = bench.millrace("--drain-timeout", "300s", conf=one_input(bench, "tcp", backend.addresses))
    pid = millrace.worker_pids()[0]
    with client(bench, "tcp") as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        before = rss_kib(pid)
        s.settimeout(0.5)
        try:
            for _ in range(100):
                s.sendall(b"status\n" * 1000)
        except TimeoutError:
            pass
        for i in range(20):
            with client(bench, "tcp") as other:
                other.sendall(b"a.%d:1|c\n" % i)
            backend.wait_lines(i + 1)
        wait_for(lambda: counters(millrace)["command_lines"] > 1000, "the commands to be read")
        if not IS_SANITIZED:
            assert rss_kib(pid) - before < 8 << 10
    assert millrace.terminate() == 0  # long before drain_timeout
