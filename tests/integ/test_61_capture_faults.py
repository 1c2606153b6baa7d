# SPDX-License-Identifier: MIT
"""What a capture does when a worker is killed, the interface goes, or the output is too slow: every packet is in exactly one
counter. Needs root: a network namespace of its own."""
import os
import re
import signal
from pathlib import Path

import pytest
from conftest import wait_for
from faults import Counters, quit_with_unread
from kafka_peers import Cluster, Mock, needs_kafka
from packets import arrived, conf, flow_frames, flow_number, needs_pcap, read_pcap, rows, wait_read, wire, write_pcap

pytestmark = [needs_kafka, needs_pcap, pytest.mark.needs_root]


def counted(c):
    """Packets that came to the rings, by what became of them."""
    return (c.sum("input", "received_packets") + c.sum("endpoint", "dropped_ring_packets") +
            c.sum("endpoint", "dropped_dead_ring_packets"))


@pytest.mark.parametrize("workers, pps, kills", [(2, 50000, 4), (1, 50000, 3), pytest.param(4, 200000, 20, marks=pytest.mark.soak)])
def test_killed_workers(wire, bench, workers, pps, kills):
    if pps > 100000:  # more than a mock keeps
        bench.started.append(Cluster(topics=["t:4"], heap="512m").start())
        bench.started[-1].kill = bench.started[-1].close
    servers = bench.started[-1].bootstrap if pps > 100000 else Mock(bench, "t:4").bootstrap
    n = 50000
    file = write_pcap(bench.path / "k.pcap", flow_frames(n, 200))
    millrace = bench.millrace(conf=conf(servers, "t", workers=workers))
    loops = 2 * kills * pps // n + 1
    # each round has addresses of its own, so that no two packets are equal
    sender = wire.start(bench, file, "--pps", str(pps), "--unique-ip", "--loop", str(loops))
    unread = 0
    for i in range(kills):
        slot, pid = sorted(wait_for(lambda: (lambda w: w if len(w) == workers else None)(millrace.worker_pids()),
                                    "all workers", 40).items())[i % workers]
        had = Counters(millrace).sum("input", "received_packets", worker=slot)
        wait_for(lambda: Counters(millrace).sum("input", "received_packets", worker=slot) > had + pps // 10 or
                 sender.p.poll() is not None, f"packets to flow through worker {slot}")
        assert sender.p.poll() is None, "the sender ended before the last kill"
        os.kill(pid, signal.SIGKILL)
        line = millrace.wait_line(rf"worker {slot} \(pid {pid}\) killed by signal 9.*").group(0)
        if m := re.search(r"(\d+) packets waited unread", line):
            unread += int(m.group(1))
    sent = wire.sent(sender)
    wait_for(lambda: len(millrace.worker_pids()) == workers, "all workers", 40)
    wait_for(lambda: Counters(millrace).waiting() == 0 and rows(millrace, "endpoints")["ring_packets"] == 0, "all to be read", 30)
    c = Counters(millrace)
    assert c.sum("endpoint", "dropped_dead_ring_packets") == unread
    uncounted = sent - counted(c)
    found = [(f[26:34], flow_number(f)[0]) for _, _, f in read_pcap(arrived(servers, "t"))]
    delivered = c.sum("backend", "delivered_records")
    lost = c.sum("input", "lost_at_death_packets") + c.sum("backend", "lost_at_death_records") + \
        c.sum("output", "lost_at_death_records")
    print(f"{workers} workers, {pps} pps, {kills} kills: sent {sent}, arrived {len(found)}, unread in dead rings {unread}, lost at "
          f"death {lost}, dropped by full rings {c.sum('endpoint', 'dropped_ring_packets')}, uncounted {uncounted}")
    assert uncounted == 0
    missing = sent - len(found)
    assert delivered <= len(found)
    assert missing <= unread + c.sum("endpoint", "dropped_ring_packets") + lost
    assert len(set(found)) == len(found), "a packet arrived twice"


def test_packets_that_a_quit_left_unread(wire, bench):
    """They are read, counted as dropped, and the exit code says that something was lost; see test_41 of datagrams."""
    mock = Mock(bench, "t:1")
    millrace = bench.millrace(conf=conf(mock.bootstrap, "t", workers=1))
    file = write_pcap(bench.path / "q.pcap", flow_frames(5000))
    sent, log = quit_with_unread(millrace, lambda: wire.replay(file, "--pps", 50000))
    assert sent == 5000
    received, passed, dropped, lost = map(int, re.search(
        r"(\d+) packets received = (\d+) to outputs \+ (\d+) dropped at the end \+ (\d+) lost at death", log).groups())
    came = re.search(r"(\d+) packets came = (\d+) received \+ 0 dropped at full rings \+ (\d+) unread in closed ones", log)
    assert list(map(int, came.groups())) == [5000, received, 5000 - received] and received == passed + dropped + lost
    assert dropped > 0 or "killed by signal 9" in log


