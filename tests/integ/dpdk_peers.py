# SPDX-License-Identifier: MIT
"""What the DPDK tests share: frames and pcap files, a veth pair in the test's own network, hugepages, tcpreplay, a sender
into net_ring. Everything that is made here is removed here."""
import contextlib
import json
import os
import re
import struct
import subprocess

import pytest
from conftest import BUILD, wait_for

HAS_DPDK = "dpdk: not" not in subprocess.run([BUILD / "millrace", "--version"], capture_output=True, text=True).stdout
needs_dpdk = pytest.mark.skipif(not HAS_DPDK, reason="this millrace was built without DPDK (DPDK=0)")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces, veth and hugepages need root")
HUGEPAGES = "/proc/sys/vm/nr_hugepages"


# -- frames ----------------------------------------------------------------------------------------------------------

def udp_frame(payload, flow=0, tags=()):
    """Ethernet, VLAN tags (ethertype, tci), IPv4, UDP. The flow is in the source address and port."""
    udp = struct.pack("!HHHH", 1024 + flow % 50000, 8125, 8 + len(payload), 0) + payload
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, struct.pack("!I", 0x0a000000 + flow),
                     bytes([10, 255, 0, 1]))
    head = b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02"
    for ethertype, tci in tags:
        head += struct.pack("!HH", ethertype, tci)
    return head + b"\x08\x00" + ip + udp


def number_line(i):
    """A statsd line with its number, as millrace-replay --number makes them: millrace-sink looks for gaps and doubles."""
    return b"m.k%06d:%d|c" % (i * 2654435761 % 10000, i)


def line_frames(n, flows=200, size=0):
    """n frames, each with one numbered line."""
    for i in range(n):
        line = number_line(i)
        yield udp_frame(line + b"\n" * max(0, size - 42 - len(line)), flow=i % flows)


def write_pcap(path, frames):
    count = 0
    with open(path, "wb") as f:
        f.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 262144, 1))
        for frame in frames:
            f.write(struct.pack("<IIII", 1700000000 + count // 1000000, count % 1000000, len(frame), len(frame)) + frame)
            count += 1
    return count


# -- the network -----------------------------------------------------------------------------------------------------

@pytest.fixture
def veth(own_network):
    """A pair ("mr0" to send into, "mr1" to read) in the test's own network; nothing else sends there."""
    for words in (["sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1"],
                  ["ip", "link", "add", "mr0", "type", "veth", "peer", "name", "mr1"],
                  ["ip", "link", "set", "mr0", "mtu", "9200", "addrgenmode", "none"],
                  ["ip", "link", "set", "mr1", "mtu", "9200", "addrgenmode", "none"],
                  ["ip", "link", "set", "mr0", "up"], ["ip", "link", "set", "mr1", "up"]):
        subprocess.run(words, check=True)
    yield "mr0", "mr1"
    subprocess.run(["ip", "link", "del", "mr0"], check=False)


def tcpreplay(interface, file, *options):
    """Plays the file; how many packets it says it sent."""
    r = subprocess.run(["tcpreplay", "-q", "-i", interface, *map(str, options), str(file)], capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stderr
    return int(re.search(r"Successful packets:\s+(\d+)", r.stdout).group(1))


@contextlib.contextmanager
def hugepages_reserved(folder, pages=256):
    """2 MiB pages, and a hugetlbfs mounted at the folder."""
    before = open(HUGEPAGES).read()
    with open(HUGEPAGES, "w") as f:
        f.write(str(max(pages, int(before))))
    if int(open(HUGEPAGES).read()) < pages:
        open(HUGEPAGES, "w").write(before)
        pytest.skip(f"the kernel gave fewer than {pages} hugepages")
    folder.mkdir()
    subprocess.run(["mount", "-t", "hugetlbfs", "none", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # millrace may still be ending
        open(HUGEPAGES, "w").write(before)


@pytest.fixture
def huge(tmp_path):
    import fcntl
    with open("/tmp/millrace-hugepages.lock", "w") as lock:  # tests run side by side, the number is the machine's
        fcntl.flock(lock, fcntl.LOCK_EX)
        with hugepages_reserved(tmp_path / "huge") as folder:
            yield folder


@pytest.fixture(params=["no-huge", "hugepages"])
def memory(request):
    """Arguments of the EAL for its memory."""
    if request.param == "no-huge":
        return ["--no-huge", "-m 512"]
    return [f"--huge-dir {request.getfixturevalue('huge')}", "-m 384"]


def conf(eal, workers=2, port="net_af_packet0,iface=mr1", options="", sink=None, outputs="", to="out", inputs=""):
    """A capture input with driver dpdk, to a statsite output (sink) or to what `outputs` says."""
    items = ", ".join(f'"{w}"' for w in eal)
    if sink:
        outputs += f"\n  out: {{ type: statsite, backends: {json.dumps(sink.addresses)} }}"
    return f"""
workers: {workers}
control: {{control}}
inputs:
  tap: {{ type: capture, port: "{port}", eal: [{items}], to: [{to}]{", " if options else ""}{options} }}
{inputs}
outputs:{outputs}
"""


# -- counters ----------------------------------------------------------------------------------------------------------

def counter(millrace, name, **where):
    """Sum of a counter's rows: counter(m, "received_packets", input="tap", worker=0)."""
    return sum(r["value"] for r in millrace.stats()["counters"]
               if r["name"] == name and all(r.get(k) == v for k, v in where.items()))


DROPS = ("dropped_ring_packets", "dropped_missed_packets", "dropped_no_mbuf_packets", "dropped_error_packets")


def nic_drops(millrace):
    return sum(counter(millrace, name) for name in DROPS)


def settled(millrace, sent, timeout=15.0):
    """Until every packet that was sent is in a counter: (received, dropped by ring or card)."""
    def look():
        received, dropped = counter(millrace, "received_packets"), nic_drops(millrace)
        return (received, dropped) if received + dropped >= sent else None
    return wait_for(look, f"{sent} packets in the counters", timeout)


def idle_ticks(pid, seconds):
    """CPU that a process takes in so many seconds, as a share of one core."""
    import time
    def used():
        fields = open(f"/proc/{pid}/schedstat").read().split()
        return int(fields[0])
    start, before = time.monotonic(), used()
    wait_for(lambda: time.monotonic() - start >= seconds, "time to pass", seconds + 1)
    return (used() - before) / 1e9 / (time.monotonic() - start)


__all__ = ["conf", "counter", "hugepages_reserved", "huge", "idle_ticks", "line_frames", "memory", "needs_dpdk", "needs_root",
           "nic_drops", "number_line", "settled", "tcpreplay", "udp_frame", "veth", "write_pcap"]
