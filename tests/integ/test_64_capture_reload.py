# SPDX-License-Identifier: MIT
"""Captures under a reload: filters, rings and workers change while packets flow; no packet is read twice, and what a change
costs is counted. Needs root: a network namespace of its own."""
import pytest
from conftest import wait_for
from faults import Counters
from kafka_peers import Mock, needs_kafka
from packets import arrived, conf, flow_frames, flow_number, needs_pcap, read_pcap, wire, write_pcap
from reload_rig import Config, Upgraded

pytestmark = [needs_kafka, needs_pcap, pytest.mark.needs_root]
PER_CHANGE = 50  # packets that a change of handles may cost uncounted; measured: see docs/measured.md


def counted(c):
    """Packets that came to the rings, by what became of them."""
    return (c.sum("input", "received_packets") + c.sum("endpoint", "dropped_ring_packets") +
            c.sum("endpoint", "dropped_dead_ring_packets"))


def test_rings_and_workers_change_under_load(wire, bench):
    mock = Mock(bench, "t:4")
    n, loops, pps = 20000, 6, 20000
    file = write_pcap(bench.path / "k.pcap", flow_frames(n, 200))
    config = Config(bench, [])
    millrace = config.millrace = bench.millrace(conf=conf(mock.bootstrap, "t", workers=2))
    sender = wire.start(bench, file, "--pps", str(pps), "--unique-ip", "--loop", str(loops))
    changes = [conf(mock.bootstrap, "t", workers=w, inputs=more) for w, more in
               [(4, ""), (2, ""), (1, ""), (1, "ring_size: 16MiB,"), (3, 'filter: "udp or tcp",'), (2, "")]]
    done = 0
    for text in changes:
        had = Counters(millrace).sum("input", "received_packets")
        wait_for(lambda: Counters(millrace).sum("input", "received_packets") > had + 5000 or sender.p.poll() is not None,
                 "packets to flow")
        done += sender.p.poll() is None
        first, lines = config.reload(text)
        assert lines, first
        millrace.check()
    assert done >= 4, "the sender ended too early"
    sent = wire.sent(sender)
    assert sent == n * loops
    wait_for(lambda: (lambda c: c.waiting() == 0 and c.sum("endpoint", "ring_packets") == 0)(Counters(millrace)), "all to be read",
             30)
    c = Counters(millrace)
    uncounted = sent - counted(c)
    found = [(f[26:34], flow_number(f)[0]) for _, _, f in read_pcap(arrived(mock.bootstrap, "t"))]
    print(f"{len(changes)} changes: sent {sent}, arrived {len(found)}, unread in rings that were closed "
          f"{c.sum('endpoint', 'dropped_dead_ring_packets')}, uncounted {uncounted}")
    assert abs(uncounted) <= PER_CHANGE * len(changes) * 4
    assert len(set(found)) == len(found), "a packet arrived twice"
    assert c.sum("backend", "delivered_records") == c.sum("input", "received_packets") == len(found)


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
    """Another group: it takes in what the old one did from one moment on, and that moment is counted. A reload that is refused
    leaves no trace of it."""
    mock = Mock(bench, "t:4")
    n, loops, pps = 20000, 5, 10000
    file = write_pcap(bench.path / "k.pcap", flow_frames(n, 200))
    config = Config(bench, [])
    millrace = config.millrace = bench.millrace(conf=conf(mock.bootstrap, "t", workers=2))
    sender = wire.start(bench, file, "--pps", str(pps), "--unique-ip", "--loop", str(loops))
    refused = conf(mock.bootstrap, "t", workers=2, inputs="fanout: cpu,").replace("interface: vb", "interface: [vb, nowhere]")
    changes = [conf(mock.bootstrap, "t", workers=w, inputs=f"fanout: {fanout}, driver: {driver},") for w, fanout, driver in
               [(2, "cpu", "pcap"), (4, "flow", "auto"), (1, "cpu", "auto"), (2, "flow", "pcap")]]
    done = 0
    for text in changes:
        had = Counters(millrace).sum("input", "received_packets")
        wait_for(lambda: Counters(millrace).sum("input", "received_packets") > had + 5000 or sender.p.poll() is not None,
                 "packets to flow")
        assert any("nowhere" in line for line in config.refuse(refused))
        done += sender.p.poll() is None
        first, lines = config.reload(text)
        assert any(line.startswith("inputs.tap.fanout: ") for line in lines), (first, lines)
        millrace.check()
    assert done >= 2, "the sender ended too early"
    sent = wire.sent(sender)
    wait_for(lambda: (lambda c: c.waiting() == 0 and c.sum("endpoint", "ring_packets") == 0)(Counters(millrace)), "all to be read",
             30)
    c = Counters(millrace)
    found = [(f[26:34], flow_number(f)[0]) for _, _, f in read_pcap(arrived(mock.bootstrap, "t"))]
    lost, marked = sent - len(found), c.sum("input", "dropped_joining_packets")
    others = c.sum("endpoint", "dropped_ring_packets") + c.sum("endpoint", "dropped_dead_ring_packets")
    print(f"{len(changes)} changes: sent {sent}, arrived {len(found)}, at the joins {marked}, else counted {others}")
    assert len(set(found)) == len(found), "a packet arrived twice"
    assert 0 <= lost <= marked + others and marked <= PER_CHANGE * len(changes)
    assert c.sum("backend", "delivered_records") == c.sum("input", "received_packets") == len(found)
    millrace.check()


def test_an_upgrade_under_load(wire, bench):
    """The new rings join the group before the old ones leave it."""
    mock = Mock(bench, "t:4")
    n, loops, pps = 20000, 8, 20000
    file = write_pcap(bench.path / "k.pcap", flow_frames(n, 200))
    text = conf(mock.bootstrap, "t", workers=2)
    millrace = bench._keep(Upgraded(bench, text))
    sender = wire.start(bench, file, "--pps", str(pps), "--unique-ip", "--loop", str(loops))
    upgrades = 0
    for _ in range(4):
        had = Counters(millrace).sum("input", "received_packets")
        wait_for(lambda: Counters(millrace).sum("input", "received_packets") > had + 5000 or sender.p.poll() is not None,
                 "packets to flow")
        upgrades += sender.p.poll() is None
        millrace.upgrade()
        millrace.check()
    assert upgrades >= 2
    sent = wire.sent(sender)
    wait_for(lambda: (lambda c: c.waiting() == 0 and c.sum("endpoint", "ring_packets") == 0)(Counters(millrace)), "all to be read",
             30)
    c = Counters(millrace)
    uncounted = sent - counted(c)
    found = [(f[26:34], flow_number(f)[0]) for _, _, f in read_pcap(arrived(mock.bootstrap, "t"))]
    print(f"{upgrades} upgrades: sent {sent}, arrived {len(found)}, unread in rings that were closed "
          f"{c.sum('endpoint', 'dropped_dead_ring_packets')}, uncounted {uncounted}")
    assert abs(uncounted) <= PER_CHANGE * 4 * 2
    assert len(set(found)) == len(found), "a packet arrived twice"
    assert c.sum("backend", "delivered_records") == c.sum("input", "received_packets") == len(found)
