# SPDX-License-Identifier: MIT
"""Packets of an interface to a real Apache Kafka and back, frame by frame. Needs root: a network namespace of its own."""
import collections
import json
import struct
import subprocess

import pytest
from conftest import BUILD, wait_for
from faults import Counters
from kafka_peers import Cluster, needs_kafka, topic
from packets import (all_kinds, arrived, conf, flow_frames, flow_number, needs_pcap, own_wire, read_pcap, rows, udp_frame,
                     wait_read, write_pcap)

pytestmark = [needs_kafka, needs_pcap, pytest.mark.needs_root]


@pytest.fixture(scope="module")
def wire():
    yield from own_wire()


@pytest.fixture(scope="module")
def kafka(wire):
    with Cluster() as cluster:
        yield cluster


@pytest.mark.parametrize("fmt", ["packet", "pcap"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_all_kinds_of_frames(bench, kafka, wire, fmt, workers):
    name = topic(kafka, 4)
    frames = all_kinds()
    file = write_pcap(bench.path / "kinds.pcap", frames)
    millrace = bench.millrace(conf=conf(kafka.bootstrap, name, fmt, workers=workers))
    assert wire.replay(file, "--pps", 2000) == len(frames)
    wait_read(millrace, len(frames))
    data = arrived(kafka.bootstrap, name)
    found = read_pcap(data)
    assert collections.Counter(frame for _, _, frame in found) == collections.Counter(frames)
    assert all(original == len(frame) for _, original, frame in found)
    assert rows(millrace)["received_packets"] == len(frames)
    # the master asks the kernel once a second
    wait_for(lambda: rows(millrace, "endpoints")["passed_packets"] == len(frames), "the kernel's count")
    (bench.path / "back.pcap").write_bytes(data)
    r = subprocess.run(["tshark", "-n", "-r", bench.path / "back.pcap", "-T", "fields", "-e", "frame.number"], capture_output=True,
                       text=True, timeout=60)
    assert r.returncode == 0 and len(r.stdout.split()) == len(frames), r.stderr
    steps = {s["step"]: s for s in json.loads(millrace.ctl("drops", "--json").stdout)["steps"]}
    assert steps["filter"]["in"] == len(frames), steps


@pytest.mark.parametrize("n, flows", [(30000, 100), pytest.param(1000000, 1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_flows_keep_their_order(bench, kafka, wire, workers, n, flows):
    name = topic(kafka, 4)
    file = write_pcap(bench.path / "flows.pcap", flow_frames(n, flows))
    millrace = bench.millrace(conf=conf(kafka.bootstrap, name, workers=workers))
    assert wire.replay(file, "--pps", 30000, timeout=120) == n
    wait_read(millrace, n, 120)
    last, where, numbers = {}, {}, set()
    for m in kafka.read(name):
        number, flow = flow_number(m.value)
        assert last.get(flow, -1) < number, "a flow lost its order"
        assert where.setdefault(flow, m.partition) == m.partition
        assert len(m.key) == 8
        last[flow] = number
        numbers.add(number)
    assert numbers == set(range(n))
    assert set(where.values()) == {0, 1, 2, 3}
    assert rows(millrace, "endpoints")["dropped_ring_packets"] == 0


def test_key_is_the_time_of_capture(bench, kafka, wire):
    """Metron's FROM_KEY reader: the key is 8 bytes of big-endian microseconds, the value one Ethernet frame."""
    name = topic(kafka)
    file = write_pcap(bench.path / "one.pcap", flow_frames(100))
    before = int(subprocess.run(["date", "+%s%6N"], capture_output=True, text=True).stdout)
    millrace = bench.millrace(conf=conf(kafka.bootstrap, name, workers=1))
    wire.replay(file, "--pps", 1000)
    wait_read(millrace, 100)
    after = int(subprocess.run(["date", "+%s%6N"], capture_output=True, text=True).stdout)
    times = [struct.unpack(">Q", m.key)[0] for m in kafka.read(name)]
    assert len(times) == 100 and times == sorted(times)
    assert before < times[0] < times[-1] < after and 50_000 < times[-1] - times[0] < 1_000_000


def test_time_never_falls_within_a_partition(bench, kafka, wire):
    """partition: worker, 4 workers, two senders on two CPUs, by CPU: a ring holds packets of both."""
    name = topic(kafka, 8)
    millrace = bench.millrace(conf=conf(kafka.bootstrap, name, options="partition: worker,", workers=4))
    a = write_pcap(bench.path / "a.pcap", flow_frames(20000, 50))
    b = write_pcap(bench.path / "b.pcap", flow_frames(20000, 77))
    senders = [bench.run("taskset", "-c", cpu, "tcpreplay", "-q", "-K", "--pps", "20000", "-i", wire.near, file)
               for cpu, file in (("0", a), ("1", b))]
    assert sum(wire.sent(s) for s in senders) == 40000
    wait_read(millrace, 40000)
    last, n = {}, 0
    for m in kafka.read(name):
        time = struct.unpack(">Q", m.key)[0]
        assert last.get(m.partition, 0) <= time, "a reader that rolls files by time would start a new one"
        last[m.partition] = time
        n += 1
    assert n == 40000 and len(last) > 4


def test_filter_is_in_effect(bench, kafka, wire):
    name = topic(kafka)
    frames = [udp_frame(b"x", dport=1000 + i % 10, ident=i) for i in range(1000)]
    file = write_pcap(bench.path / "f.pcap", frames)
    millrace = bench.millrace(conf=conf(kafka.bootstrap, name, inputs='filter: "udp port 1003",'))
    wire.replay(file, "--pps", 5000)
    wait_read(millrace, 100)
    wait_for(lambda: rows(millrace, "endpoints")["interface_packets"] >= 1000, "the interface's counter")
    wait_for(lambda: rows(millrace, "endpoints")["passed_packets"] == 100, "the filter's counter")
    assert rows(millrace)["received_packets"] == 100
    assert len(read_pcap(arrived(kafka.bootstrap, name))) == 100


def test_snaplen_keeps_the_original_length(bench, kafka, wire):
    name = topic(kafka)
    frames = [udp_frame(bytes([i]) * 9000) for i in range(10)]
    millrace = bench.millrace(conf=conf(kafka.bootstrap, name, "pcap", inputs="snaplen: 128,"))
    wire.replay(write_pcap(bench.path / "j.pcap", frames), "--pps", 1000)
    wait_read(millrace, 10)
    found = read_pcap(arrived(kafka.bootstrap, name))
    assert [(len(f), original) for _, original, f in found] == [(128, 9042)] * 10
    assert rows(millrace)["truncated_packets"] == 10


def test_last_batch_of_a_quiet_line(bench, kafka, wire):
    name = topic(kafka)
    millrace = bench.millrace(conf=conf(kafka.bootstrap, name, "pcap", workers=1, options="batch_delay: 200ms,"))
    wire.replay(write_pcap(bench.path / "q.pcap", flow_frames(7)), "--pps", 1000)
    wait_read(millrace, 7)
    assert len(read_pcap(arrived(kafka.bootstrap, name))) == 7
    assert Counters(millrace).sum("kafka", "delivered_messages") <= 2


def test_lo_shows_each_packet_once_and_not_our_own(bench, kafka, wire):
    name = topic(kafka)
    text = conf(kafka.bootstrap, name).replace("interface: vb", "interface: lo")
    millrace = bench.millrace(conf=text)
    millrace.wait_line("leaving out our own traffic to 127.0.0.1")
    sent = bench.replay("--number", "--one", "--lines", 500, "--pps", 1000, target="127.0.0.1:9")
    wait_read(millrace, 500)
    frames = [f for _, _, f in read_pcap(arrived(kafka.bootstrap, name))]
    numbered = [f for f in frames if b"m.k" in f and f[23] == 17]
    assert len(numbered) == sent["datagrams"] == 500
    port = int(kafka.bootstrap.rsplit(":", 1)[1])
    ours = [f for f in frames if f[23] == 6 and port in struct.unpack(">HH", f[34:38])]
    assert len(ours) < 200, "our own traffic was captured"  # what our reader here has asked before is no producer's


def test_mirrored_statsd_payload(bench, wire):
    """A mirror port as a statsd source: payloads go to statsite, everything else is counted by why not."""
    from scapy.all import ARP, IP, TCP, UDP, Dot1Q, Ether, IPv6, IPv6ExtHdrHopByHop, IPOption, Raw, fragment, raw
    sink = bench.sink("--number", ports=2)
    backends = ", ".join(f'"{a}"' for a in sink.addresses)
    millrace = bench.millrace(conf=f"""
workers: 2
control: {{control}}
inputs: {{ tap: {{ type: capture, interface: vb, to: [out] }} }}
outputs: {{ out: {{ type: statsite, backends: [{backends}] }} }}
""")
    eth = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    numbers = iter(range(100000))

    def text(n):
        return b"".join(b"m.k%06d:%d|c\n" % (i % 10000, i) for i in (next(numbers) for _ in range(n)))
    good = []
    for i in range(200):
        udp = UDP(sport=1000 + i, dport=8125)
        good += [eth / IP(dst="10.0.0.9") / udp / Raw(text(20)), eth / Dot1Q(vlan=3) / IP(dst="10.0.0.9") / udp / Raw(text(3)),
                 eth / IP(dst="10.0.0.9", options=[IPOption(b"\x94\4\0\0")]) / udp / Raw(text(2)),
                 eth / IPv6(dst="fd00::9") / IPv6ExtHdrHopByHop() / udp / Raw(text(5))]
    bad = [eth / ARP(), eth / IP() / TCP()] + [eth / p for p in fragment(IP(dst="10.0.0.9") / UDP() / Raw(b"z:1|c\n" * 300), 500)]
    bad += [eth / IP(dst="10.0.0.9") / UDP(len=200) / Raw(b"y:1|c\n")]
    frames = [raw(p) for p in good + bad]
    lines = next(numbers)
    assert wire.replay(write_pcap(bench.path / "m.pcap", frames), "--pps", 5000) == len(frames)
    assert sink.wait_lines(lines)["distinct"] == lines
    wait_for(lambda: rows(millrace)["received_packets"] == len(frames), "all packets to be read")
    r = rows(millrace)
    assert r["decoded_packets"] == len(frames) and r["payload_packets"] == len(good)
    assert (r["not_ip_packets"], r["not_udp_packets"], r["dropped_bad_length_packets"]) == (1, 1, 1)
    assert r["dropped_fragment_packets"] == len(bad) - 3
    assert r["received_lines"] == r["to_outputs_lines"] == lines


def test_by_flags(bench, kafka, wire):
    name = topic(kafka)
    millrace = bench.millrace("--capture", wire.far, "--kafka", kafka.bootstrap, "--topic", name, listen=())
    wire.replay(write_pcap(bench.path / "g.pcap", flow_frames(50)), "--pps", 1000)
    wait_read(millrace, 50)
    assert len(read_pcap(arrived(kafka.bootstrap, name))) == 50


@pytest.mark.parametrize("inputs, fmt, expected", [
    ('filter: "udp prt 7",', "packet", 'inputs.tap.filter: "udp prt 7" is no filter: .*syntax error'),
    ("snaplen: 10,", "packet", "snaplen: .*from 64 to 65552"),
    ("port: x,", "packet", "port: (needs DPDK, and this millrace was built without DPDK|is given beside interface)"),
    ("bind: x,", "packet", "bind: does not belong to type capture"),
    ("", "datagram", "datagram needs datagrams, and input tap of type capture reads packets"),
])
def test_errors_of_the_check(bench, inputs, fmt, expected):
    import re
    file = bench.path / "check.yaml"
    file.write_text(conf("127.0.0.1:1", "t", fmt, inputs=inputs).replace("{control}", str(bench.path / "c.sock")))
    r = subprocess.run([BUILD / "millrace", "-t", "-c", file], capture_output=True, text=True, timeout=20)
    assert r.returncode == 1 and re.search(expected, r.stderr), r.stderr


def test_interface_twice(bench):
    file = bench.path / "check.yaml"
    file.write_text(conf("127.0.0.1:1", "t").replace("interface: vb", "interface: [vc, vb, vc]"))
    r = subprocess.run([BUILD / "millrace", "-t", "-c", file], capture_output=True, text=True, timeout=20)
    assert r.returncode == 1 and "inputs.tap.interface: names vc twice; each interface is allowed once" in r.stderr


def test_any_as_packets(bench):
    file = bench.path / "check.yaml"
    file.write_text(conf("127.0.0.1:1", "t").replace("interface: vb", "interface: any"))
    r = subprocess.run([BUILD / "millrace", "-t", "-c", file], capture_output=True, text=True, timeout=20)
    assert r.returncode == 1 and "outputs.out.format: packet is for Ethernet, and interface any of input tap gives" in r.stderr


def test_no_such_interface(bench, wire):
    millrace = bench.millrace(conf=conf("127.0.0.1:1", "t").replace("interface: vb", "interface: nope0"), wait=False)
    millrace.expected_exit, millrace.expected_errors = 1, ["cannot capture on interface nope0"]
    assert millrace.wait() == 1
    assert "cannot capture on interface nope0" in "\n".join(millrace.err)