def test_interface_down_and_up(wire, bench):
    mock = Mock(bench, "t:1")
    file = write_pcap(bench.path / "k.pcap", flow_frames(1000))
    millrace = bench.millrace(conf=conf(mock.bootstrap, "t"))
    assert wire.replay(file, "--pps", 10000) == 1000
    wait_read(millrace, 1000)
    os.system(f"ip link set {wire.far} down")
    millrace.wait_line("interface vb is down; waiting")
    os.system(f"ip link set {wire.far} up")
    millrace.wait_line("interface vb is up")
    assert wire.replay(file, "--pps", 10000) == 1000
    wait_read(millrace, 2000)
    assert len(read_pcap(arrived(mock.bootstrap, "t"))) == 2000
    assert sum("is down" in line for line in millrace.err) == 1


def test_interface_removed_and_other_inputs_go_on(wire, bench):
    mock, sink = Mock(bench, "t:1"), bench.sink("--number")
    file = write_pcap(bench.path / "k.pcap", flow_frames(1000))
    text = conf(mock.bootstrap, "t").replace(
        "to: [out] } }\noutputs:", f"""to: [out] }}, udp: {{ type: udp, bind: "127.0.0.1:{{port}}", to: [lines] }} }}
outputs:
  lines: {{ type: statsite, backends: ["{sink.addresses[0]}"] }}""")
    millrace = bench.millrace(conf=text)
    wire.replay(file, "--pps", 10000)
    wait_for(lambda: rows(millrace, name="tap")["received_packets"] == 1000, "the packets")
    wire.remove()
    millrace.wait_line("interface vb is gone; looking for it")
    bench.replay("--number", "--lines", 1000, "--pps", 1000)
    sink.wait_lines(1000)
    wire.make()
    millrace.wait_line("interface vb is there")
    wait_for(lambda: all(e["handles"] == 1 for e in millrace.status()["endpoints"] if e["name"] == "vb"), "new handles", 20)
    wait_for(lambda: all(w["state"] == "ready" for w in millrace.status()["workers"]), "all workers")
    wire.replay(file, "--pps", 10000)
    wait_for(lambda: rows(millrace, name="tap")["received_packets"] == 2000, "the packets")
    wait_for(lambda: len(read_pcap(arrived(mock.bootstrap, "t"))) == 2000, "all to arrive")
    assert sum("is gone" in line for line in millrace.err) == 1


def test_interface_renamed_and_back(wire, bench):
    """It comes back with the index that it had: the rings are bound to that, and go on."""
    mock = Mock(bench, "t:1")
    file = write_pcap(bench.path / "k.pcap", flow_frames(1000))
    millrace = bench.millrace(conf=conf(mock.bootstrap, "t"))
    pids = millrace.worker_pids()
    os.system("ip link set vb down; ip link set vb name vc; ip link set vc up")
    millrace.wait_line("interface vb is gone; looking for it")
    os.system("ip link set vc down; ip link set vc name vb; ip link set vb up")
    millrace.wait_line("interface vb is there")
    assert wire.replay(file, "--pps", 10000) == 1000
    wait_read(millrace, 1000)
    assert len(read_pcap(arrived(mock.bootstrap, "t"))) == 1000
    assert millrace.worker_pids() == pids


def memory_kb(pids):
    """Unshared memory; what is shared (counters, rings) is laid out at the start."""
    total = 0
    for pid in pids:
        m = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        total += int(m.group(1))
    return total


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.soak)])
def test_overload_into_a_slow_mock(wire, bench, seconds):
    mock = Mock(bench, "t:1")
    mock.ask("rtt 1 100")
    file = write_pcap(bench.path / "k.pcap", flow_frames(50000, 200, 360))
    millrace = bench.millrace(conf=conf(mock.bootstrap, "t", workers=1, options="memory_limit: 32MiB,", properties=", linger.ms: 0",
                                        inputs="ring_size: 4MiB,", top="drain_timeout: 20s"))
    sender = wire.start(bench, file, "--topspeed", "--loop", "1000000", "--duration", str(seconds))
    pids = list(millrace.worker_pids().values())
    wait_for(lambda: rows(millrace, "endpoints")["dropped_ring_packets"] > 0, "the ring to overflow", 20)
    half = memory_kb(pids)
    sent = wire.sent(sender, seconds + 30)
    full = memory_kb(pids)
    assert full < half * 1.3 + 8192, f"{half} KiB, then {full} KiB"
    assert list(millrace.worker_pids().values()) == pids
    millrace.check()
    mock.ask("rtt 1 0")
    wait_for(lambda: Counters(millrace).waiting() == 0 and rows(millrace, "endpoints")["ring_packets"] == 0, "all to be read", 60)
    c = Counters(millrace)
    ring = c.sum("endpoint", "dropped_ring_packets")
    print(f"sent {sent} in {seconds} s ({sent / seconds:.0f}/s), {ring} found the ring full, "
          f"{c.sum('backend', 'delivered_records')} delivered, memory {half} then {full} KiB")
    assert sent == c.sum("input", "received_packets") + ring
    row = next(line.split() for line in millrace.ctl("status").stdout.splitlines() if line.startswith("tap "))
    assert (row[2], row[7]) == (str(sent - ring), str(ring))
    assert c.sum("input", "received_packets") == c.sum("backend", "delivered_records")
