# SPDX-License-Identifier: MIT
"""A backend's name is a set of addresses that changes: it is asked again, all of them are tried, none for good."""
import os
import signal
import socket
import subprocess

import pytest

from conftest import BUILD, free_port, wait_for
from dns import NameServer
from faults import wait_ready
from peers import Collector, Wrapped, config, needs_root, one_input, send_stream, statsite

pytestmark = [needs_root, pytest.mark.usefixtures("own_network")]

NAME = "pod.example.test"
QUICK = {"reconnect_min": "20ms", "reconnect_max": "200ms", "resolve_interval": "1s"}
kinds = pytest.mark.parametrize("udp", [False, True], ids=["tcp", "udp"])


class Rig:
    """A millrace whose only backend is NAME, and a name server."""

    def __init__(self, bench, addresses, port, udp, workers=1, **options):
        self.bench, self.sent = bench, 0
        self.dns = NameServer(bench, **{NAME: addresses})
        backend = f"{NAME}:{port}" + (":udp" if udp else "")
        conf = one_input(bench, "tcp", [backend], output={**QUICK, **options}, workers=workers)
        self.millrace = Wrapped(bench, ["-m"], self.dns.prepare, conf)
        self.millrace.wait_line("millrace is serving")

    def send(self, n=100):
        lines = [b"a.%d:1|c" % i for i in range(self.sent, self.sent + n)]
        self.sent += n
        send_stream(self.bench, "tcp", b"".join(line + b"\n" for line in lines))
        return lines

    def backend(self):
        return self.millrace.status()["backends"][0]

    def wait_delivered(self):
        """Until all that was sent is acknowledged, which is a moment after it has arrived; the backend's row."""
        return wait_for(lambda: (lambda b: b if b["delivered_records"] == self.sent else None)(self.backend()), "the last line")

    def wait_state(self, state):
        return wait_for(lambda: (lambda b: b if b["state"] == state else None)(self.backend()), f"the backend to be {state}")


def wait_for_set(collector, lines):
    wait_for(lambda: set(lines) <= set(collector.lines()), f"{len(lines)} lines at {collector.host}")


@kinds
def test_moves_while_the_old_address_lives(bench, udp):
    """Every line once, at the address that the name had; nothing is lost or sent twice by the move."""
    port = free_port()
    old, new = (Collector(bench, host=host, udp=udp, ports=[port]) for host in ("127.0.0.2", "127.0.0.3"))
    rig = Rig(bench, [old.host], port, udp)
    first = rig.send()
    wait_for_set(old, first)
    rig.dns.names[NAME] = [new.host]
    rig.millrace.wait_line(rf"{NAME}:{port} leaves 127.0.0.2:{port}: the name has other addresses")
    second = rig.send()
    wait_for_set(new, second)
    assert sorted(old.lines()) == sorted(first) and sorted(new.lines()) == sorted(second)
    rig.wait_state("up")
    backend = rig.wait_delivered()
    assert (backend["moves"], backend["disconnects"], backend["resent_records"], backend["at_risk_records"]) == (1, 0, 0, 0)
    rig.millrace.check()


@kinds
def test_shrinks_fails_and_comes_back(bench, udp):
    """What a name no longer has is left; a name server that fails, or that knows no address, changes nothing."""
    port = free_port()
    one, two = (Collector(bench, host=host, udp=udp, ports=[port]) for host in ("127.0.0.2", "127.0.0.3"))
    rig = Rig(bench, [one.host, two.host], port, udp)
    wait_for_set(one, rig.send())
    rig.dns.names[NAME] = [two.host]
    rig.millrace.wait_line("leaves 127.0.0.2")
    wait_for_set(two, rig.send())
    rig.dns.is_failing = True
    asked = rig.dns.asked
    wait_for(lambda: rig.dns.asked >= asked + 6, "the name to be asked again")
    wait_for_set(two, rig.send())
    rig.dns.is_failing = False
    del rig.dns.names[NAME]
    asked = rig.dns.asked
    wait_for(lambda: rig.dns.asked >= asked + 6, "the name to be asked again")
    wait_for_set(two, rig.send())
    backend = rig.wait_delivered()
    assert (backend["moves"], backend["disconnects"]) == (1, 0)
    rig.millrace.check()


