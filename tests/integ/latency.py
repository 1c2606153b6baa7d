# SPDX-License-Identifier: MIT
"""Measures end to end: `latency.py receive` prints its port, then the delays of the lines that come to it; `latency.py
send PORT N PER_SECOND` sends N datagrams of one line each, which carries the time of its sending. Two processes, so that
neither waits for the other's interpreter."""
import json
import socket
import sys
import time


def spin_until(due_ns):
    while (left := due_ns - time.monotonic_ns()) > 0:
        if left > 300_000:
            time.sleep((left - 200_000) / 1e9)


def send(port, n, per_second):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(("127.0.0.1", port))
    began = time.monotonic_ns()
    for i in range(n):
        spin_until(began + i * 1_000_000_000 // per_second)
        s.send(b"lat.%04d:%d|g\n" % (i % 1000, time.monotonic_ns()))


def receive(n, kind):
    """kind tcp: as a backend does; udp: straight from the sender, to know what the bench itself costs."""
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    if kind == "tcp":
        server.listen()
    print(server.getsockname()[1], flush=True)
    s = server.accept()[0] if kind == "tcp" else server
    rest, delays = b"", []
    while len(delays) < n:
        data = s.recv(65536)
        now = time.monotonic_ns()
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        delays += [(now - int(line.split(b":")[1].split(b"|")[0])) / 1000 for line in lines if line.startswith(b"lat.")]
    delays.sort()
    at = {f"p{p}": round(delays[min(len(delays) - 1, len(delays) * p // 100)], 1) for p in (50, 90, 99)}
    print(json.dumps({"n": len(delays), "max": round(delays[-1], 1), **at}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(*map(int, sys.argv[2:]))
    else:
        receive(int(sys.argv[2]), sys.argv[3])
