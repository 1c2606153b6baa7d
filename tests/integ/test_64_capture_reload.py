# SPDX-License-Identifier: MIT
"""Captures under a reload: filters, rings, groups and workers change while packets flow, and each packet is read once. Needs
root: a network namespace of its own."""
import random

import pytest
from conftest import wait_for
from faults import Counters
from kafka_peers import Cluster, Mock, needs_kafka
from packets import arrived, conf, flow_frames, flow_number, needs_pcap, read_pcap, wire, write_pcap
from reload_rig import Config, Upgraded

pytestmark = [needs_kafka, needs_pcap, pytest.mark.needs_root]
PPS = 20000


class Flow:
    """PPS numbered packets/s for `seconds`, all different, into a capture of Kafka's topic t while changes are made; in the end
    each of them is in the topic once."""

    def __init__(self, wire, bench, millrace, servers, seconds):
        self.wire, self.millrace, self.servers = wire, millrace, servers
        file = write_pcap(bench.path / "k.pcap", flow_frames(PPS, 200))
        # each round has addresses of its own, so that no two packets are equal
        self.sender = wire.start(bench, file, "--pps", str(PPS), "--unique-ip", "--loop", str(seconds))

    def goes_on(self, n=PPS // 4):
        """Waits for so many packets more. False: no more are sent."""
        had = Counters(self.millrace).sum("input", "received_packets")
        wait_for(lambda: Counters(self.millrace).sum("input", "received_packets") > had + n or self.sender.p.poll() is not None,
                 "packets to flow")
        return self.sender.p.poll() is None

    def arrived_once(self):
        sent = self.wire.sent(self.sender)
        wait_for(lambda: (lambda c: c.waiting() == 0 and c.sum("endpoint", "ring_packets") == 0)(Counters(self.millrace)),
                 "all to be read", 30)
        c = Counters(self.millrace)
        found = [(f[26:34], flow_number(f)[0]) for _, _, f in read_pcap(arrived(self.servers, "t"))]
        assert (c.sum("endpoint", "dropped_ring_packets"), c.sum("endpoint", "dropped_dead_ring_packets")) == (0, 0)
        assert (len(set(found)), len(found), c.sum("input", "received_packets")) == (sent, sent, sent)
        assert c.sum("backend", "delivered_records") == sent
        self.millrace.check()
        return c


def test_rings_and_workers_change_under_load(wire, bench):
    mock = Mock(bench, "t:4")
    config = Config(bench, [])
    millrace = config.millrace = bench.millrace(conf=conf(mock.bootstrap, "t", workers=2))
    flow = Flow(wire, bench, millrace, mock.bootstrap, 6)
    changes = [conf(mock.bootstrap, "t", workers=w, inputs=more) for w, more in
               [(4, ""), (2, ""), (1, ""), (1, "ring_size: 16MiB,"), (3, 'filter: "udp or tcp",'), (2, "")]]
    done = 0
    for text in changes:
        done += flow.goes_on()
        first, lines = config.reload(text)
        assert lines, first
        millrace.check()
    assert done >= 4, "the sender ended too early"
    flow.arrived_once()


def change_at_random(chance, servers, number):
    """A configuration that is not the one before."""
    more = [f"ring_size: {chance.choice([16, 24, 32])}MiB", f"fanout: {chance.choice(['flow', 'cpu'])}",
            f"promiscuous: {chance.choice(['true', 'false'])}", f"snaplen: {chance.randint(9000, 60000)}"]
    text = conf(servers, "t", options=f"memory_limit: {64 + number}MiB,", workers=chance.randint(1, 4),
                inputs=", ".join(chance.sample(more, 2)) + ",")
    return text.replace("tap:", chance.choice(["tap:", "wire:"]))


@pytest.mark.parametrize("n, is_real", [
    pytest.param(16, False, id="some"),
    pytest.param(100, True, id="hundred", marks=pytest.mark.soak),
])
def test_reloads_of_all_kinds_half_of_them_broken(wire, bench, n, is_real):
    """Workers, rings, fanout, names, mode and options of the output change; every second file is broken."""
    if is_real:  # more than a mock keeps
        bench.started.append(Cluster(topics=["t:4"], heap="512m").start())
        bench.started[-1].kill = bench.started[-1].close
    servers = bench.started[-1].bootstrap if is_real else Mock(bench, "t:4").bootstrap
    config, chance = Config(bench, []), random.Random(n)
    millrace = config.millrace = bench.millrace(conf=conf(servers, "t", workers=2))
    flow = Flow(wire, bench, millrace, servers, 60 if is_real else 8)
    done = 0
    for i in range(n):
        text = change_at_random(chance, servers, i)
        if i % 2:
            config.refuse(chance.choice([text.replace("interface: vb", "interface: [vb, nowhere]"), text.replace("kafka", "kofka")]))
            continue
        done += flow.goes_on(PPS // 10)
        config.reload(text)
        millrace.check()
    assert done >= n // 4, "the sender ended too early"
    flow.arrived_once()


def test_a_filter_and_an_interface_that_cannot_be(wire, bench):
    mock = Mock(bench, "t:1")
    config = Config(bench, [])
    config.millrace = bench.millrace(conf=conf(mock.bootstrap, "t", workers=2))
    pids = config.millrace.worker_pids()
    *_, line = config.refuse(conf(mock.bootstrap, "t", workers=2, inputs='filter: "no filter",'))
    assert "no filter" in line
    text = conf(mock.bootstrap, "t", workers=2).replace("interface: vb", "interface: [vb, nowhere]")
    assert "nowhere" in text
    assert any("nowhere" in line for line in config.refuse(text))
    assert any("DPDK" in line for line in config.refuse(conf(mock.bootstrap, "t", workers=2, inputs="driver: dpdk,")))
    assert config.millrace.worker_pids() == pids


def test_another_fanout_under_load(wire, bench):
    """Another group: it takes in what the old one did from one moment on. A reload that is refused leaves no trace of it."""
    mock = Mock(bench, "t:4")
    config = Config(bench, [])
    millrace = config.millrace = bench.millrace(conf=conf(mock.bootstrap, "t", workers=2))
    flow = Flow(wire, bench, millrace, mock.bootstrap, 5)
    refused = conf(mock.bootstrap, "t", workers=2, inputs="fanout: cpu,").replace("interface: vb", "interface: [vb, nowhere]")
    changes = [conf(mock.bootstrap, "t", workers=w, inputs=f"fanout: {fanout}, driver: {driver},") for w, fanout, driver in
               [(2, "cpu", "pcap"), (4, "flow", "auto"), (1, "cpu", "auto"), (2, "flow", "pcap")]]
    done = 0
    for text in changes:
        done += flow.goes_on()
        assert any("nowhere" in line for line in config.refuse(refused))
        first, lines = config.reload(text)
        assert any(line.startswith("inputs.tap.fanout: ") for line in lines), (first, lines)
        millrace.check()
    assert done >= 2, "the sender ended too early"
    flow.arrived_once()


@pytest.mark.parametrize("changes", [[{}] * 4, [{"workers": 4}, {"inputs": "fanout: cpu,"}, {"workers": 1}, {"inputs": "ring_size: 16MiB,"}]],
                         ids=["the same", "another file each time"])
def test_an_upgrade_under_load(wire, bench, changes):
    """The rings go on in the program that comes, or others follow them."""
    mock = Mock(bench, "t:4")
    millrace = bench._keep(Upgraded(bench, conf(mock.bootstrap, "t", workers=2)))
    config = Config(bench, [])
    flow = Flow(wire, bench, millrace, mock.bootstrap, 8)
    upgrades = 0
    for change in changes:
        upgrades += flow.goes_on()
        config.write(conf(mock.bootstrap, "t", **{"workers": 2, **change}))
        millrace.upgrade()
        millrace.check()
    assert upgrades >= 2
    flow.arrived_once()
