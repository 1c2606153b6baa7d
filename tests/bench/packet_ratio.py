#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""CPU (user + system, whole process tree) per delivered packet of millrace's capture, formats packet and pcap, beside the sum of
two floors: reading the same packets (floor_pcap), and producing as many messages of that size (floor_kafka), to a real broker,
in alternating rounds of one run. Needs root: it makes a network namespace with a veth pair of its own.

usage: packet_ratio.py [--rounds 3] [--seconds 3] [--size 360,1400] [--pps 50000] [--workers 1] [--threads] [--random]
                       [--property K=V …]

--random: payloads that cannot be compressed, as encrypted traffic; else text, of which lz4 takes the greater part of the CPU.

Goals: packet at most 1.4 times the sum; pcap at most a third of packet at 360 bytes. Never a gate."""
import argparse
import ctypes
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("MILLRACE_BUILD", ROOT / "build"))
sys.path[:0] = [str(ROOT / "tests" / "kafka"), str(ROOT / "tests" / "bench")]
from bench import backend_row, running, settled, threads, tree, wait_for  # noqa: E402
from cluster import Cluster  # noqa: E402

# what millrace sets by itself, so that both do the same work
SAME = {"enable.idempotence": "true", "compression.codec": "lz4", "linger.ms": "5"}


def own_network():
    if ctypes.CDLL(None).unshare(0x40000000) != 0:
        sys.exit("packet_ratio.py: a network namespace of its own needs root")
    for words in ("lo up", ):
        subprocess.run(["ip", "link", "set", *words.split()], check=True)
    subprocess.run("ip link add va type veth peer name vb".split(), check=True)
    for name in ("va", "vb"):
        Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
        subprocess.run(["ip", "link", "set", name, "up", "mtu", "9000"], check=True)


def pcap(path, size, is_random, flows=64):
    """1,000 frames of exactly this size; their text is as well compressed as floor_kafka's."""
    text = b"".join(b"app.web%03d.request.latency.k%06d:%d|ms\n" % (k * 7 % 200, k * 2654435761 % 10000, k % 1000)
                    for k in range(1000 * size // 36 + 2))
    with open(path, "wb") as f:
        f.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))
        for i in range(1000):
            payload = os.urandom(size - 42) if is_random else text[i * size:(i + 1) * size][:size - 42]
            udp = struct.pack(">HHHH", 4000 + i % flows, 8125, 8 + len(payload), 0) + payload
            ip = struct.pack(">BBHHHBBHII", 0x45, 0, 20 + len(udp), i, 0, 64, 17, 0, 0x0a000001, 0x0a000002)
            frame = b"\2" * 12 + b"\x08\0" + ip + udp
            f.write(struct.pack("<IIII", i, 0, len(frame), len(frame)) + frame)


def send(file, a):
    n = a.pps * a.seconds
    out = subprocess.run(["tcpreplay", "-K", "-q", "--pps", str(a.pps), "--loop", str(n // 1000), "-i", "va", file],
                         check=True, capture_output=True, text=True).stdout
    assert int(re.search(r"Successful packets:\s+(\d+)", out).group(1)) == n
    return n


def read(file, a):
    with subprocess.Popen([BUILD / "tests" / "floor_pcap", "vb"], stdout=subprocess.PIPE, text=True) as p:
        p.stdout.readline()
        send(file, a)
        return float(re.search(r"ns=(\d+)", p.stdout.read()).group(1))


def produce(kafka, topic, size, a):
    words = [BUILD / "tests" / "floor_kafka", kafka.bootstrap, topic, str(a.pps * a.seconds), str(size)]
    out = subprocess.run(words + [f"{k}={v}" for k, v in {**SAME, **a.properties}.items()], stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(re.search(r"ns=(\d+)", out).group(1))


def capture(kafka, topic, fmt, file, a, folder):
    control, conf = f"{folder}/c.sock", f"{folder}/millrace.yaml"
    more = "".join(f', {k}: "{v}"' for k, v in a.properties.items())
    Path(conf).write_text(f"""
workers: {a.workers}
control: {control}
inputs: {{ in: {{ type: capture, interface: vb, to: out }} }}
outputs: {{ out: {{ type: kafka, topic: {topic}, format: {fmt}, properties: {{ bootstrap.servers: "{kafka.bootstrap}"{more} }} }} }}
""")

    def delivered():
        return settled(lambda: backend_row(control), lambda r: r["queued_records"] + r["in_flight_records"] == 0)["delivered_records"]
    with running(BUILD / "millrace", "-c", conf, stderr=subprocess.DEVNULL) as p:
        wait_for(lambda: backend_row(control), "millrace to serve")
        send(file, argparse.Namespace(pps=a.pps, seconds=1))  # warm: connections, partitions, memory
        had = delivered()
        before = threads(tree(p.pid))
        sent = send(file, a)
        n = delivered() - had
        after = threads(tree(p.pid))
        if a.threads:
            for key, ns in sorted(after.items()):
                print(f"      {key[1]:20} {(ns - before.get(key, 0)) / n:8.0f} ns")
    a.threads and print(fmt)
    return sum(ns - before.get(key, 0) for key, ns in after.items()) / n, n / sent


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--seconds", type=int, default=3)
    ap.add_argument("--size", default="360,1400")
    ap.add_argument("--pps", type=int, default=50000)
    ap.add_argument("--workers", type=int, default=1)
    ap.add_argument("--threads", action="store_true", help="which thread used how much")
    ap.add_argument("--random", action="store_true", help="payloads that cannot be compressed")
    ap.add_argument("--property", action="append", default=[], metavar="K=V")
    ap.add_argument("--json")
    a = ap.parse_args()
    a.properties = dict(p.split("=", 1) for p in a.property)
    rows = []
    own_network()
    with Cluster() as kafka, tempfile.TemporaryDirectory() as folder:
        print("   bytes    read  produce     sum   packet  ratio    pcap  packet/pcap  delivered")
        for size in map(int, a.size.split(",")):
            file = f"{folder}/{size}.pcap"
            pcap(file, size, a.random)
            rounds = []
            for i in range(a.rounds):
                topic = f"t{size}-{i}"
                kafka.create_topics(f"{topic}:4")
                rounds.append((read(file, a), produce(kafka, topic, size, a), *capture(kafka, topic, "packet", file, a, folder),
                               *capture(kafka, topic, "pcap", file, a, folder)))
                kafka.delete_topics(topic)
            r, k, packet, share, many, many_share = (statistics.median(c) for c in zip(*rounds))
            rows.append({"bytes": size, "read_ns": r, "produce_ns": k, "packet_ns": packet, "pcap_ns": many,
                         "ratio": packet / (r + k), "packet_to_pcap": packet / many, "delivered": min(share, many_share)})
            print(f"{size:8} {r:7.0f} {k:8.0f} {r + k:7.0f} {packet:8.0f} {packet / (r + k):6.2f} {many:7.0f} {packet / many:12.2f} "
                  f"{100 * min(share, many_share):9.2f} %", flush=True)
    if a.json:
        Path(a.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
