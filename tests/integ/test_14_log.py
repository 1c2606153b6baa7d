# SPDX-License-Identifier: MIT
"""What came from the network, or from a file, is never a format and never a control byte in the log."""
import contextlib
import json
import os
import re
import signal
import socket
import tempfile

import pytest

from conftest import wait_for
from peers import Collector, Wrapped, client, config, needs_root, one_input, send_datagrams, send_stream, statsite, \
    wait_counters
from test_08_flags import run

HOSTILE = [b"%s%n%x%d%999999s", b"\x1b[31mred\x07\x08", b"a\0b", b"sta\x1btus", b"\xff\xfe\x80", b"%n:%n|%n", b"status\x1b",
           b"\r\r\r", b"x" * 5000, b"%s" * 2000 + b":1|c", b"2026-01-01T00:00:00.000Z ERROR master: forged"]


def clean(millrace):
    """Each line of the log has its form and only printable bytes."""
    for line in millrace.err:
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (ERROR|WARN|INFO|DEBUG) (master|monitor|worker \d+): ", line), line
        assert line.isprintable(), repr(line)


@pytest.mark.parametrize("transport", ["udp", "tcp", "unix", "unixgram"])
@pytest.mark.parametrize("validate", [True, False])
def test_lines(bench, transport, validate):
    """Format specifiers and control bytes in lines, at level debug: each worker lives, the log stays clean, they are bytes."""
    backend = Collector(bench)
    millrace = bench.millrace("-l", "debug", conf=one_input(bench, transport, backend.addresses, validate=validate))
    pids = millrace.worker_pids()
    if transport in ("udp", "unixgram"):
        send_datagrams(bench, transport, *HOSTILE)
    else:
        send_stream(bench, transport, *HOSTILE)
    (send_datagrams if transport in ("udp", "unixgram") else send_stream)(bench, transport, b"%s%n:1|c\n")
    wait_for(lambda: b"%s%n:1|c" in backend.lines(), "the line")
    assert millrace.worker_pids() == pids
    millrace.finish()
    quoted = [line for line in millrace.err if "forged" in line or "%n" in line]
    assert all(re.search(r' DEBUG worker \d+: input "in": invalid line (from \S+: )?"', line) for line in quoted), quoted
    clean(millrace)


def test_a_socket_file_with_a_name_like_a_format(bench):
    """From the configuration, as it stands in the log and in every answer."""
    backend = Collector(bench)
    path = bench.path / "%s%n é.sock"
    millrace = bench.millrace("--listen", f"unix://{path}", backends=backend.addresses, listen=())
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(path))
        s.sendall(b"a:1|c\n")
    assert backend.wait_lines(1) == [b"a:1|c"]
    millrace.wait_line(re.escape(f"listening on unix {path}"))
    assert millrace.status()["endpoints"][0]["name"] == str(path) if millrace.status()["endpoints"] else True
    for command in ("status", "stats", "drops"):
        assert millrace.ctl(command).returncode == 0
    clean(millrace)


@pytest.mark.parametrize("ask",
    [b"log \x1b[31m%s%n\n",
    b"%s%s%n\n",
    b"\x1b]0;title\x07\n",
    b"\0\0\n",
    b"log info extra\n",
    b"\n",
    b" \n",
    b"drain now\n",
    b"x" * 300,
    b"x" * 5000 + b"\n",
    b"pages\0\n\n\n",
     b"PAGES\n"])
def test_the_control_socket(bench, ask):
    """One line of printable text answers whatever was asked, and the next client is served."""
    backend = Collector(bench)
    millrace = bench.millrace(backends=backend.addresses, workers=1)
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(millrace.control))
        s.settimeout(8)
        try:
            s.sendall(ask)
            answer = s.recv(4096)
        except ConnectionResetError:
            answer = b""
    assert answer == b"" or (answer.count(b"\n") == 1 and answer[:-1].decode().isprintable()), answer
    assert not answer.startswith(b"ok") or ask.startswith(b"pages")
    millrace.check()
    clean(millrace)


def test_clients_of_the_control_socket_that_hang(bench):
    """Who comes while all places are taken by clients that say nothing takes the place of the oldest, at once."""
    backend = Collector(bench)
    millrace = bench.millrace(backends=backend.addresses, workers=1)
    clients = []
    for _ in range(20):
        s = socket.socket(socket.AF_UNIX)
        s.connect(str(millrace.control))
        s.settimeout(10)
        clients.append(s)
    clients[18].sendall(b"pag")
    millrace.check()  # the 21st
    assert all(s.recv(1) == b"" for s in clients[:5])
    clients[18].sendall(b"es\n")
    assert clients[18].recv(4096).startswith(b"ok ")
    for s in clients:
        s.close()
    millrace.check()


def test_unknown_words_in_a_file_are_escaped(bench):
    file = bench.path / "c.yaml"
    file.write_text(config({"in": {"type": "udp", "bind": "127.0.0.1:8125", "to": "out", "%s%n": 1, "\x1b[31m\nERROR": 1}},
                           {"out": statsite(["127.0.0.1:1", "%s%n\x1b:1", "\x07"])}, **{"wor\x7fkers": 1}))
    r = run("-t", "-c", file)
    assert r.returncode == 1
    lines = r.stderr.splitlines()
    assert len(lines) == 5, lines
    assert all(line.startswith(f"{file}:") and line.isprintable() for line in lines), lines
    assert any("%s%n" in line for line in lines) and any("\\x1b" in line for line in lines)