@kinds
@pytest.mark.parametrize("dead", [["127.0.0.2"], ["127.0.0.2", "127.0.0.4"], ["192.0.2.1"]])
def test_the_next_address_is_tried(bench, dead, udp):
    """The first are refused, or have no way to them: every line arrives all the same, at the first that lives."""
    backend = Collector(bench, host="127.0.0.9", udp=udp)
    rig = Rig(bench, [*dead, backend.host], backend.ports[0], udp)
    wait_for_set(backend, rig.send())
    assert sorted(backend.lines()) == sorted(b"a.%d:1|c" % i for i in range(rig.sent))
    rig.millrace.check()


@kinds
def test_only_ipv6_and_late(bench, udp):
    """A name without IPv4, whose name server answers after half a second."""
    backend = Collector(bench, host="::1", udp=udp)
    dns_late = 0.5
    rig = Rig(bench, [], backend.ports[0], udp)
    rig.dns.late_s = dns_late
    rig.dns.names[NAME] = ["::1"]
    wait_for_set(backend, rig.send())
    rig.millrace.check()


def test_refusals_that_last_make_it_down(bench):
    """A datagram backend whose pod went away: down in status and log, what comes is kept, and all of that arrives where the
    name points to next."""
    port = free_port()
    old, new = Collector(bench, host="127.0.0.2", udp=True, ports=[port]), Collector(bench, host="127.0.0.3", udp=True, ports=[port])
    rig = Rig(bench, [old.host], port, True, resolve_interval="1h")
    wait_for_set(old, rig.send())
    old.kill()

    def is_down():
        rig.send(1)
        return rig.backend()["state"] == "down"

    wait_for(is_down, "the backend to be down")
    rig.millrace.wait_line(rf"backend {NAME}:{port} down: Connection refused")
    assert "down" in rig.millrace.ctl("drops").stdout
    wait_for(lambda: rig.backend()["connect_failures"] >= 3, "three attempts that are refused")
    kept = rig.send()
    wait_for(lambda: rig.backend()["queued_records"] >= len(kept), "the lines to be kept")
    (pid,) = rig.millrace.worker_pids().values()
    os.kill(pid, signal.SIGTERM)  # the next worker goes on with it: down, with what is kept
    wait_for(lambda: pid not in rig.millrace.worker_pids().values() and wait_ready(rig.millrace), "the next worker")
    assert rig.backend()["state"] == "down" and rig.backend()["queued_records"] >= len(kept)
    rig.dns.names[NAME] = [new.host]
    wait_for_set(new, kept)
    rig.millrace.wait_line(rf"backend {NAME}:{port} up after")
    assert len(set(new.lines())) == len([x for x in new.lines() if x])
    rig.millrace.check()


def test_refusals_once_in_a_while_are_noticed(bench):
    """One after the other, each refused, with more than a second from the first to the last."""
    port = free_port()
    rig = Rig(bench, ["127.0.0.2"], port, True)
    rig.send(1)
    wait_for(lambda: rig.backend()["refusals"] >= 1, "the first refusal")
    wait_for(lambda: rig.send(1) and rig.backend()["state"] == "down", "the backend to be down")
    back = Collector(bench, host="127.0.0.2", udp=True, ports=[port])
    rig.wait_state("up")
    wait_for_set(back, rig.send())
    rig.millrace.check()


@pytest.mark.parametrize("workers", [1, 2])
def test_max_connection_age(bench, workers):
    """Connections are closed in order and made anew, at the first address there is now; every line once."""
    port = free_port()
    one, two = (Collector(bench, host=host, ports=[port]) for host in ("127.0.0.2", "127.0.0.3"))
    rig = Rig(bench, [one.host], port, False, workers=workers, resolve_interval="0s", max_connection_age="2s")
    rig.wait_state("up")
    wait_for_set(one, rig.send())
    rig.dns.names[NAME] = [two.host, one.host]
    wait_for(lambda: rig.backend()["moves"] >= workers, "connections to be as old as they may be")
    wait_for(lambda: rig.send(10) and two.lines(), "lines at the address that is first now")
    rig.wait_delivered()
    wait_for(lambda: len(one.lines() + two.lines()) >= rig.sent, "the last line at the peers")
    assert sorted(one.lines() + two.lines()) == sorted(b"a.%d:1|c" % i for i in range(rig.sent))
    backend = rig.backend()
    assert backend["disconnects"] == backend["resent_records"] == 0
    rig.millrace.check()


