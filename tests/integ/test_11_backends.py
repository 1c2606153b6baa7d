# SPDX-License-Identifier: MIT
"""Backends: transports, families, names; away at the start; datagrams cut at line ends."""
import socket

import pytest

from conftest import free_port, wait_for
from peers import Collector, Wrapped, client, config, needs_root, one_input, send_datagrams, send_stream, statsite, \
    wait_counters
from test_55_monitor import HTTP, address, ask


def backend_status(millrace):
    return {b["name"]: b for b in millrace.status()["backends"]}


@pytest.mark.parametrize("udp", [False, True], ids=["tcp", "udp"])
@pytest.mark.parametrize("host,address", [("127.0.0.1", None), ("::1", None), ("127.0.0.1", "localhost"), ("127.0.0.2", None)])
def test_families_and_names(bench, host, address, udp):
    backend = Collector(bench, host=host, udp=udp)
    to = backend.addresses if address is None else [f"{address}:{backend.ports[0]}" + (":udp" if udp else ":tcp")]
    millrace = bench.millrace(conf=one_input(bench, "tcp", to))
    send_stream(bench, "tcp", b"".join(b"a.%d:1|c\n" % i for i in range(1000)))
    assert backend.wait_lines(1000) == [b"a.%d:1|c" % i for i in range(1000)]
    name = to[0].removesuffix(":udp").removesuffix(":tcp")
    assert backend_status(millrace)[name]["transport"] == ("udp" if udp else "tcp")


@pytest.mark.parametrize("bind,to", [("[::1]", "::1"), ("127.0.0.1", "127.0.0.1"),
                         ("localhost", "127.0.0.1"), ("", "127.0.0.1"), ("", "::1")])
@pytest.mark.parametrize("transport,kind", [("udp", socket.SOCK_DGRAM), ("tcp", socket.SOCK_STREAM)])
def test_families_and_names_of_inputs(bench, bind, to, transport, kind):
    """":PORT" is all addresses of both families, a name is looked up at the start."""
    backend = Collector(bench)
    bench.millrace(conf=config({"in": {"type": transport, "bind": bind + ":{port}", "to": "out"}},
                   {"out": statsite(backend.addresses)}))
    with socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET, kind) as s:
        s.connect((to, bench.port))
        s.send(b"a:1|c\n")
    assert backend.wait_lines(1) == [b"a:1|c"]


def test_a_tcp_backend_that_is_down_at_start(bench):
    """It stops neither the start nor the other; its lines wait for it and arrive in order."""
    up = Collector(bench)
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind(("127.0.0.1", 0))
    port = place.getsockname()[1]
    millrace = bench.millrace(conf=one_input(bench, "tcp", [*up.addresses, f"127.0.0.1:{port}"],
                                             output={"hash": "modulo", "reconnect_min": "20ms", "reconnect_max": "100ms"}))
    millrace.wait_line(rf"WARN .*backend 127.0.0.1:{port} down: Connection refused; holding up to 64 MiB")
    lines = [b"a.%d:1|c" % i for i in range(1000)]
    send_stream(bench, "tcp", b"".join(x + b"\n" for x in lines))
    wait_counters(millrace, received_lines=1000)
    here = wait_for(lambda: up.lines(), "lines at the live one")
    waiting = wait_for(lambda: backend_status(millrace)[f"127.0.0.1:{port}"]["queued_records"], "lines to wait")
    wait_for(lambda: len(up.lines()) == 1000 - waiting, "the rest at the live one")
    place.close()
    late = Collector(bench, ports=[port])
    assert late.wait_lines(waiting) == [x for x in lines if x not in set(up.lines())]
    millrace.wait_line(rf"backend 127.0.0.1:{port} up after")
    assert backend_status(millrace)[f"127.0.0.1:{port}"]["connect_failures"] > 0
    assert len([x for x in millrace.err if "Connection refused" in x]) == 1  # one for the change, not for each attempt
    assert here


