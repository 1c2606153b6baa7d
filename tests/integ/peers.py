# SPDX-License-Identifier: MIT
"""What the behaviour tests share beside the bench: backends that keep every byte, senders for each transport, configurations.

A Collector is a backend written apart from millrace-sink, so that "byte for byte" has a witness which shares no code with
the program. Nothing here sleeps for luck: what must have been read by the program is asked of the kernel.
"""
import codecs
import fcntl
import json
import os
import selectors
import socket
import struct
import termios
import threading
import time
from pathlib import Path

import pytest

from conftest import BUILD, ROOT, Millrace, Process, free_port, wait_for

DATA = ROOT / "tests" / "data"
NOBODY = 65534
IS_SANITIZED = b"__asan_init" in (BUILD / "millrace").read_bytes() if (BUILD / "millrace").exists() else False
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user or to make a namespace")


class Collector:
    """TCP or UDP backends on `n` ports that keep what they read, by port. Stopped by the bench like a program."""

    def __init__(self, bench, n=1, host="127.0.0.1", udp=False, ports=None):
        self.udp, self.host = udp, host
        self.read_bytes, self.datagrams, self.chunks = {}, {}, {}
        self.open = 0
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._is_done = False
        self._sockets = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
        for port in ports or [0] * n:
            s = socket.socket(family, kind)
            if udp:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
            else:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind((host, port))
            if not udp:
                s.listen(256)
            s.setblocking(False)
            self._sockets.append(s)
            port = s.getsockname()[1]
            self.datagrams[port], self.chunks[port] = [], {}
            self._selector.register(s, selectors.EVENT_READ, (port, None))
        self.ports = list(self.datagrams)
        where = f"[{host}]" if ":" in host else host
        self.addresses = [f"{where}:{p}" + (":udp" if udp else "") for p in self.ports]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        bench.started.append(self)

    def _run(self):
        while not self._is_done:
            for key, _ in self._selector.select(0.05):
                port, connection = key.data
                try:
                    self._read(key.fileobj, port, connection)
                except OSError:
                    self._end(key.fileobj, connection)

    def _read(self, s, port, connection):
        if self.udp:
            with self._lock:
                self.datagrams[port].append(s.recv(65536))
        elif connection is None:
            peer, name = s.accept()
            peer.setblocking(False)
            self._sockets.append(peer)
            with self._lock:
                self.open += 1
                self.chunks[port][name] = []
            self._selector.register(peer, selectors.EVENT_READ, (port, name))
        else:
            data = s.recv(1 << 18)
            if not data:
                self._end(s, connection)
                return
            with self._lock:
                self.chunks[port][connection].append(data)

    def _end(self, s, connection):
        if connection is not None:
            self._selector.unregister(s)
            s.close()
            self.open -= 1

    def texts(self, port=None):
        """What each connection or datagram brought, whole."""
        with self._lock:
            ports = self.ports if port is None else [port]
            return [d for p in ports for d in self.datagrams[p]] + \
                   [b"".join(c) for p in ports for c in self.chunks[p].values()]

    def lines(self, port=None):
        """All whole lines; those of a connection are in order, and so are those of one UDP port."""
        found = []
        for text in self.texts(port):
            lines = text.split(b"\n")
            last = lines.pop()
            found += lines
            if self.udp and last:
                found.append(last)
        return found

    def wait_lines(self, n, timeout=15.0):
        """Until n lines came; them."""
        def enough():
            lines = self.lines()
            return lines if len(lines) >= n else None
        return wait_for(enough, f"{n} lines at the collector, which has {len(self.lines())}", timeout)

    def kill(self):
        self._is_done = True
        self._thread.join(5)
        for s in self._sockets:
            s.close()
        self._selector.close()


class Wrapped(Millrace):
    """A millrace that another program starts and becomes: in namespaces of its own. `prepare` is a shell command."""

    def __init__(self, bench, namespaces, prepare, conf, *flags):
        self.bench, self.control = bench, bench.path / "control.sock"
        self.expected_exit, self.expected_errors = 0, []
        bench.port = bench.port or free_port()
        file = bench.path / "millrace.yaml"
        file.write_text(conf.replace("{port}", str(bench.port)))
        words = ["unshare", *namespaces, "sh", "-c", prepare + ' && exec "$@"', "sh", BUILD / "millrace", "-c", file,
                 "--control", self.control, "--http", "off", *flags]
        Process.__init__(self, words, bench.path)
        bench.started.append(self)


# -- configurations ------------------------------------------------------------------------------------------------------

def config(inputs, outputs, **top):
    """A configuration file: JSON is YAML."""
    return json.dumps({**top, "inputs": inputs, "outputs": outputs}, indent=1)


