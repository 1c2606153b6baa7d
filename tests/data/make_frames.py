#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Makes the sample captures of tests/data/packet, what must be found in them (packet/frames.tsv) and the vectors of the
flow hash (flow-hash.tsv). Frames are built by scapy, files and hashes by the code below, so that nothing of src/packet
is checked against itself. The output is committed; a second run gives the same bytes. Run: tests/data/make_frames.py"""
import ipaddress
import os
import struct
import sys

from scapy.all import (ARP, AH, ICMP, IP, LLC, SCTP, SNAP, TCP, UDP, CookedLinux, CookedLinuxV2, Dot1AD, Dot1Q, Ether, GRE,
                       ICMPv6EchoRequest, IPOption_Router_Alert, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment,
                       IPv6ExtHdrHopByHop, IPv6ExtHdrRouting, Raw, SCTPChunkInit)
from scapy.contrib.mpls import MPLS

here = os.path.dirname(os.path.abspath(__file__))
A, B = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
A4, B4 = "10.0.0.1", "192.168.7.9"
A6, B6 = "2001:db8::1", "fe80::b:9"
LINE = b"requests.count:1|c\n"
NULL, ETHERNET, RAW, LOOP, SLL, IPV4, IPV6, SLL2 = 0, 1, 101, 108, 113, 228, 229, 276

rows = []      # frames.tsv
vectors = []   # flow-hash.tsv


# -- the flow hash, from its description in packet.h --------------------------------------------------------------

SECRET = bytes.fromhex(  # the beginning of xxHash's own
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578"
    "825ad07dccff7221b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea3")
M64 = (1 << 64) - 1


def xxh3_64(data):
    """XXH3_64bits of 0, 4 to 16, or 17 to 64 bytes (doc/xxhash_spec.md of xxHash)."""
    le64 = lambda b, at: int.from_bytes(b[at:at + 8], "little")
    rotate = lambda x, n: (x << n | x >> (64 - n)) & M64
    fold = lambda x, y: (x * y & M64) ^ (x * y >> 64)
    mix = lambda at, s: fold(le64(data, at) ^ le64(SECRET, s), le64(data, at + 8) ^ le64(SECRET, s + 8))
    n = len(data)
    if n == 0:
        h = le64(SECRET, 56) ^ le64(SECRET, 64)
        h = (h ^ h >> 33) * 0xC2B2AE3D27D4EB4F & M64
        h = (h ^ h >> 29) * 0x165667B19E3779F9 & M64
        return h ^ h >> 32
    if n <= 8:
        h = int.from_bytes(data[:4], "little") << 32 | int.from_bytes(data[-4:], "little")
        h ^= le64(SECRET, 8) ^ le64(SECRET, 16)
        h = (h ^ rotate(h, 49) ^ rotate(h, 24)) * 0x9FB21C651E98DF25 & M64
        h = (h ^ (h >> 35) + n) * 0x9FB21C651E98DF25 & M64
        return h ^ h >> 28
    if n <= 16:
        low, high = le64(data, 0) ^ le64(SECRET, 24) ^ le64(SECRET, 32), le64(data, n - 8) ^ le64(SECRET, 40) ^ le64(SECRET, 48)
        h = n + int.from_bytes(low.to_bytes(8, "little"), "big") + high + fold(low, high)
    else:
        h = n * 0x9E3779B185EBCA87 + mix(0, 0) + mix(n - 16, 16)
        if n > 32:
            h += mix(16, 32) + mix(n - 32, 48)
    h &= M64
    h = (h ^ h >> 37) * 0x165667919E3779F9 & M64
    return h ^ h >> 32


assert xxh3_64(b"") == 0x2D06800538D394C2


def flow(kind, *ends):
    """("ports", source, port, destination, port, protocol), ("addresses", a, b), ("macs", a, b) or ("nothing",)"""
    if kind == "ports":
        a, pa, b, pb, protocol = ends
        pair = sorted([ipaddress.ip_address(a).packed + struct.pack(">H", pa), ipaddress.ip_address(b).packed + struct.pack(">H", pb)])
        key = b"".join(pair) + bytes([protocol, 0, 0, 0])
    elif kind == "addresses":
        key = b"".join(sorted(ipaddress.ip_address(x).packed for x in ends))
    elif kind == "macs":
        key = b"".join(sorted(bytes.fromhex(x.replace(":", "")) for x in ends))
    else:
        key = b""
    return xxh3_64(key) >> 32


# -- files --------------------------------------------------------------------------------------------------------

class File:
    """One pcap file; add() writes the packet and what must be found in it."""

    def __init__(self, name, link, order="<", nano=False, fcs=0):
        self.name, self.link, self.order, self.unit = name, link, order, 1 if nano else 1000
        self.bytes = struct.pack(order + "IHHiIII", 0xa1b23c4d if nano else 0xa1b2c3d4, 2, 4, 0, 0, 262144, link | fcs)
        self.time = 1700000000 * 10**9 + 123456000

    def add(self, what, frame, verdict, key, vlans=0, version=0, protocol=0, ports="-", payload="-", cut=None, original=None):
        frame = bytes(frame)
        original = original or len(frame)
        frame = frame[:cut] if cut is not None else frame
        self.time += 1_000_001_000 if self.unit == 1000 else 1_000_000_001
        self.bytes += struct.pack(self.order + "IIII", self.time // 10**9, self.time % 10**9 // self.unit, len(frame), original)
        self.bytes += frame
        rows.append([self.name, self.time, len(frame), original, self.link, verdict, vlans, version, protocol, ports,
                     payload, f"{flow(*key):08x}", what])
        if len(frame) <= 200:
            vectors.append([f"{flow(*key):08x}", self.link, frame.hex(), what])

    def close(self):
        with open(f"{here}/packet/{self.name}", "wb") as f:
            f.write(self.bytes)


MACS = ("macs", A, B)
ab = Ether(src=A, dst=B)
ba = Ether(src=B, dst=A)
ip, pi = IP(src=A4, dst=B4), IP(src=B4, dst=A4)
ip6, pi6 = IPv6(src=A6, dst=B6), IPv6(src=B6, dst=A6)
udp, pdu = UDP(sport=40000, dport=8125), UDP(sport=8125, dport=40000)
tcp = TCP(sport=50000, dport=443, seq=1, flags="S")
sctp = SCTP(sport=3868, dport=3869) / SCTPChunkInit()
ports4 = lambda protocol, a=40000, b=8125: ("ports", A4, a, B4, b, protocol)
ports6 = lambda protocol, a=40000, b=8125: ("ports", A6, a, B6, b, protocol)
found4 = dict(version=4, protocol=17, ports="40000>8125", payload=len(LINE))
found6 = dict(version=6, protocol=17, ports="40000>8125", payload=len(LINE))


def ipv4():
    f = File("ipv4.pcap", ETHERNET)
    f.add("udp", ab/ip/udp/LINE, "payload", ports4(17), **found4)
    f.add("udp, the other direction", ba/pi/pdu/LINE, "payload", ports4(17), **{**found4, "ports": "8125>40000"})
    f.add("udp of the same address, ports alone decide", ab/IP(src=A4, dst=A4)/udp/LINE, "payload", ("ports", A4, 40000, A4, 8125, 17), **found4)
    f.add("udp with options", ab/IP(src=A4, dst=B4, options=IPOption_Router_Alert())/udp/LINE, "payload", ports4(17), **found4)
    f.add("udp with 40 bytes of options", ab/IP(src=A4, dst=B4, options=b"\x01" * 40)/udp/LINE, "payload", ports4(17), **found4)
    f.add("tiny: empty payload with padding", bytes(ab/ip/udp) + bytes(18), "payload", ports4(17), **{**found4, "payload": 0})
    f.add("tiny: one byte with padding", bytes(ab/ip/udp/b"x") + bytes(17), "payload", ports4(17), **{**found4, "payload": 1})
    f.add("bytes behind UDP within IP", ab/ip/UDP(sport=40000, dport=8125, len=8 + len(LINE))/(LINE + b"tail"), "payload", ports4(17), **found4)
    f.add("do not fragment is no fragment", ab/IP(src=A4, dst=B4, flags="DF")/udp/LINE, "payload", ports4(17), **found4)
    f.add("reserved flag is no fragment", ab/IP(src=A4, dst=B4, flags="evil")/udp/LINE, "payload", ports4(17), **found4)
    f.add("tcp", ab/ip/tcp, "not_udp", ports4(6, 50000, 443), version=4, protocol=6, ports="50000>443")
    f.add("sctp", ab/ip/sctp, "not_udp", ports4(132, 3868, 3869), version=4, protocol=132, ports="3868>3869")
    f.add("icmp", ab/ip/ICMP(id=1, seq=1), "not_udp", MACS, version=4, protocol=1)
    f.add("gre", ab/ip/GRE()/ip/udp, "not_udp", MACS, version=4, protocol=47)
    f.add("tcp of length 0, as offloading shows it", ab/IP(src=A4, dst=B4, len=0)/tcp, "not_udp", ports4(6, 50000, 443), version=4, protocol=6, ports="50000>443")
    f.add("jumbo", ab/ip/udp/(b"j" * 8972), "payload", ports4(17), **{**found4, "payload": 8972})
    f.close()


def ipv6():
    f = File("ipv6.pcap", ETHERNET, nano=True)
    hop, dest = IPv6ExtHdrHopByHop(), IPv6ExtHdrDestOpt()
    f.add("udp", ab/ip6/udp/LINE, "payload", ports6(17), **found6)
    f.add("udp, the other direction", ba/pi6/pdu/LINE, "payload", ports6(17), **{**found6, "ports": "8125>40000"})
    f.add("hop by hop", ab/ip6/hop/udp/LINE, "payload", ports6(17), **found6)
    f.add("hop, destination, routing, destination", ab/ip6/hop/dest/IPv6ExtHdrRouting(addresses=["2001:db8::77"])/dest/udp/LINE,
          "payload", ports6(17), **found6)
    f.add("atomic fragment", ab/ip6/IPv6ExtHdrFragment(id=7)/udp/LINE, "payload", ports6(17), **found6)
    f.add("authentication", ab/ip6/AH(spi=1, seq=1, icv=bytes(12), nh=17, payloadlen=4)/udp/LINE, "payload", ports6(17), **found6)
    many = ip6
    for _ in range(8):
        many = many/dest
    f.add("8 extensions", ab/many/udp/LINE, "payload", ports6(17), **found6)
    f.add("9 extensions", ab/many/dest/udp/LINE, "bad_header", MACS, version=6, protocol=60)
    f.add("tcp", ab/ip6/tcp, "not_udp", ports6(6, 50000, 443), version=6, protocol=6, ports="50000>443")
    f.add("tcp behind hop by hop", ab/ip6/hop/tcp, "not_udp", ports6(6, 50000, 443), version=6, protocol=6, ports="50000>443")
    f.add("sctp", ab/ip6/sctp, "not_udp", ports6(132, 3868, 3869), version=6, protocol=132, ports="3868>3869")
    f.add("icmp6", ab/ip6/ICMPv6EchoRequest(), "not_udp", MACS, version=6, protocol=58)
    f.add("no next header", ab/IPv6(src=A6, dst=B6, nh=59), "not_udp", MACS, version=6, protocol=59)
    f.add("tcp of length 0, as offloading shows it", ab/IPv6(src=A6, dst=B6, plen=0)/hop/tcp, "not_udp", ports6(6, 50000, 443),
          version=6, protocol=6, ports="50000>443")
    f.add("udp of length 0", ab/IPv6(src=A6, dst=B6, plen=0)/udp/LINE, "bad_length", ports6(17), **{**found6, "payload": "-"})
    f.close()


def vlan():
    f = File("vlan.pcap", ETHERNET, order=">")
    f.add("one tag", ab/Dot1Q(vlan=7)/ip/udp/LINE, "payload", ports4(17), vlans=1, **found4)
    f.add("one tag, the other direction in another", ba/Dot1Q(vlan=8, prio=5)/pi/pdu/LINE, "payload", ports4(17), vlans=1,
          **{**found4, "ports": "8125>40000"})
    f.add("802.1ad and 802.1Q", ab/Dot1AD(vlan=7)/Dot1Q(vlan=9)/ip6/udp/LINE, "payload", ports6(17), vlans=2, **found6)
    f.add("two of 802.1Q", ab/Dot1Q(vlan=7)/Dot1Q(vlan=9)/ip/tcp, "not_udp", ports4(6, 50000, 443), vlans=2, version=4, protocol=6,
          ports="50000>443")
    f.add("0x9100", Ether(src=A, dst=B, type=0x9100)/bytes(Dot1Q(vlan=7)/ip/udp/LINE), "payload", ports4(17), vlans=1, **found4)
    f.add("three tags", ab/Dot1Q(vlan=7)/Dot1Q(vlan=9)/Dot1Q(vlan=11)/ip/udp/LINE, "not_ip", MACS, vlans=2)
    f.add("arp in a tag", ab/Dot1Q(vlan=7)/ARP(hwsrc=A, psrc=A4, pdst=B4), "not_ip", MACS, vlans=1)
    f.close()


def fragments():
    f = File("fragments.pcap", ETHERNET, order=">", nano=True)
    both4, both6 = ("addresses", A4, B4), ("addresses", A6, B6)
    part = bytes(udp/(b"f" * 1472))
    found = dict(version=4, protocol=17)
    f.add("first", ab/IP(src=A4, dst=B4, proto=17, id=5, flags="MF")/part[:800], "fragment", both4, **found)
    f.add("middle", ab/IP(src=A4, dst=B4, proto=17, id=5, flags="MF", frag=100)/part[800:1200], "fragment", both4, **found)
    f.add("last", ab/IP(src=A4, dst=B4, proto=17, id=5, frag=150)/part[1200:], "fragment", both4, **found)
    f.add("of tcp, other direction, in a tag", ba/Dot1Q(vlan=3)/IP(src=B4, dst=A4, proto=6, frag=150)/part[:40], "fragment", both4,
          vlans=1, version=4, protocol=6)
    f.add("IPv6 first", ab/ip6/IPv6ExtHdrFragment(id=5, m=1, nh=17)/part[:800], "fragment", both6, version=6, protocol=17)
    f.add("IPv6 last", ba/pi6/IPv6ExtHdrHopByHop()/IPv6ExtHdrFragment(id=5, offset=100, nh=17)/part[800:], "fragment", both6,
          version=6, protocol=17)
    f.add("IPv6 with no byte left", ab/ip6/IPv6ExtHdrFragment(id=5, offset=1, nh=60), "fragment", both6, version=6, protocol=60)
    f.close()


def other():
    f = File("other.pcap", ETHERNET, fcs=0x24000000)
    f.add("arp", ab/ARP(hwsrc=A, psrc=A4, pdst=B4), "not_ip", MACS)
    f.add("arp to all", Ether(src=A, dst="ff:ff:ff:ff:ff:ff")/ARP(hwsrc=A, psrc=A4, pdst=B4), "not_ip", ("macs", A, "ff:ff:ff:ff:ff:ff"))
    f.add("802.3 with a length", bytes.fromhex("0180c2000000" + A.replace(":", "")) + struct.pack(">H", 38) + bytes(LLC(dsap=0x42, ssap=0x42, ctrl=3)/(b"s" * 35)),
          "not_ip", ("macs", A, "01:80:c2:00:00:00"))
    f.add("802.3 with SNAP", bytes.fromhex("02000000000b02000000000a") + struct.pack(">H", 55) + bytes(LLC()/SNAP(code=0x800)/ip/udp/LINE),
          "not_ip", MACS)
    f.add("mpls", Ether(src=A, dst=B, type=0x8847)/MPLS(label=9, s=1, ttl=3)/ip/udp/LINE, "not_ip", MACS)
    f.add("no payload at all", ab/b"", "not_ip", MACS)
    f.close()


def broken():
    f = File("broken.pcap", ETHERNET)
    found = dict(version=4, protocol=17, ports="40000>8125")
    whole = bytes(ab/ip/udp/LINE)
    u = lambda **k: UDP(sport=40000, dport=8125, **k)
    f.add("UDP length above IP", ab/ip/u(len=28)/LINE, "bad_length", ports4(17), **found)
    f.add("UDP length 0", ab/ip/u(len=0)/LINE, "bad_length", ports4(17), **found)
    f.add("UDP length 7", ab/ip/u(len=7)/LINE, "bad_length", ports4(17), **found)
    f.add("UDP length within padding", bytes(ab/IP(src=A4, dst=B4)/u(len=40)/b"x") + bytes(40), "bad_length", ports4(17), **found)
    f.add("IP length above the frame", ab/IP(src=A4, dst=B4, len=48)/u(len=28)/LINE, "bad_length", ports4(17), **found)
    f.add("IP length 0", ab/IP(src=A4, dst=B4, len=0)/udp/LINE, "bad_length", ports4(17), **found)
    f.add("IP length below its header", ab/IP(src=A4, dst=B4, len=19)/udp/LINE, "bad_length", MACS)
    f.add("IP leaves 4 bytes to UDP", ab/IP(src=A4, dst=B4, len=24)/udp/LINE, "bad_length", ports4(17), **found)
    f.add("IP leaves 3 bytes to UDP", ab/IP(src=A4, dst=B4, len=23)/udp/LINE, "bad_length", MACS, version=4, protocol=17)
    f.add("IPv4 header of 16 bytes", ab/IP(src=A4, dst=B4, ihl=4)/udp/LINE, "bad_header", MACS)
    f.add("IPv4 header longer than the frame", bytes(ab/IP(src=A4, dst=B4, ihl=15, len=60))[:14 + 20], "bad_length", MACS)
    f.add("IPv4 with version 6", ab/IP(src=A4, dst=B4, version=6)/udp/LINE, "bad_header", MACS)
    f.add("IPv6 with version 4", ab/IPv6(src=A6, dst=B6, version=4)/udp/LINE, "bad_header", MACS)
    f.add("IPv6 length above the frame", ab/IPv6(src=A6, dst=B6, plen=28)/u(len=28)/LINE, "bad_length", ports6(17), version=6, protocol=17,
          ports="40000>8125")
    f.add("IPv6 extension above IP", ab/IPv6(src=A6, dst=B6, plen=8)/IPv6ExtHdrHopByHop(len=3)/udp/LINE, "bad_length", MACS, version=6)
    f.add("IPv6 leaves 4 bytes to an extension", ab/IPv6(src=A6, dst=B6, plen=4)/IPv6ExtHdrHopByHop()/udp/LINE, "bad_length", MACS, version=6)
    f.add("cut in the payload", whole, "truncated", ports4(17), cut=50, **found)
    f.add("cut in the UDP header", whole, "truncated", ports4(17), cut=40, **found)
    f.add("cut in the ports", whole, "truncated", MACS, cut=37, version=4, protocol=17)
    f.add("cut in the IP header", whole, "truncated", MACS, cut=30)
    f.add("cut in the EtherType", whole, "truncated", MACS, cut=13)
    f.add("cut in the MACs", whole, "truncated", ("nothing",), cut=11)
    f.add("cut in a tag", ab/Dot1Q(vlan=7)/ip/udp/LINE, "truncated", MACS, cut=16)
    f.add("tcp cut behind the ports", ab/ip/tcp, "not_udp", ports4(6, 50000, 443), cut=38, version=4, protocol=6, ports="50000>443")
    f.add("fragment cut behind IP", ab/IP(src=A4, dst=B4, proto=17, frag=3)/LINE, "fragment", ("addresses", A4, B4), cut=34, version=4, protocol=17)
    f.add("runt", whole[:10], "bad_length", ("nothing",))
    f.add("empty", b"", "bad_length", ("nothing",))
    f.close()


def other_links():
    f = File("sll.pcap", SLL)
    cooked = CookedLinux(src=bytes(6))
    f.add("cooked udp", cooked/ip/udp/LINE, "payload", ports4(17), **found4)
    f.add("cooked IPv6 in a tag", CookedLinux(src=bytes(6), proto=0x8100)/Dot1Q(vlan=3)/ip6/udp/LINE, "payload", ports6(17), vlans=1, **found6)
    f.add("cooked icmp goes by addresses", cooked/ip/ICMP(), "not_udp", ("addresses", A4, B4), version=4, protocol=1)
    f.add("cooked arp goes by nothing", cooked/ARP(hwsrc=A, psrc=A4, pdst=B4), "not_ip", ("nothing",))
    f.close()
    f = File("sll2.pcap", SLL2, order=">", nano=True)
    f.add("cooked v2 udp", CookedLinuxV2()/ip/udp/LINE, "payload", ports4(17), **found4)
    f.add("cooked v2 tcp over IPv6", CookedLinuxV2(proto=0x86dd)/pi6/tcp, "not_udp", ("ports", B6, 50000, A6, 443, 6), version=6, protocol=6,
          ports="50000>443")
    f.add("cooked v2 fragment", CookedLinuxV2()/IP(src=B4, dst=A4, proto=17, frag=3)/LINE, "fragment", ("addresses", A4, B4), version=4, protocol=17)
    f.close()
    f = File("raw.pcap", RAW)
    f.add("raw IPv4", ip/udp/LINE, "payload", ports4(17), **found4)
    f.add("raw IPv6", ip6/udp/LINE, "payload", ports6(17), **found6)
    f.add("raw icmp6 goes by addresses", pi6/ICMPv6EchoRequest(), "not_udp", ("addresses", A6, B6), version=6, protocol=58)
    f.add("raw of neither version", b"\x50" + bytes(30), "not_ip", ("nothing",))
    f.add("raw and empty", b"", "bad_length", ("nothing",))
    f.add("raw and cut to nothing", ip/udp/LINE, "truncated", ("nothing",), cut=0)
    f.close()
    f = File("ipv4_only.pcap", IPV4)
    f.add("IPv4 link", ip/udp/LINE, "payload", ports4(17), **found4)
    f.add("IPv4 link with IPv6", ip6/udp/LINE, "bad_header", ("nothing",))
    f.close()
    f = File("ipv6_only.pcap", IPV6)
    f.add("IPv6 link", ip6/udp/LINE, "payload", ports6(17), **found6)
    f.close()
    f = File("null.pcap", NULL)
    for family in (10, 24, 28, 30):
        f.add(f"loopback family {family}", struct.pack("<I", family) + bytes(ip6/udp/LINE), "payload", ports6(17), **found6)
    f.add("loopback of a big-endian writer", struct.pack(">I", 2) + bytes(ip/udp/LINE), "payload", ports4(17), **found4)
    f.add("loopback family 7", struct.pack("<I", 7) + bytes(ip/udp/LINE), "not_ip", ("nothing",))
    f.close()
    f = File("loop.pcap", LOOP)
    f.add("OpenBSD loopback", struct.pack(">I", 2) + bytes(ip/udp/LINE), "payload", ports4(17), **found4)
    f.add("OpenBSD loopback, IPv6", struct.pack(">I", 24) + bytes(ip6/udp/LINE), "payload", ports6(17), **found6)
    f.close()
    f = File("wireless.pcap", 105)
    f.add("802.11 is not known", bytes(40), "unknown_link", ("nothing",))
    f.close()


# -- pcapng, by hand ----------------------------------------------------------------------------------------------

def pcapng():
    name, out = "sections.pcapng", b""
    frame, cooked = bytes(ab/ip/udp/LINE), bytes(CookedLinux(src=bytes(6))/ip/udp/LINE)
    order = "<"

    def block(kind, body):
        nonlocal out
        body += bytes(-len(body) % 4)
        total = struct.pack(order + "I", len(body) + 12)
        out += struct.pack(order + "I", kind) + total + body + total

    def option(code, value):
        return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)

    def section(length=-1, options=b""):
        block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, length) + options)

    def interface(link, snaplen=0, options=b""):
        block(1, struct.pack(order + "HHI", link, 0, snaplen) + options)

    def pad(data):
        return data + bytes(-len(data) % 4)

    def expect(what, link, time, data, original):
        cooked_or_not = dict(found4, payload=len(LINE)) if len(data) == original else dict(found4, payload="-")
        rows.append([name, time, len(data), original, link, "payload" if len(data) == original else "truncated", 0, 4, 17,
                     cooked_or_not["ports"], cooked_or_not["payload"], f"{flow(*ports4(17)):08x}", what])

    def enhanced(n, units, data, original, options=b""):
        block(6, struct.pack(order + "IIIII", n, units >> 32, units & 0xffffffff, len(data), original) + pad(data) + options)

    second = 1700000000
    section(options=option(4, b"make_frames.py") + option(0, b""))
    interface(ETHERNET, 60)
    interface(SLL, 0, option(2, b"any") + option(9, b"\x09") + option(14, struct.pack("<q", -3600)) + option(0, b""))
    interface(ETHERNET, 0, option(9, b"\x00"))
    interface(ETHERNET, 0, option(9, b"\x0a"))
    block(4, struct.pack("<HH", 0, 0))  # name resolution
    enhanced(0, second * 10**6 + 5, frame, len(frame), option(1, b"a comment") + option(2, struct.pack("<I", 1)) + option(0, b""))
    expect("microseconds by default", ETHERNET, second * 10**9 + 5000, frame, len(frame))
    enhanced(1, second * 10**9 + 7, cooked, len(cooked))
    expect("nanoseconds, an hour off", SLL, (second - 3600) * 10**9 + 7, cooked, len(cooked))
    enhanced(2, second, frame[:50], len(frame))
    expect("seconds, cut", ETHERNET, second * 10**9, frame[:50], len(frame))
    enhanced(3, second * 10**10 + 89, frame, len(frame))
    expect("tenths of nanoseconds", ETHERNET, second * 10**9 + 8, frame, len(frame))
    block(3, struct.pack("<I", len(frame)) + frame[:60])
    expect("simple, cut by the interface's snaplen", ETHERNET, 0, frame[:60], len(frame))
    block(2, struct.pack("<HHIIII", 0, 1, *divmod(second * 10**6 + 9, 1 << 32), len(frame), len(frame)) + pad(frame) + option(0, b""))
    expect("obsolete", ETHERNET, second * 10**9 + 9000, frame, len(frame))
    block(5, struct.pack("<III", 0, 0, 0))  # statistics
    block(0xBAD, struct.pack("<I", 32473) + b"custom")
    block(0x80000001, bytes(1000))  # private

    order, before = ">", len(out)
    section(length=0x123456789A)  # a wrong one: it is not relied on
    interface(ETHERNET, 262144, option(9, b"\x8a") + option(14, struct.pack(">q", 10)))
    enhanced(0, second * 1024 + 512, frame, len(frame))
    expect("big-endian, 1/1024 s, ten seconds off", ETHERNET, (second + 10) * 10**9 + 500_000_000, frame, len(frame))
    block(3, struct.pack(">I", len(frame)) + pad(frame))
    expect("big-endian, simple", ETHERNET, 0, frame, len(frame))
    interface(ETHERNET, 0, option(9, b"\xff"))
    interface(ETHERNET, 0, option(9, b"\x7f"))
    interface(ETHERNET, 0, option(14, struct.pack(">q", -(second + 1))))
    interface(ETHERNET, 0, option(14, struct.pack(">q", 2**63 - 1)))
    enhanced(1, 2**64 - 1, frame, len(frame))
    expect("2^-127 s", ETHERNET, 0, frame, len(frame))
    enhanced(2, 2**64 - 1, frame, len(frame))
    expect("10^-127 s", ETHERNET, 0, frame, len(frame))
    enhanced(3, second * 10**6, frame, len(frame))
    expect("before 1970 is not known", ETHERNET, 0, frame, len(frame))
    enhanced(4, second * 10**6, frame, len(frame))
    expect("after 2554 is not known", ETHERNET, 0, frame, len(frame))

    order = "<"
    section()  # interfaces begin anew
    interface(SLL)
    enhanced(0, 10**6, cooked, len(cooked) - 4)
    expect("third section, an original length that lies", SLL, 10**9, cooked, len(cooked))
    assert before < len(out)
    with open(f"{here}/packet/{name}", "wb") as f:
        f.write(out)


def write_table(path, head, table):
    with open(path, "w") as f:
        f.write(head)
        for row in table:
            f.write("\t".join(str(x) for x in row) + "\n")


os.makedirs(f"{here}/packet", exist_ok=True)
for make in (ipv4, ipv6, vlan, fragments, other, broken, other_links, pcapng):
    make()
write_table(f"{here}/packet/frames.tsv", "# file, time ns, captured, original, link type, verdict, tags, IP version, protocol, ports, "
            "payload bytes, flow hash, what; made by make_frames.py\n", rows)
write_table(f"{here}/flow-hash.tsv", "# flow hash, link type, frame, what; made by make_frames.py, pinned: consumers rely on partitions\n", vectors)
print(f"{len(rows)} packets, {len(vectors)} vectors", file=sys.stderr)