def test_a_udp_backend_that_is_down_at_start(bench):
    """UDP tells nobody: what it loses is a hint (refusals), and what comes later arrives."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    millrace = bench.millrace(conf=one_input(bench, "udp", [f"127.0.0.1:{port}:udp"]))
    for i in range(5):
        send_datagrams(bench, "udp", b"lost.%d:1|c" % i)
        wait_counters(millrace, received_lines=i + 1)
    wait_for(lambda: backend_status(millrace)[f"127.0.0.1:{port}"]["refusals"] > 0, "ICMP to tell")
    backend = Collector(bench, udp=True, ports=[port])
    wait_for(lambda: send_datagrams(bench, "udp", b"a:1|c") or b"a:1|c" in backend.lines(), "a line to arrive")


def test_a_name_that_does_not_resolve(bench):
    """A warning with the name; the other backend works; at the end what waits for it is counted, exit 3."""
    up = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench,
    "tcp",
    [*up.addresses,
    "no-such-host.invalid:9000"],
    output={"hash": "modulo"}).replace('"workers"',
     '"drain_timeout": "300ms", "workers"'))
    millrace.wait_line(r"WARN .*backend no-such-host.invalid:9000 down: ", timeout=20)
    send_stream(bench, "tcp", b"".join(b"a.%d:1|c\n" % i for i in range(100)))
    wait_counters(millrace, received_lines=100)
    waiting = backend_status(millrace)["no-such-host.invalid:9000"]["queued_records"]
    assert 20 < waiting < 80
    assert len(up.wait_lines(100 - waiting)) == 100 - waiting
    millrace.expected_exit = 3
    millrace.finish()
    assert any(f"no-such-host.invalid:9000: left {waiting} undelivered" in line for line in millrace.err)


@needs_root
def test_a_name_that_resolves_later_and_moves(bench):
    """Names are asked again at each reconnect: with an /etc/hosts of its own, in a mount namespace of its own."""
    first = Collector(bench)
    port = first.ports[0]
    second = Collector(bench, host="127.0.0.3", ports=[port])
    hosts = bench.path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    conf = one_input(bench, "tcp", [f"moving.backend.test:{port}"], output={"reconnect_min": "20ms", "reconnect_max": "100ms"})
    millrace = Wrapped(bench, ["-m"], f"mount --bind {hosts} /etc/hosts", conf)
    millrace.wait_line("millrace is serving")
    millrace.wait_line(r"moving.backend.test:\d+ down")
    send_stream(bench, "tcp", b"a:1|c\n")
    hosts.write_text("127.0.0.1 localhost moving.backend.test\n")
    assert first.wait_lines(1) == [b"a:1|c"]
    hosts.write_text("127.0.0.1 localhost\n127.0.0.3 moving.backend.test\n")
    first.kill()
    send_stream(bench, "tcp", b"b:1|c\n")
    assert second.wait_lines(1) == [b"b:1|c"]


def test_the_name_of_a_backend_is_shown(bench):
    """Beside its address: in the log, in status, in both JSON forms, and as a label."""
    gone = free_port()
    backends = [{"address": f"127.0.0.1:{gone}", "name": "east"}, f"127.0.0.2:{gone}"]
    millrace = bench.millrace(*HTTP, conf=one_input(bench, "tcp", backends))
    millrace.wait_line(rf"backend 127.0.0.1:{gone} \(east\) down")
    assert f"127.0.0.1:{gone} (east)" in millrace.ctl("status").stdout
    shown = backend_status(millrace)
    assert shown[f"127.0.0.1:{gone}"]["given_name"] == "east" and "given_name" not in shown[f"127.0.0.2:{gone}"]
    where = address(millrace)
    wait_for(lambda: "millrace_backend_up{" in ask(where, "/metrics")[2], "backends in the metrics")
    prometheus = ask(where, "/metrics")[2]
    assert f'backend="127.0.0.1:{gone}",name="east",transport="tcp"' in prometheus
    assert f'backend="127.0.0.2:{gone}",transport="tcp"' in prometheus


@pytest.mark.parametrize("max_datagram", [64, 512, 1432, 8900, 65507])
def test_udp_datagrams_are_cut_at_line_ends(bench, max_datagram):
    """None is longer than max_datagram unless one line is; each ends with a newline, as lines leave; they are filled."""
    backend = Collector(bench, udp=True)
    bench.millrace(conf=one_input(bench, "tcp", backend.addresses, output={"max_datagram": max_datagram}))
    wanted = [b"%d." % i + b"k" * (i * 37 % 130) + b":1|c" for i in range(3000)] + [b"k" * 3000 + b":1|c", b"end:1|c"]
    send_stream(bench, "tcp", b"".join(x + b"\n" for x in wanted))
    assert backend.wait_lines(len(wanted)) == wanted
    datagrams = backend.texts()
    for d in datagrams:
        assert len(d) <= max_datagram or b"\n" not in d[:-1]
        assert d.endswith(b"\n") and not d.startswith(b"\n")
    if 64 < max_datagram < 65507:
        filled = [len(d) for d in datagrams if len(d) > max_datagram - 140]
        assert len(filled) >= len(datagrams) / 2


def test_a_mix_of_transports(bench):
    """TCP and UDP backends in one output, each with its share."""
    tcp, udp = Collector(bench, n=2), Collector(bench, n=2, udp=True)
    bench.millrace(conf=one_input(bench, "udp", [*tcp.addresses, *udp.addresses], workers=2))
    lines = [b"a.%d:1|c" % i for i in range(4000)]
    for at in range(0, 4000, 100):
        send_datagrams(bench, "udp", b"\n".join(lines[at:at + 100]))
    wait_for(lambda: len(tcp.lines()) + len(udp.lines()) == 4000, "all lines")
    assert sorted(tcp.lines() + udp.lines()) == sorted(lines)
    assert all(700 < len(c.lines(p)) < 1300 for c in (tcp, udp) for p in c.ports)


def test_what_a_backend_says_is_thrown_away(bench):
    """A backend that talks does not fill anything, and its lines still arrive."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        bench.millrace(conf=one_input(bench, "tcp", [f"127.0.0.1:{server.getsockname()[1]}"]))
        peer, _ = server.accept()
        with peer:
            peer.settimeout(10)
            for _ in range(64):
                peer.sendall(b"talk " * 20000)
            with client(bench, "tcp") as s:
                s.sendall(b"a:1|c\n")
            assert peer.recv(100) == b"a:1|c\n"
