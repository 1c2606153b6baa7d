# SPDX-License-Identifier: MIT
"""Connections: idle ones, too many of them, no descriptors left, peers that reset."""
import resource
import socket
import struct
import time

import pytest

from conftest import BUILD, wait_for
from peers import STREAMS, Collector, client, counters, let_pass, one_input, send_stream, wait_counters

RST = struct.pack("ii", 1, 0)  # SO_LINGER: close() resets


def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
    s.close()


def test_idle_connections_are_kept_by_default(bench):
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "tcp", backend.addresses))
    with client(bench, "tcp") as s:
        s.sendall(b"a:1|c\n")
        backend.wait_lines(1)
        let_pass(1.2)
        s.sendall(b"b:1|c\n")
        assert backend.wait_lines(2) == [b"a:1|c", b"b:1|c"]
        assert counters(millrace)["idle_connections"] == 0


@pytest.mark.parametrize("transport", STREAMS)
def test_idle_timeout(bench, transport):
    """Silent connections are closed after idle_timeout and not before; one that talks stays."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, transport, backend.addresses, idle_timeout="2s"))
    began = time.monotonic()
    with client(bench, transport) as talking, client(bench, transport) as silent, client(bench, transport) as stopped:
        stopped.sendall(b"stopped:1|c\nunfinished:1|c")
        closed = {}
        sent = 0
        silent.setblocking(False)
        stopped.setblocking(False)
        while len(closed) < 2 and time.monotonic() < began + 30:
            talking.sendall(b"talking.%d:1|c\n" % sent)
            sent += 1
            for s in (silent, stopped):
                try:
                    if s not in closed and s.recv(1) == b"":
                        closed[s] = time.monotonic() - began
                except BlockingIOError:
                    pass
            let_pass(0.1)
        assert len(closed) == 2
        assert all(t >= 2.0 for t in closed.values()), closed.values()
        c = wait_counters(millrace, idle_connections=2, open_connections=1)
        assert (c["dropped_truncated_lines"], c["unfinished_lines"]) == (1, 0)
        talking.sendall(b"end:1|c\n")
        assert backend.wait_lines(sent + 2)[-1] == b"end:1|c"


def test_a_held_input_does_not_make_its_connections_idle(bench):
    """A full backend with overflow: block: nothing is read for longer than idle_timeout, and nothing is lost for it."""
    sink = bench.sink("--stall", "--rcvbuf", 4096, "--number")
    millrace = bench.millrace(conf=one_input(bench, "tcp", sink.addresses, idle_timeout="300ms",
                                             output={"overflow": "block", "queue_limit": "128KiB"}))
    replay = bench.run(BUILD / "millrace-replay", "--tcp", "--number", "--lines", 400000, "-q", f"127.0.0.1:{bench.port}")
    wait_for(lambda: counters(millrace)["held"] == 1, "the input to be held")
    let_pass(1)  # longer than idle_timeout
    assert counters(millrace)["idle_connections"] == 0
    sink.ask("stall off")
    report = sink.wait_lines(400000)
    assert (report["distinct"], report["doubles"], report["malformed"]) == (400000, 0, 0)
    assert replay.wait() == 0


def test_max_connections(bench):
    """Further ones wait in the listen queue and are served when there is a place."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "tcp", backend.addresses, max_connections=2))
    clients = [client(bench, "tcp") for _ in range(6)]
    try:
        for i, s in enumerate(clients):
            s.sendall(b"a.%d:1|c\n" % i)
        assert sorted(backend.wait_lines(2)) == [b"a.0:1|c", b"a.1:1|c"]
        wait_for(lambda: counters(millrace)["accept_pauses"] > 0, "accepting to pause")
        assert counters(millrace)["open_connections"] == 2
        millrace.wait_line(r"accepting pauses: max_connections is reached")
        clients[0].close()
        assert len(backend.wait_lines(3)) == 3
        for s in clients:
            s.close()
        assert sorted(backend.wait_lines(6)) == [b"a.%d:1|c" % i for i in range(6)]
        c = wait_counters(millrace, accepted_connections=6, open_connections=0)
        assert c["reset_connections"] == 0
    finally:
        for s in clients:
            s.close()


def test_no_descriptors_left_for_a_backend(bench):
    """A backend that resets while clients hold, and wait for, every descriptor comes back: its place is kept."""
    sink = bench.sink()

    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
    millrace = bench.millrace(conf=one_input(bench, "tcp", sink.addresses), preexec_fn=few)
    wait_for(lambda: millrace.status()["backends"][0]["up"], "the backend")
    clients = [client(bench, "tcp") for _ in range(150)]
    try:
        millrace.wait_line(r"WARN .*accepting pauses: Too many open files")
        for times in (1, 2):
            sink.ask("reset")
            clients[0].sendall(b"a:1|c\n")
            wait_for(lambda: (lambda b: b["up"] and b["disconnects"] == times)(millrace.status()["backends"][0]),
                     "the backend again")
        sink.wait_lines(2)
    finally:
        for s in clients:
            s.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_no_descriptors_left(bench, workers):
    """EMFILE: accepting pauses with one warning, those who are in are served, and it goes on."""
    backend = Collector(bench)

    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
    millrace = bench.millrace(conf=one_input(bench, "tcp", backend.addresses, workers=workers), preexec_fn=few)
    clients = [client(bench, "tcp") for _ in range(150)]
    try:
        millrace.wait_line(r"WARN .*accepting pauses: Too many open files.*LimitNOFILE")
        with client(bench, "tcp") as late:
            late.sendall(b"late:1|c\n")
            for i, s in enumerate(clients):
                s.sendall(b"a.%d:1|c\n" % i)
            served = counters(millrace)["open_connections"]
            assert 0 < served < 150
            assert len(backend.wait_lines(served)) >= served
            millrace.check()  # the control socket has its descriptors
            for s in clients:
                s.close()
            lines = backend.wait_lines(151)
        assert sorted(lines) == sorted([b"a.%d:1|c" % i for i in range(150)] + [b"late:1|c"])
    finally:
        for s in clients:
            s.close()
    wait_counters(millrace, accepted_connections=151, open_connections=0)
    assert sum("accepting pauses" in line for line in millrace.err) <= 2 * workers


@pytest.mark.parametrize("transport", STREAMS)
def test_a_connection_that_is_reset(bench, transport):
    """Its whole lines that were read arrive, the unfinished one is dropped and counted."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, transport, backend.addresses))
    s = client(bench, transport)
    s.sendall(b"a:1|c\nb:1|c\nunfinished")
    wait_counters(millrace, unfinished_lines=1)
    if transport == "tcp":
        reset(s)
        c = wait_counters(millrace, reset_connections=1, open_connections=0)
        assert (c["dropped_truncated_lines"], c["received_lines"]) == (1, 3)
    else:
        s.close()  # a unix stream ends orderly
        assert wait_counters(millrace, open_connections=0)["invalid_lines"] == 1
    send_stream(bench, transport, b"c:1|c\n")
    assert backend.wait_lines(3) == [b"a:1|c", b"b:1|c", b"c:1|c"]


def test_many_short_connections(bench):
    """2,000 connections of one line each, with four workers that accept."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "tcp", backend.addresses, workers=4))
    send_stream(bench, "tcp", *[b"a.%d:1|c" % i for i in range(2000)])
    assert sorted(backend.wait_lines(2000)) == sorted(b"a.%d:1|c" % i for i in range(2000))
    wait_counters(millrace, accepted_connections=2000, open_connections=0)
