# SPDX-License-Identifier: MIT
"""Sockets that are there before millrace is: from a service manager, by the protocol of sd_listen_fds. With the real one: test_94."""
import fcntl
import json
import os
import socket
import subprocess

from conftest import BUILD, free_port
from faults import send_datagrams
from peers import Collector


def spawn(bench, sockets, text, names=""):
    """millrace with these sockets as descriptors 3, 4, …"""
    port, control, file = free_port(), bench.path / "control.sock", bench.path / "c.yaml"
    file.write_text(text.replace("{control}", str(control)))
    copies = [fcntl.fcntl(s, fcntl.F_DUPFD, 100) for s in sockets]  # none of them is where another has to go
    moves = " ".join(f"{i + 3}<&{c} {c}<&-" for i, c in enumerate(copies))
    script = f"export LISTEN_PID=$$ LISTEN_FDS={len(sockets)} LISTEN_FDNAMES='{names}'; exec {BUILD}/millrace -c {file} {moves}"
    p = bench.run("bash", "-c", script, pass_fds=copies)
    for c in copies:
        os.close(c)
    p.wait_line("millrace is serving with")
    return p, control


def test_sockets_of_a_service_manager(bench):
    """What waits in them is read; one that nobody reads is closed, and bound anew where it is of no use any more."""
    backend = Collector(bench)
    udp, tcp, extra, used = (socket.socket(socket.AF_INET, kind) for kind in
                             (socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_STREAM, socket.SOCK_DGRAM))
    path = bench.path / "in.sock"
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(path))
    unix.listen()
    for s in (udp, tcp, extra):
        s.bind(("127.0.0.1", 0))
    for s in (tcp, extra):
        s.listen()
    ports = [s.getsockname()[1] for s in (udp, tcp, extra)]
    used.bind(("127.0.0.1", 0))
    used.connect(("127.0.0.1", 9))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(b"one:1|c", ("127.0.0.1", ports[0]))
    a = socket.create_connection(("127.0.0.1", ports[1]))
    a.sendall(b"two:2|c\n")
    b = socket.socket(socket.AF_UNIX)
    b.connect(str(path))
    b.sendall(b"three:3|c\n")
    p, control = spawn(bench, [udp, tcp, extra, used, unix], (
        f'workers: 2\ncontrol: {{control}}\nhttp: off\ninputs:\n  u: {{ type: udp, bind: "127.0.0.1:{ports[0]}", to: [o] }}\n'
        f'  t: {{ type: tcp, bind: "127.0.0.1:{ports[1]}", to: [o] }}\n  x: {{ type: unix, bind: "{path}", to: [o] }}\n'
        f'outputs: {{ o: {{ type: statsite, backends: ["{backend.addresses[0]}"] }} }}\n'))
    for s in (udp, tcp, extra, used, unix):
        s.close()
    assert set(backend.wait_lines(3)) == {b"one:1|c", b"two:2|c", b"three:3|c"}
    try:
        socket.create_connection(("127.0.0.1", ports[2])).close()
        raise AssertionError("nobody reads this one")
    except ConnectionRefusedError:
        pass
    a.sendall(b"four:4|c\n")
    backend.wait_lines(4)
    for s in (a, b):
        s.close()
    assert "upgraded" in subprocess.run([BUILD / "millracectl", "-s", control, "upgrade"], capture_output=True, text=True).stdout
    bench.replay("--lines", 100, "--sources", 16, target=f"127.0.0.1:{ports[0]}")
    backend.wait_lines(104)
    p.p.terminate()
    assert p.wait() == 0
    assert not path.exists()


def test_more_sockets_than_workers(bench):
    """One of a group that nobody will read is closed, and what waits in it is counted."""
    backend = Collector(bench)
    port = free_port()
    group = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    for s in group:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        s.bind(("127.0.0.1", port))
    send_datagrams(bench, ["a:1|c"] * 90, sources=90, port=port)
    p, control = spawn(bench, group, (
        f'workers: 1\ncontrol: {{control}}\nhttp: off\ninputs: {{ u: {{ type: udp, bind: "127.0.0.1:{port}", to: [o] }} }}\n'
        f'outputs: {{ o: {{ type: statsite, backends: ["{backend.addresses[0]}"] }} }}\n'))
    for s in group:
        s.close()
    m = p.wait_line(r"udp \S+: (\d+) datagrams waited unread in a socket that is closed")
    lost = int(m[1])
    assert 0 < lost < 90
    assert len(backend.wait_lines(90 - lost)) == 90 - lost
    stats = subprocess.run([BUILD / "millracectl", "-s", control, "stats", "--json"], capture_output=True, text=True, check=True).stdout
    assert sum(r["value"] for r in json.loads(stats)["counters"] if r["name"] == "dropped_closed_datagrams") == lost
    send_datagrams(bench, ["b:1|c"] * 90, sources=90, port=port)  # the one that is left gets all
    backend.wait_lines(180 - lost)
    p.p.terminate()
    assert p.wait() == 0
