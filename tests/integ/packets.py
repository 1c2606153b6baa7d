# SPDX-License-Identifier: MIT
"""What the packet tests share: a network namespace with a veth pair, frames of all kinds, tcpreplay, what arrived."""
import collections
import ctypes
import os
import re
import struct
import subprocess
from pathlib import Path

import pytest
from conftest import BUILD, wait_for

NEW_NETWORK = 0x40000000  # CLONE_NEWNET; os.unshare came with Python 3.12
HAS_PCAP = "pcap: not built in" not in subprocess.run([BUILD / "millrace", "--version"], capture_output=True, text=True).stdout
needs_pcap = pytest.mark.skipif(not HAS_PCAP, reason="this millrace was built without libpcap (PCAP=0)")


def ip(*words):
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True)


class Wire:
    """A veth pair: what is sent into `.near` is received on `.far`."""

    def __init__(self, near="va", far="vb"):
        self.near, self.far = near, far
        self.make()

    def make(self):
        ip("link", "add", self.near, "type", "veth", "peer", "name", self.far)
        for name in (self.near, self.far):
            Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")  # no packets of its own
            ip("link", "set", name, "up", "mtu", "65535")

    def remove(self):
        ip("link", "del", self.near)

    def replay(self, file, *options, timeout=60):
        """tcpreplay to its end; packets that it sent."""
        r = subprocess.run(["tcpreplay", "-q", "-K", *map(str, options), "-i", self.near, file], capture_output=True, text=True,
                           timeout=timeout)
        assert r.returncode == 0, r.stderr
        self.rate = float(re.search(r"Rated: .* ([\d.]+) pps", r.stdout).group(1))
        return int(re.search(r"Successful packets:\s+(\d+)", r.stdout).group(1))

    def start(self, bench, file, *options):
        return bench.run("tcpreplay", "-q", "-K", *options, "-i", self.near, file)

    @staticmethod
    def sent(process, timeout=120):
        process.wait(timeout)
        return int(re.search(r"Successful packets:\s+(\d+)", "\n".join(process.out)).group(1))


def enter_network():
    """The test's thread, and all that it starts, in a network namespace of its own; returns how to leave it."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    if libc.unshare(NEW_NETWORK) != 0:
        os.close(home)
        pytest.skip(f"no network namespace of its own: {os.strerror(ctypes.get_errno())}; needs root")

    def leave():
        assert libc.setns(home, 0) == 0
        os.close(home)
    ip("link", "set", "lo", "up")
    return leave


def own_wire():
    """A network of our own with a veth pair, for a fixture."""
    leave = enter_network()
    try:
        yield Wire()
    finally:
        leave()


@pytest.fixture
def wire():
    yield from own_wire()


# -- files ---------------------------------------------------------------------------------------------------------------

def write_pcap(path, frames, link_type=1, time_ns=1_700_000_000_000_000_000, step_ns=1_000_000):
    """frames: bytes each, or (bytes, original length)."""
    with open(path, "wb") as f:
        f.write(struct.pack("<IHHiIII", 0xa1b23c4d, 2, 4, 0, 0, 262144, link_type))
        for frame in frames:
            frame, original = frame if isinstance(frame, tuple) else (frame, len(frame))
            f.write(struct.pack("<IIII", time_ns // 10**9, time_ns % 10**9, len(frame), original) + frame)
            time_ns += step_ns
    return path


def read_pcap(data):
    """[(time_ns, original length, frame)] of a nanosecond file."""
    magic, major, minor = struct.unpack_from("<IHH", data)
    assert (magic, major, minor) == (0xa1b23c4d, 2, 4)
    found, at = [], 24
    while at < len(data):
        s, ns, n, original = struct.unpack_from("<IIII", data, at)
        found.append((s * 10**9 + ns, original, data[at + 16:at + 16 + n]))
        at += 16 + n
    assert at == len(data)
    return found


def arrived(servers, topic):
    """What millrace-kafka makes of the topic: a pcap file's bytes."""
    r = subprocess.run([BUILD / "millrace-kafka", "read", "-b", servers, "-t", topic, "-e", "-f", "pcap"], capture_output=True,
                       timeout=120, check=True)
    return r.stdout


