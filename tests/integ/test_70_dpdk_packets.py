# SPDX-License-Identifier: MIT
"""Packets off DPDK ports (virtual ones), with hugepages and without, in 1, 2 and 4 workers: each arrives once, and what
does not is in one counter."""
import os
import signal
import socket

import pytest
from conftest import wait_for
from dpdk_peers import (conf, counter, huge, idle_ticks, line_frames, memory, needs_dpdk, needs_root, nic_drops, number_line, settled,  # noqa: F401
                        tcpreplay, veth, write_pcap)

pytestmark = [needs_dpdk, needs_root]
NO_HUGE = ["--no-huge", "-m 512"]
LINES = 30000


# A ring that takes what comes while the machine is busy with other tests: 1.6 s at 10,000 packets/s.
PATIENT = "net_af_packet0,iface=mr1,framesz=2048,blocksz=4096,framecnt=16384"


def start(bench, eal, workers=2, port=PATIENT, **how):
    how["port"] = port
    sink = bench.sink("--number", "--keys", 10000)
    return sink, bench.millrace(conf=conf(eal, workers, sink=sink, **how))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_packet_once(veth, memory, bench, tmp_path, workers):  # noqa: F811
    sink, millrace = start(bench, memory, workers)
    file = tmp_path / "lines.pcap"
    write_pcap(file, line_frames(LINES))
    sent = tcpreplay(veth[0], file, "--pps", 10000)
    assert sent == LINES
    received, dropped = settled(millrace, sent)
    assert (received, dropped) == (sent, 0)
    report = sink.wait_lines(sent)
    assert (report["distinct"], report["doubles"], report["malformed"]) == (sent, 0, 0)
    assert all(counter(millrace, "received_packets", worker=w) > 0 for w in range(workers))
    assert counter(millrace, "payload_packets") == sent
    millrace.check()


def test_what_the_ring_cannot_take_is_counted(veth, bench, tmp_path):  # noqa: F811
    """Flat out into one small ring: read and dropped are what was sent, exactly, by the kernel's own count."""
    _, millrace = start(bench, NO_HUGE, 1, port="net_af_packet0,iface=mr1", options="rx_descriptors: 64")
    file = tmp_path / "lines.pcap"
    write_pcap(file, line_frames(LINES))
    sent = tcpreplay(veth[0], file, "--topspeed", "-l", 5, "-K")
    received, dropped = settled(millrace, sent)
    assert received + dropped == sent == 5 * LINES
    assert dropped > 0
    millrace.check()


