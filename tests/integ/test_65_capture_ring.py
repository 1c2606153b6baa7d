# SPDX-License-Identifier: MIT
"""The ring of a capture outlives the workers that read it: a roll loses nothing, and a kill only what the worker had taken.
Needs root: a network namespace of its own."""
import os
import re
import signal

import pytest
from conftest import wait_for
from faults import Counters
from kafka_peers import Mock, needs_kafka
from packets import arrived, conf, flow_frames, flow_number, needs_pcap, read_pcap, rows, udp_frame, wire, write_pcap

pytestmark = [needs_kafka, needs_pcap, pytest.mark.needs_root]
WORKERS = 4


def frames_with_tags(n):
    """(frame, its VLAN tag or b"")"""
    found = []
    for i in range(n):
        frame = udp_frame(b"m.k%06d:%d|c" % (i, i), ident=i)
        tag = (b"", b"\x81\0\0\5", b"\x88\xa8\x20\7")[i % 3]
        found.append((frame[:12] + tag + frame[12:], tag))
    return found


def all_workers(millrace):
    """{slot: pid} of workers that are all ready."""
    def found():
        ready = all(w["state"] == "ready" for w in millrace.status()["workers"])
        return ready and len(millrace.worker_pids()) == WORKERS and millrace.worker_pids()
    return wait_for(found, "all workers", 40)


class Load:
    """20,000 numbered packets/s into 4 workers, while change(slot, pid) is done to one after the other."""

    def __init__(self, wire, bench, changes, change, pps=20000):
        self.mock = Mock(bench, "t:4")
        self.millrace = bench.millrace(conf=conf(self.mock.bootstrap, "t", workers=WORKERS))
        file = write_pcap(bench.path / "k.pcap", flow_frames(pps, 200))
        # each round has addresses of its own, so that no two packets are equal
        sender = wire.start(bench, file, "--pps", str(pps), "--unique-ip", "--loop", str(changes))
        for i in range(changes):
            slot, pid = sorted(all_workers(self.millrace).items())[i % WORKERS]
            had = Counters(self.millrace).sum("input", "received_packets", worker=slot)
            wait_for(lambda: Counters(self.millrace).sum("input", "received_packets", worker=slot) > had + pps // 20 or
                     sender.p.poll() is not None, f"packets to flow through worker {slot}")
            assert sender.p.poll() is None, "the sender ended before the last change"
            change(slot, pid)
            wait_for(lambda: pid not in self.millrace.worker_pids().values(), f"worker {slot} to go", 20)
        all_workers(self.millrace)
        self.sent = wire.sent(sender)
        wait_for(lambda: Counters(self.millrace).waiting() == 0 and rows(self.millrace, "endpoints")["ring_packets"] == 0,
                 "all to be read", 30)
        self.c = Counters(self.millrace)
        self.found = [(f[26:34], flow_number(f)[0]) for _, _, f in read_pcap(arrived(self.mock.bootstrap, "t"))]
        print(f"{changes} changes: sent {self.sent}, received {self.c.sum('input', 'received_packets')}, arrived {len(self.found)}, "
              f"lost at death {self.lost()}")
        assert len(set(self.found)) == len(self.found), "a packet arrived twice"
        for name in ("dropped_dead_ring_packets", "dropped_ring_packets"):
            assert self.c.sum("endpoint", name) == 0, name

    def lost(self):
        return sum(self.c.sum(scope, name) for scope, name in
                   (("input", "lost_at_death_packets"), ("backend", "lost_at_death_records"), ("output", "lost_at_death_records")))


def test_rolled_workers(wire, bench):
    load = Load(wire, bench, 8, lambda slot, pid: os.kill(pid, signal.SIGTERM))
    assert load.c.sum("input", "received_packets") == load.sent == len(load.found)
    assert load.lost() == 0


def test_killed_workers(wire, bench):
    load = Load(wire, bench, 8, lambda slot, pid: os.kill(pid, signal.SIGKILL))
    assert load.c.sum("input", "received_packets") == load.sent
    assert not any(re.search("waited unread", line) for line in load.millrace.err)
    delivered = load.c.sum("backend", "delivered_records")
    assert load.sent == delivered + load.lost()
    assert delivered <= len(load.found) <= load.sent