def udp_frame(payload, source="10.0.0.1", destination="10.0.0.2", sport=1000, dport=8125, ident=0):
    """A UDP datagram in IPv4 in Ethernet, without checksums: quick to make many."""
    def four(a):
        return bytes(map(int, a.split(".")))
    udp = struct.pack(">HHHH", sport, dport, 8 + len(payload), 0) + payload
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), ident & 0xffff, 0, 64, 17, 0) + four(source) + four(destination)
    return b"\2\0\0\0\0\2\2\0\0\0\0\1\x08\0" + head + udp


def flow_frames(n, flows=100, size=100):
    """Numbered frames of so many flows: the number of the frame and of its flow end each frame."""
    return [udp_frame(b"x" * (size - 54) + struct.pack(">QI", i, i % flows), source=f"10.1.{i % flows // 250}.{i % flows % 250}",
                      sport=2000 + i % flows, ident=i) for i in range(n)]


def flow_number(frame):
    return struct.unpack(">QI", frame[-12:])


def all_kinds():
    """Frames of every kind that the issue names, made with scapy; no two are equal."""
    from scapy.all import IP, TCP, UDP, Dot1AD, Dot1Q, Ether, IPv6, IPv6ExtHdrFragment, Raw, fragment, raw
    eth = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    v4, v6 = IP(src="10.0.0.1", dst="10.0.0.2"), IPv6(src="fd00::1", dst="fd00::2")
    packets = []
    for l3 in (v4, v6):
        for tags in ([], [Dot1Q(vlan=5)], [Dot1AD(vlan=7), Dot1Q(vlan=9)], [Dot1Q(vlan=7), Dot1Q(vlan=9)]):
            for l4 in (UDP(sport=53, dport=8125), TCP(sport=80, dport=4000, flags="S")):
                p = eth
                for t in tags:
                    p = p / t
                packets += [p / l3 / l4 / Raw(b"k:%d|c" % len(packets)) for _ in range(3)]
    packets += [eth / v4 / UDP(sport=1, dport=2) / Raw(bytes([i]) * 8900) for i in range(5)]           # jumbo
    packets += [eth / v4 / UDP(sport=3, dport=4) / Raw(bytes([i]) * 65000) for i in range(3)]          # as offload makes them
    packets += [eth / Raw(bytes([i, 1])) for i in range(4)]                                            # tiny
    packets += fragment(v4 / UDP(sport=5, dport=6) / Raw(os.urandom(3000)), fragsize=1000)
    packets = [p if p.haslayer(Ether) else eth / p for p in packets]
    packets.append(eth / v6 / IPv6ExtHdrFragment(offset=10, id=77, nh=17) / Raw(os.urandom(64)))
    frames = [raw(p) for p in packets]
    whole = raw(eth / v4 / UDP(sport=53, dport=8125) / Raw(b"cut:%s|c" % (b"1" * 20)))
    frames += [whole[:n] for n in range(14, len(whole))]                                               # every truncation
    tagged = raw(eth / Dot1Q(vlan=5) / v4 / UDP(sport=53, dport=8125) / Raw(b"cut:%s|c" % (b"1" * 20)))
    # the kernel itself drops a tagged frame that ends before its 28th byte, before anybody can capture it (rx_dropped)
    frames += [tagged[:n] for n in range(28, len(tagged))]
    return [f for f, n in collections.Counter(frames).items() for _ in range(n)]


# -- millrace ------------------------------------------------------------------------------------------------------------

def conf(servers, topic, fmt="packet", options="", workers=2, inputs="", top="", properties=""):
    return f"""
workers: {workers}
control: {{control}}
{top}
inputs: {{ tap: {{ type: capture, interface: vb, {inputs} to: [out] }} }}
outputs:
  out: {{ type: kafka, topic: {topic}, format: {fmt}, {options} properties: {{ bootstrap.servers: "{servers}" {properties} }} }}
"""


def rows(millrace, scope="inputs", name=None):
    """The counters of all entries of a part of status, summed."""
    total = collections.Counter()
    for row in millrace.status()[scope]:
        if name is None or row["name"] == name:
            total.update({k: v for k, v in row.items() if isinstance(v, int)})
    return total


def wait_read(millrace, n, timeout=30.0):
    """Until n packets were read or lost before, and all of them are out of our hands."""
    def settled():
        ends = rows(millrace, "endpoints")
        ins, out = rows(millrace), rows(millrace, "backends")
        came = ins["received_packets"] + ends["dropped_ring_packets"] + ends["dropped_dead_ring_packets"]
        return came >= n and out["queued_records"] + out["in_flight_records"] == 0
    return wait_for(settled, f"{n} packets to be read and delivered", timeout)
