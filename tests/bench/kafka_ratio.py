#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""CPU (user + system, whole process tree) per delivered message of millrace's kafka output, format datagram, beside the sum
of two floors: receiving the same datagrams (floor_recv), and producing as many messages of that size (floor_kafka), to a
real broker, in alternating rounds of one run.

usage: kafka_ratio.py [--rounds 3] [--seconds 3] [--size 100,360,1432,8900] [--workers 1] [--flat-out] [--property K=V …]

Goal: at most 1.4 times the sum. Never a gate: a busy machine shows in the spread."""
import argparse
import json
import os
import random
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("MILLRACE_BUILD", ROOT / "build"))
sys.path[:0] = [str(ROOT / "tests" / "kafka"), str(ROOT / "tests" / "bench")]
from bench import backend_row, cpu_ns, running, settled, threads, tree, wait_for  # noqa: E402
from cluster import Cluster  # noqa: E402

PPS = {100: 60000, 360: 50000, 1432: 25000, 8900: 6000}
# what millrace sets by itself, so that both do the same work
SAME = {"enable.idempotence": "true", "compression.codec": "lz4", "linger.ms": "5"}


def free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def pcap(path, size):
    """512 datagrams of exactly this size, statsd lines."""
    rng = random.Random(1)
    text = b"".join(b"app.web%03d.request.latency.k%06d:%d|ms\n" % (rng.randrange(200), rng.randrange(10000), rng.randrange(1000))
                    for _ in range(512 * size // 38 + 2))
    with open(path, "wb") as f:
        f.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))
        for i in range(512):
            payload = text[i * size:(i + 1) * size]
            udp = struct.pack(">HHHH", 4000, 8125, 8 + size, 0) + payload
            ip = struct.pack(">BBHHHBBHII", 0x45, 0, 20 + len(udp), i, 0, 64, 17, 0, 0x7f000001, 0x7f000001)
            frame = b"\2" * 12 + b"\x08\0" + ip + udp
            f.write(struct.pack("<IIII", i, 0, len(frame), len(frame)) + frame)


def send(port, file, size, a):
    pace = ["--flat-out"] if a.flat_out else ["--pps", str(PPS[size]), "--burst", "16"]
    count = PPS[size] * a.seconds
    subprocess.run([BUILD / "millrace-replay", "-q", *pace, "--repeat", "0", "--count", str(count), "--sources", "16",
                    f"127.0.0.1:{port}", file], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def recv(file, size, a):
    port = free_port()
    with subprocess.Popen([BUILD / "tests" / "floor_recv", str(port), "1"], stdout=subprocess.PIPE, text=True) as p:
        p.stdout.readline()
        send(port, file, size, a)
        return float(re.search(r"ns=(\d+)", p.stdout.read()).group(1))


def produce(kafka, topic, size, a):
    words = [BUILD / "tests" / "floor_kafka", kafka.bootstrap, topic, str(PPS[size] * a.seconds), str(size)]
    words += [f"{k}={v}" for k, v in {**SAME, **a.properties}.items()]
    out = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(re.search(r"ns=(\d+)", out).group(1))


def relay(kafka, topic, file, size, a, folder):
    port, control = free_port(), f"{folder}/c.sock"
    more = "".join(f', {k}: "{v}"' for k, v in a.properties.items())
    conf = f"{folder}/millrace.yaml"
    Path(conf).write_text(f"""
workers: {a.workers}
control: {control}
inputs: {{ in: {{ type: udp, bind: "127.0.0.1:{port}", to: out }} }}
outputs: {{ out: {{ type: kafka, topic: {topic}, format: datagram, {a.options}
                  properties: {{ bootstrap.servers: "{kafka.bootstrap}"{more} }} }} }}
""")

    def is_empty(row):
        return row["queued_records"] + row["in_flight_records"] == 0
    with running(BUILD / "millrace", "-c", conf, stderr=subprocess.DEVNULL) as p:
        wait_for(lambda: backend_row(control), "millrace to serve")
        send(port, file, size, a)  # warm: connections, partitions, memory
        had = settled(lambda: backend_row(control), is_empty)["delivered_records"]
        before, by_thread = cpu_ns(tree(p.pid)), threads(tree(p.pid))
        send(port, file, size, a)
        n = settled(lambda: backend_row(control), is_empty)["delivered_records"] - had
        used = cpu_ns(tree(p.pid)) - before
        if a.threads:
            for key, ns in sorted(threads(tree(p.pid)).items()):
                print(f"      {key[1]:20} {(ns - by_thread.get(key, 0)) / n:8.0f} ns")
    return used / n, n / (PPS[size] * a.seconds)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--seconds", type=int, default=3)
    ap.add_argument("--size", default="100,360,1432,8900")
    ap.add_argument("--workers", type=int, default=1)
    ap.add_argument("--flat-out", action="store_true")
    ap.add_argument("--options", default="", help="more options of the output, each with a comma behind")
    ap.add_argument("--property", action="append", default=[], metavar="K=V")
    ap.add_argument("--threads", action="store_true", help="which thread used how much")
    ap.add_argument("--json")
    a = ap.parse_args()
    a.properties = dict(p.split("=", 1) for p in a.property)
    rows = []
    with Cluster() as kafka, tempfile.TemporaryDirectory() as folder:
        print("   bytes    receive    produce        sum   millrace   ratio  delivered")
        for size in map(int, a.size.split(",")):
            file = f"{folder}/{size}.pcap"
            pcap(file, size)
            rounds = []
            for i in range(a.rounds):
                kafka.create_topics(f"t{size}-{i}:4")
                rounds.append((recv(file, size, a), produce(kafka, f"t{size}-{i}", size, a),
                               *relay(kafka, f"t{size}-{i}", file, size, a, folder)))
                kafka.delete_topics(f"t{size}-{i}")
            r, k, m, share = (statistics.median(c) for c in zip(*rounds))
            low, high = min(x[2] for x in rounds), max(x[2] for x in rounds)
            rows.append({"bytes": size, "receive_ns": r, "produce_ns": k, "millrace_ns": m, "ratio": m / (r + k), "delivered": share})
            print(f"{size:8} {r:10.0f} {k:10.0f} {r + k:10.0f} {m:10.0f} {m / (r + k):7.2f} {100 * share:8.2f} %   "
                  f"({low:.0f}..{high:.0f})", flush=True)
    if a.json:
        Path(a.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