def test_what_comes_while_nobody_reads(wire, bench):
    """A worker that stands still is killed: all that came meanwhile is read by the next one."""
    mock = Mock(bench, "t:1")
    millrace = bench.millrace(conf=conf(mock.bootstrap, "t", workers=1))
    (pid,) = millrace.worker_pids().values()
    os.kill(pid, signal.SIGSTOP)
    frames = flow_frames(5000, 200)
    assert wire.replay(write_pcap(bench.path / "k.pcap", frames), "--pps", 20000) == 5000
    wait_for(lambda: rows(millrace, "endpoints")["ring_packets"] == 5000, "the packets to lie in the ring")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: rows(millrace)["received_packets"] == 5000 and Counters(millrace).waiting() == 0, "all to be read", 30)
    assert [f for _, _, f in read_pcap(arrived(mock.bootstrap, "t"))] == frames
    assert rows(millrace)["lost_at_death_packets"] == 0


@pytest.mark.parametrize("before, after, keeps", [
    ("", 'filter: "udp port 1003",', lambda f: f[36:38] == (1003).to_bytes(2, "big")),
    ("snaplen: 100,", "snaplen: 64,", len),
    ("promiscuous: false,", "promiscuous: true,", len),
    ("ring_size: 32MiB,", "ring_size: 8MiB,", len),
])
def test_options_that_change(wire, bench, before, after, keeps):
    """Another filter, snaplen and mode are for the same ring, another size needs another ring."""
    from reload_rig import Config
    mock = Mock(bench, "t:1")
    config = Config(bench, [])
    millrace = config.millrace = bench.millrace(conf=conf(mock.bootstrap, "t", workers=2, inputs=before))
    frames = [udp_frame(b"x" * 60, dport=1000 + i % 10, ident=i) for i in range(1000)]
    file = write_pcap(bench.path / "f.pcap", frames)
    first, lines = config.reload(conf(mock.bootstrap, "t", workers=2, inputs=after))
    assert lines, first
    assert wire.replay(file, "--pps", 10000) == 1000
    expected = [f[:64] if "snaplen" in after else f for f in frames if keeps(f)]
    wait_for(lambda: rows(millrace)["received_packets"] == len(expected), "the packets")
    wait_for(lambda: Counters(millrace).waiting() == 0, "all to be delivered")
    found = [f for _, _, f in read_pcap(arrived(mock.bootstrap, "t"))]
    assert sorted(found) == sorted(expected)


def test_vlan_tags(wire, bench):
    """The kernel takes tags out of frames: a filter finds them all the same, and what arrives has them again."""
    mock = Mock(bench, "t:1")
    millrace = bench.millrace(conf=conf(mock.bootstrap, "t", inputs='filter: "vlan 5",'))
    frames = frames_with_tags(300)
    assert wire.replay(write_pcap(bench.path / "v.pcap", [f for f, _ in frames]), "--pps", 5000) == 300
    wait_for(lambda: rows(millrace)["received_packets"] == 100 and Counters(millrace).waiting() == 0, "the packets")
    found = [f for _, _, f in read_pcap(arrived(mock.bootstrap, "t"))]
    assert sorted(found) == sorted(f for f, tag in frames if tag == b"\x81\0\0\5")


def test_any_has_cooked_heads(wire, bench):
    """LINKTYPE_LINUX_SLL: type of packet (3: to another host), ARPHRD_ETHER, sender, protocol; tags before the protocol.
    Our own connections are left out of it, their bare acknowledgements and all: each would make the next one."""
    mock = Mock(bench, "t:1")
    text = conf(mock.bootstrap, "t", "pcap", workers=2).replace("interface: vb", "interface: any")
    millrace = bench.millrace(conf=text)
    frames = frames_with_tags(300)
    file = write_pcap(bench.path / "a.pcap", [f for f, _ in frames])

    def settled(n):
        """Received, when n more packets than before our own were left out are delivered."""
        wait_for(lambda: rows(millrace)["received_packets"] >= n and Counters(millrace).waiting() == 0, f"{n} packets")
        return rows(millrace)["received_packets"]

    wait_for(lambda: all(b["state"] == "up" for b in millrace.status()["backends"]), "the connections")
    received = 0
    for _ in range(3):
        assert wire.replay(file, "--pps", 5000) == len(frames)
        before, received = received, settled(received + len(frames))
    assert received == before + len(frames)
    cooked = [b"\0\3\0\1\0\6" + f[6:12] + b"\0\0" + f[12:] for f, _ in frames]
    found = [f for _, _, f in read_pcap(arrived(mock.bootstrap, "t")) if b"m.k" in f]
    assert sorted(found) == sorted(3 * cooked)