def test_moves_under_load(bench):
    """Four moves while lines come: each line once, in the account and at the peers."""
    port = free_port()
    peers = [Collector(bench, host=f"127.0.0.{i}", ports=[port]) for i in (2, 3)]
    rig = Rig(bench, [peers[0].host], port, False, workers=2)
    rig.wait_state("up")
    for i in range(1, 5):
        rig.dns.names[NAME] = [peers[i % 2].host]
        # connected, too: who asks between the two would be told of the next address
        wait_for(lambda: rig.send(500) and rig.backend()["moves"] >= 2 * i and rig.backend()["connects"] >= 2 * i + 2,
                 "both workers to move")
    rig.wait_delivered()
    wait_for(lambda: sum(len(p.lines()) for p in peers) >= rig.sent, "the last line at the peers")
    assert sorted(x for p in peers for x in p.lines()) == sorted(b"a.%d:1|c" % i for i in range(rig.sent))
    assert rig.backend()["resent_records"] == 0
    rig.millrace.check()


@kinds
def test_goes_on_after_a_reload(bench, udp):
    """The worker that takes a connection over asks its name as well."""
    port = free_port()
    old, new = (Collector(bench, host=host, udp=udp, ports=[port]) for host in ("127.0.0.2", "127.0.0.3"))
    rig = Rig(bench, [old.host], port, udp)
    wait_for_set(old, rig.send())
    file = bench.path / "millrace.yaml"
    file.write_text(file.read_text().replace('"reconnect_max": "200ms"', '"reconnect_max": "300ms"'))
    rig.millrace.ctl("reload")
    rig.dns.names[NAME] = [new.host]
    rig.millrace.wait_line("leaves 127.0.0.2")
    wait_for_set(new, rig.send())
    rig.millrace.check()


@kinds
def test_link_local_addresses_have_an_interface(bench, udp):
    """Backend and input on fe80::1 of a veth, named by the interface."""
    subprocess.run("ip link add here type veth peer name there; ip link set there up; ip link set here up; "
                   "ip addr add fe80::1/64 dev here nodad", shell=True, check=True)
    scope = socket.if_nametoindex("here")
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM) as backend:
        backend.bind(("fe80::1", 0, 0, scope))
        backend.settimeout(10)
        if not udp:
            backend.listen()
        port = backend.getsockname()[1]
        conf = config({"in": {"type": "udp", "bind": "[fe80::1%here]:{port}", "to": "out"}},
                      {"out": statsite([f"[fe80::1%here]:{port}" + (":udp" if udp else "")])}, workers=1)
        millrace = bench.millrace(conf=conf)
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"a:1|c\n", ("fe80::1", bench.port, 0, scope))
        connection = backend if udp else backend.accept()[0]
        connection.settimeout(10)
        assert connection.recv(100) == b"a:1|c\n"
        wait_for(lambda: millrace.status()["backends"][0]["delivered_records"] == 1, "the account")
        if not udp:
            connection.close()


@pytest.mark.parametrize("kind", ["unix", "unixgram"])
def test_abstract_sockets(bench, kind):
    """An input at @name; a reload and an upgrade keep it, no file is made, and a second program hears that it is in use."""
    backend = Collector(bench)
    conf = config({"in": {"type": kind, "bind": "@millrace.test", "to": "out"}}, {"out": statsite(backend.addresses)}, workers=1)
    millrace = bench.millrace(conf=conf)
    how = socket.SOCK_STREAM if kind == "unix" else socket.SOCK_DGRAM
    lines = [b"a.%d:1|c" % i for i in range(3)]
    with socket.socket(socket.AF_UNIX, how) as sender:
        for line, then in zip(lines, ("reload", "upgrade", None)):
            sender.close()
            sender.__init__(socket.AF_UNIX, how)
            sender.connect("\0millrace.test")
            sender.send(line + b"\n")
            if then:
                millrace.ctl(then)
    wait_for_set(backend, lines)
    assert not (bench.path / "@millrace.test").exists()
    second = subprocess.run([BUILD / "millrace", "-c", bench.path / "millrace.yaml", "--control", bench.path / "other.sock", "--http", "off"],
                            capture_output=True, text=True, timeout=20, cwd=bench.path)
    assert second.returncode == 1 and "@millrace.test" in second.stderr and "in use" in second.stderr
    millrace.check()