def statsite(backends, **options):
    return {"type": "statsite", "backends": list(backends), **options}


TRANSPORTS = ["udp", "tcp", "unix", "unixgram"]
STREAMS = ["tcp", "unix"]
DATAGRAMS = ["udp", "unixgram"]


def one_input(bench, transport, backends, workers=1, output=None, **options):
    """One input `in` of that transport, one output `out`; where to send to is where(bench, transport)."""
    bind = "127.0.0.1:{port}" if transport in ("udp", "tcp") else str(bench.path / "in.sock")
    return config({"in": {"type": transport, "bind": bind, "to": "out", **options}},
                  {"out": statsite(backends, **(output or {}))}, workers=workers)


def where(bench, transport):
    return ("127.0.0.1", bench.port) if transport in ("udp", "tcp") else str(bench.path / "in.sock")


def counters(millrace, name="in"):
    """The counters of an input, summed over the workers."""
    return next(i for i in millrace.status()["inputs"] if i["name"] == name)


def wait_counters(millrace, name="in", **expected):
    """Until the input's counters are so; all of them."""
    def reached():
        c = counters(millrace, name)
        return c if all(c[k] == v for k, v in expected.items()) else None
    return wait_for(reached, f"{expected} in {name}; it has { {k: counters(millrace, name)[k] for k in expected} }")


def let_pass(seconds):
    """The time that is measured, or in which something must not happen: there is no event to wait for."""
    threading.Event().wait(seconds)


# -- senders -------------------------------------------------------------------------------------------------------------

def client(bench, transport):
    """A connected socket."""
    family = socket.AF_INET if transport in ("udp", "tcp") else socket.AF_UNIX
    s = socket.socket(family, socket.SOCK_STREAM if transport in STREAMS else socket.SOCK_DGRAM)
    if transport == "unixgram":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    s.connect(where(bench, transport))
    if transport == "tcp":
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def send_stream(bench, transport, *texts):
    """One connection for each text, closed behind it."""
    for text in texts:
        with client(bench, transport) as s:
            s.sendall(text)


def send_datagrams(bench, transport, *payloads):
    with client(bench, transport) as s:
        for p in payloads:
            s.send(p)


def _tcp_unread(own, peer):
    """Bytes in the receive buffer of the other end of a loopback connection, and those on the way to it."""
    unread = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        f = line.split()
        ends = (int(f[1].split(":")[1], 16), int(f[2].split(":")[1], 16))
        tx, rx = (int(x, 16) for x in f[4].split(":"))
        if ends == (peer, own):
            unread += rx
        elif ends == (own, peer):
            unread += tx
    return unread


def wait_read(s):
    """Until the program has read all that was sent on this stream."""
    if s.family == socket.AF_UNIX:
        def unread():
            return struct.unpack("i", fcntl.ioctl(s, termios.TIOCOUTQ, b"\0\0\0\0"))[0]
    else:
        own, peer = s.getsockname()[1], s.getpeername()[1]

        def unread():
            return _tcp_unread(own, peer)
    until = time.monotonic() + 10
    while unread():
        if time.monotonic() > until:
            pytest.fail("the program does not read its stream")


def receive_all(s, timeout=20.0):
    """All that comes until the other end closes."""
    s.settimeout(timeout)
    parts = []
    while part := s.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def ask_status(bench, transport="tcp"):
    """statsrelay's answer to `status`, as text."""
    with client(bench, transport) as s:
        s.sendall(b"status\n")
        s.shutdown(socket.SHUT_WR)
        return receive_all(s).decode()


# -- data ----------------------------------------------------------------------------------------------------------------

def line_table():
    """Rows of statsd-lines.tsv: line, verdict with validation, verdict without, key, why."""
    rows = []
    for row in (DATA / "statsd-lines.tsv").read_text().split("\n"):
        if row.startswith("#") or not row:
            continue
        line, on, off, key, why = row.split("\t")
        rows.append((codecs.escape_decode(line)[0], on, off, codecs.escape_decode(key)[0], why))
    return rows


def as_forwarded(line):
    """Without the one CR that is stripped."""
    return line[:-1] if line.endswith(b"\r") else line


def shard_table():
    """Rows of statsrelay-shards.tsv: key, hash, and the shard by number of shards."""
    rows = []
    for row in (DATA / "statsrelay-shards.tsv").read_text().splitlines():
        if not row.startswith("#"):
            key, value, *shards = row.split("\t")
            rows.append((key, int(value), dict(zip((3, 4, 10, 1024), map(int, shards)))))
    return rows