def test_a_peer_that_floods_bad_lines_does_not_flood_the_log(bench):
    backend = Collector(bench)
    millrace = bench.millrace("-l", "debug", conf=one_input(bench, "tcp", backend.addresses))
    before = len(millrace.err)
    with client(bench, "tcp") as s:
        s.sendall(b"bad %s\n" * 100000)
    wait_counters(millrace, invalid_lines=100000)
    assert len(millrace.err) - before < 50


def all_ready(millrace):
    r = millrace.ctl("status", "--json", check=False)
    return r.returncode == 0 and all(w["state"] == "ready" for w in json.loads(r.stdout)["workers"])


def relays_and_ends(bench, millrace, backend):
    """The start, a worker's death, an idle signal and TERM, each of which writes a line."""
    wait_for(lambda: all_ready(millrace), "the workers")
    os.kill(millrace.worker_pids()[0], signal.SIGKILL)
    wait_for(lambda: millrace.status()["workers"][0]["deaths"] == 1 and all_ready(millrace), "the next worker")
    millrace.send_signal(signal.SIGHUP)
    send_stream(bench, "tcp", b"a:1|c\n")
    assert backend.wait_lines(1) == [b"a:1|c"]
    millrace.check()
    assert millrace.terminate() == 0


def test_a_pipe_that_nobody_empties(bench):
    """It is full from the start: the lines are lost, nothing waits."""
    backend = Collector(bench)
    fifo = bench.path / "stderr"
    os.mkfifo(fifo)
    full = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, b"x" * 4096)
    conf = one_input(bench, "tcp", backend.addresses, workers=2)
    relays_and_ends(bench, Wrapped(bench, [], f"exec 2>{fifo}", conf, "-l", "debug"), backend)
    os.close(full)


@pytest.mark.parametrize("close", ["2>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_descriptors(bench, close):
    """No log line goes into what got the number 2 instead."""
    backend = Collector(bench)
    conf = one_input(bench, "tcp", backend.addresses, workers=2)
    millrace = Wrapped(bench, [], f"exec {close}", conf, "-l", "debug")
    wait_for(lambda: all_ready(millrace), "the workers")
    assert os.readlink(f"/proc/{millrace.pid}/fd/2") == "/dev/null"
    relays_and_ends(bench, millrace, backend)


@contextlib.contextmanager
def dev_log():
    """A datagram socket that everybody may write to, as /dev/log is: workers are nobody. (socket, path)"""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        os.chmod(folder, 0o755)
        log.bind(f"{folder}/log")
        os.chmod(f"{folder}/log", 0o666)
        log.settimeout(10)
        yield log, f"{folder}/log"


@needs_root
def test_syslog(bench):
    """--syslog: facility daemon, of the master and of the workers, nothing on stderr; /dev/log is one of the test's."""
    backend = Collector(bench)
    with dev_log() as (log, path):
        conf = one_input(bench, "tcp", [*backend.addresses, "127.0.0.1:1"], workers=2)
        millrace = Wrapped(bench, ["-m"], f"mount -t tmpfs none /dev && ln -s {path} /dev/log", conf, "--syslog")
        lines = []
        while not any(b"millrace is serving with 2 workers" in x for x in lines) or \
                sum(b"127.0.0.1:1 down" in x for x in lines) < 2:
            lines.append(log.recv(4096))
        assert millrace.err == []
        assert all(re.match(rb"<(27|28|30)>.* millrace\[\d+\]: (master|worker [01]): [ -~]*$", x) for x in lines), lines
        pids = {int(re.search(rb"\[(\d+)\]", x).group(1)) for x in lines}
        assert pids == {millrace.pid, *millrace.worker_pids().values()}
        send_stream(bench, "tcp", b"a:1|c\n")
        assert millrace.terminate() == 0 or millrace.p.returncode == 3
        millrace.expected_exit = millrace.p.returncode


@needs_root
def test_a_syslogd_that_hangs(bench):
    """Its queue is full from the start: nothing waits for it, and once it reads again it hears how many lines were lost."""
    backend = Collector(bench)
    with dev_log() as (log, path), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
        filler.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                filler.sendto(b"x", path)
        conf = one_input(bench, "tcp", backend.addresses, workers=2)
        millrace = Wrapped(bench, ["-m"], f"mount -t tmpfs none /dev && ln -s {path} /dev/log", conf, "--syslog")
        wait_for(lambda: all_ready(millrace), "the workers")
        log.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                assert log.recv(4096) == b"x"
        log.settimeout(10)
        millrace.send_signal(signal.SIGHUP)
        assert re.search(rb"master: [1-9]\d* log lines were lost: syslog did not take them", log.recv(4096))
        assert b"reload: nothing has changed" in log.recv(4096)
        with contextlib.suppress(BlockingIOError):
            while True:
                filler.sendto(b"x", path)
        relays_and_ends(bench, millrace, backend)
