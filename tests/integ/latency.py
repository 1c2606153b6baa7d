# SPDX-License-Identifier: MIT
"""Measures end to end: `latency.py receive` prints its port, then the delays of the lines that come to it; `latency.py
send PORT N PER_SECOND` sends N datagrams of one line each, which carries the time of its sending. Two processes, so that
neither waits for the other's interpreter."""
import json
import selectors
import socket
import sys
import time


def send(port, n, per_second):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(("127.0.0.1", port))
    began = time.monotonic_ns()
    for i in range(n):
        # a late one does not matter: each carries its own time. Spinning would take a CPU from what is measured.
        time.sleep(max(0, began + i * 1_000_000_000 // per_second - time.monotonic_ns()) / 1e9)
        s.send(b"lat.%04d:%d|g\n" % (i % 1000, time.monotonic_ns()))


def receive(n, kind):
    """kind tcp: as a backend does; udp: straight from the sender, to know what the bench itself costs."""
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    if kind == "tcp":
        server.listen()
    print(server.getsockname()[1], flush=True)
    selector, delays = selectors.DefaultSelector(), []
    selector.register(server, selectors.EVENT_READ, b"")
    while len(delays) < n:
        for key, _ in selector.select():
            s = key.fileobj
            if kind == "tcp" and s is server:
                selector.register(s.accept()[0], selectors.EVENT_READ, b"")
                continue
            data = s.recv(65536)
            now = time.monotonic_ns()
            if not data:
                selector.unregister(s)
                continue
            *lines, rest = (key.data + data).split(b"\n")
            selector.modify(s, selectors.EVENT_READ, rest)
            delays += [(now - int(line.split(b":")[1].split(b"|")[0])) / 1000 for line in lines if line.startswith(b"lat.")]
    delays.sort()
    at = {f"p{p}": round(delays[min(len(delays) - 1, len(delays) * p // 100)], 1) for p in (50, 90, 99)}
    print(json.dumps({"n": len(delays), "max": round(delays[-1], 1), **at}), flush=True)
    while kind == "tcp":  # what else is under way is taken, so that the relay can drain; until we are ended
        for key, _ in selector.select():
            if key.fileobj is not server and not key.fileobj.recv(65536):
                selector.unregister(key.fileobj)


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(*map(int, sys.argv[2:]))
    else:
        receive(int(sys.argv[2]), sys.argv[3])