def test_filter(veth, bench, tmp_path):  # noqa: F811
    sink, millrace = start(bench, NO_HUGE, 2, options='filter: "udp src port 1024"')
    file = tmp_path / "lines.pcap"
    write_pcap(file, line_frames(2000, flows=20))
    sent = tcpreplay(veth[0], file, "--pps", 5000)
    wait_for(lambda: counter(millrace, "received_packets") + counter(millrace, "filtered_packets") == sent, "all packets")
    assert counter(millrace, "received_packets") == sent // 20
    assert sink.wait_lines(sent // 20)["distinct"] == sent // 20
    assert f"filters   {sent // 20} packets let through, {sent - sent // 20} left out by the workers" in millrace.ctl("drops").stdout


def test_other_inputs_go_on_and_idle_is_cheap(veth, bench, tmp_path):  # noqa: F811
    sink, millrace = start(bench, NO_HUGE, 2, inputs='  udp: { type: udp, bind: "127.0.0.1:{port}", to: [out] }\n'
                                                     '  tcp: { type: tcp, bind: "127.0.0.1:{port}", to: [out] }')
    file = tmp_path / "lines.pcap"
    write_pcap(file, line_frames(5000))
    tcpreplay(veth[0], file, "--pps", 5000)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        for i in range(1000):
            udp.sendto(number_line(5000 + i), ("127.0.0.1", bench.port))
    with socket.create_connection(("127.0.0.1", bench.port)) as tcp:
        tcp.sendall(b"".join(number_line(6000 + i) + b"\n" for i in range(1000)))
    report = sink.wait_lines(7000)
    assert (report["distinct"], report["doubles"]) == (7000, 0)
    shares = [idle_ticks(pid, 2.0) for pid in millrace.worker_pids().values()]
    print("an idle worker takes", [f"{100 * s:.2f} %" for s in shares], "of a core")
    assert max(shares) < 0.04, shares  # 2 % is the promise; the machine runs other tests beside this one


@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.soak)])
def test_killed_workers(veth, bench, tmp_path, kills):  # noqa: F811
    """The successor goes on with the queue. Nothing comes twice, and what is missing is bounded by the counters."""
    sink, millrace = start(bench, NO_HUGE, 2)
    file = tmp_path / "lines.pcap"
    lines = kills * 40000
    write_pcap(file, line_frames(lines))
    replay = bench.run("tcpreplay", "-q", "-i", veth[0], "--pps", "100000", "-K", file)
    before = 0
    for _ in range(kills):
        wait_for(lambda: counter(millrace, "received_packets") > before + 5000 or replay.p.poll() is not None, "packets to flow", 20)
        pid = millrace.worker_pids()[0]
        before = counter(millrace, "received_packets")
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: millrace.worker_pids().get(0, pid) != pid, "the successor", 35)
    assert replay.wait(60) == 0

    def all_seen():
        return counter(millrace, "received_packets") + nic_drops(millrace) + counter(millrace, "dropped_dead_ring_packets") >= lines
    wait_for(all_seen, "all packets in the counters", 15)
    dead = counter(millrace, "dropped_dead_ring_packets")
    received, dropped = counter(millrace, "received_packets"), nic_drops(millrace)
    assert received + dropped <= lines
    assert lines - received - dropped <= dead
    lost = counter(millrace, "lost_at_death_packets") + counter(millrace, "lost_at_death_records") + counter(millrace, "lost_at_death_lines")
    report = wait_for(lambda: (lambda r: r if r["distinct"] >= received - lost else None)(sink.report()), "the lines", 20)
    assert report["doubles"] <= counter(millrace, "resent_records")
    assert lines - report["distinct"] <= dropped + dead + lost + counter(millrace, "at_risk_records")
    leaked = counter(millrace, "leaked_mbufs")
    assert leaked <= kills * 2 * 64
    print(f"{kills} kills: {lines} sent, {received} read, {dropped} dropped by the ring, {dead} lost with the dead at most, "
          f"{leaked} mbufs leaked at most")
    millrace.check()


def test_a_rolled_worker_loses_nothing(veth, bench, tmp_path):  # noqa: F811
    """TERM to one worker: it hands over what it holds, and the next goes on."""
    sink, millrace = start(bench, NO_HUGE, 2)
    file = tmp_path / "lines.pcap"
    write_pcap(file, line_frames(LINES))
    replay = bench.run("tcpreplay", "-q", "-i", veth[0], "--pps", "10000", file)
    wait_for(lambda: counter(millrace, "received_packets") > 1000, "packets")
    pid = millrace.worker_pids()[0]
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: millrace.worker_pids().get(0, pid) != pid, "the successor", 35)
    assert replay.wait(60) == 0
    received, dropped = settled(millrace, LINES)
    assert received + dropped == LINES
    report = sink.wait_lines(received)
    assert (report["distinct"], report["doubles"]) == (received, 0)


def test_drain_at_the_end(veth, bench, tmp_path):  # noqa: F811
    """TERM reaches the master, not a thread of DPDK's, and ends the program while packets come."""
    _, millrace = start(bench, NO_HUGE, 2)
    file = tmp_path / "lines.pcap"
    write_pcap(file, line_frames(LINES))
    replay = bench.run("tcpreplay", "-q", "-i", veth[0], "--pps", "10000", "-l", "10", file)
    wait_for(lambda: counter(millrace, "received_packets") > 1000, "packets")
    assert millrace.terminate(timeout=8) == 0
    replay.kill()
