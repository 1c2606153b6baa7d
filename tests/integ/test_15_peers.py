# SPDX-License-Identifier: MIT
"""Real peers: statsd 0.9.0 (npm) as backend, hot-shots (npm), netcat and bash as senders."""
import fcntl
import json
import re
import shutil
import subprocess
from collections import Counter

import pytest

from conftest import ROOT, free_port, wait_for
from peers import Collector, one_input, send_datagrams, send_stream, wait_counters

NODE = ROOT / "tests" / "integ" / "node"


@pytest.fixture(scope="session")
def node_modules():
    """The packages of the lock file, installed once into build/node, whoever of xdist's workers comes first."""
    place = ROOT / "build" / "node"
    place.mkdir(parents=True, exist_ok=True)
    with open(place / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done, wanted = place / ".installed", (NODE / "package-lock.json").read_text()
        if not done.exists() or done.read_text() != wanted:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(NODE / name, place)
            r = subprocess.run(["npm", "ci", "--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=place,
                               capture_output=True, text=True, timeout=300)
            assert r.returncode == 0, r.stdout + r.stderr
            done.write_text(wanted)
    return place / "node_modules"


class Statsd:
    """The real statsd with its TCP or UDP server, and what it flushed."""

    def __init__(self, bench, modules, server, backend):
        self.ports = [free_port(), free_port()]
        self.server, self.backend = server, backend
        self.file = bench.path / f"flushed.{self.ports[0]}"
        self.file.touch()
        conf = bench.path / f"statsd.{self.ports[0]}.js"
        conf.write_text(json.dumps({
            "servers": [{"server": f"./servers/{server}", "address": "127.0.0.1", "port": self.ports[0]}],
            "mgmt_address": "127.0.0.1", "mgmt_port": self.ports[1], "flushInterval": 100, "deleteIdleStats": True,
            "backends": [str(NODE / "file_backend.js") if backend == "file" else "./backends/console"],
            "console": {"prettyprint": False}, "flushFile": str(self.file)}))
        self.process = bench.run("node", modules / "statsd" / "stats.js", conf)
        self.address = f"127.0.0.1:{self.ports[0]}" + (":udp" if server == "udp" else "")
        wait_for(self.is_up, "statsd to start", 20)

    def is_up(self):
        if self.process.p.poll() is not None:
            pytest.fail("statsd ended:\n" + "\n".join(self.process.err))
        return self.file.stat().st_size > 0 or any("Flushing" in line for line in self.process.out)

    def counters(self):
        """Sums over all flushes."""
        total = Counter()
        if self.backend == "file":
            for flush in self.flushes():
                total.update(flush["counters"])
        else:
            inside = False  # counters: { 'a.b': 12, ... } as console.log shows it
            for line in list(self.process.out):
                inside = inside or line.startswith("  counters:")
                if inside:
                    for key, value in re.findall(r"'?([\w.]+)'?: (\d+)(?=[,\s}]|$)", line.removeprefix("  counters:")):
                        total[key] += int(value)
                inside = inside and "}" not in line
        return total

    def flushes(self):
        return [json.loads(line) for line in self.file.read_text().split("\n")[:-1]]


def sums(lines):
    total = Counter()
    for line in lines:
        key, value = line.split(b"|")[0].split(b":")
        total[key.decode()] += int(value)
    return total


@pytest.mark.parametrize("server", ["tcp", "udp"])
@pytest.mark.parametrize("backend", ["file", "console"])
def test_flushed_sums_equal_what_was_sent(bench, node_modules, server, backend):
    """Two statsd behind two workers: 20,000 counters of 50 keys; every key at one of them, the sums to the unit."""
    statsds = [Statsd(bench, node_modules, server, backend) for _ in range(2)]
    millrace = bench.millrace(conf=one_input(bench, "udp", [s.address for s in statsds], workers=2))
    lines = [b"app.requests.k%d:%d|c" % (i % 50, i % 1000 + 1) for i in range(20000)]

    def flushed():
        found = Counter()
        for s in statsds:
            found.update({k: v for k, v in s.counters().items() if k.startswith("app.")})
        return found
    for at in range(0, 20000, 2500):  # statsd's UDP buffer is small: what it has flushed has left it
        for part in range(at, at + 2500, 100):
            send_datagrams(bench, "udp", b"\n".join(lines[part:part + 100]) + b"\n")
        wanted = sums(lines[:at + 2500])
        wait_for(lambda: sum(flushed().values()) >= sum(wanted.values()), f"{at + 2500} lines to be flushed", 20)
    assert flushed() == wanted
    wait_counters(millrace, received_lines=20000, to_outputs_lines=20000)
    keys = [{k for k, v in s.counters().items() if k.startswith("app.") and v} for s in statsds]
    assert not keys[0] & keys[1] and all(keys)
    assert sum(s.counters()["statsd.metrics_received"] for s in statsds) == 20000
    assert all(s.counters()["statsd.bad_lines_seen"] == 0 for s in statsds)


def test_timers_gauges_and_sets(bench, node_modules):
    statsd = Statsd(bench, node_modules, "tcp", "file")
    bench.millrace(conf=one_input(bench, "tcp", [statsd.address], workers=2))
    lines = [f"t:{i}|ms\ng:{i}|g\ns:user{i % 7}|s\n%s:1|c\nr:1|c|@0.5\n" for i in range(500)]
    send_stream(bench, "tcp", "".join(lines).encode())
    wait_for(lambda: statsd.counters()["r"] == 1000, "the last flush", 20)
    flushes = statsd.flushes()
    assert sorted(x for f in flushes for x in f["timers"].get("t", [])) == list(range(500))
    assert [f["gauges"]["g"] for f in flushes if "g" in f["gauges"]][-1] == 499
    assert {x for f in flushes for x in f["sets"].get("s", [])} == {f"user{i}" for i in range(7)}
    assert statsd.counters()["s"] == 500  # statsd takes the % out of the key


@pytest.mark.parametrize("protocol", ["udp", "tcp", "stream"])
def test_hot_shots_as_client(bench, node_modules, protocol):
    """Every metric that the library sends is valid, whole, and arrives once; counters and sets add up."""
    backend = Collector(bench)
    transport = {"stream": "unix"}.get(protocol, protocol)
    millrace = bench.millrace(conf=one_input(bench, transport, backend.addresses, workers=2))
    target = bench.path / "in.sock" if protocol == "stream" else bench.port
    r = subprocess.run(["node", NODE / "client.js", node_modules / "hot-shots", protocol, str(target), "1000"],
                       capture_output=True, text=True, timeout=60)
    assert (r.returncode, r.stderr) == (0, "")
    n = json.loads(r.stdout)["lines"]
    lines = backend.wait_lines(n)
    assert len(lines) == n == 8000
    kinds = Counter(line.split(b":")[0] for line in lines)
    assert kinds == {
    b"hot." +
    k: 1000 for k in (
        b"requests",
        b"bytes",
        b"latency",
        b"depth",
        b"users",
        b"size",
        b"dist",
         b"sampled")}
    assert sum(int(x.split(b":")[1].split(b"|")[0]) for x in lines if x.startswith(b"hot.bytes")) == sum(range(1000))
    assert sum(b"|#env:test,host:a" in x for x in lines) == 1000
    c = wait_counters(millrace, to_outputs_lines=n)
    assert c["invalid_lines"] == 0


@pytest.mark.parametrize("transport,command", [
    ("tcp", "printf 'a:1|c\\nb:2|ms\\n' | nc -N 127.0.0.1 {port}"),
    ("tcp", "printf 'a:1|c\\nb:2|ms' | nc -N 127.0.0.1 {port}"),
    ("udp", "printf 'a:1|c\\nb:2|ms\\n' | nc -u -w1 127.0.0.1 {port}"),
    ("unix", "printf 'a:1|c\\nb:2|ms\\n' | nc -N -U {path}"),
    ("unixgram", "printf 'a:1|c\\nb:2|ms\\n' | nc -u -w1 -U {path}"),
    ("udp", "echo -n 'a:1|c' > /dev/udp/127.0.0.1/{port}; echo 'b:2|ms' > /dev/udp/127.0.0.1/{port}"),
    ("tcp", "echo -n 'a:1|c' > /dev/tcp/127.0.0.1/{port}; echo 'b:2|ms' > /dev/tcp/127.0.0.1/{port}"),
    ("udp", "exec 3<>/dev/udp/127.0.0.1/{port}; echo 'a:1|c' >&3; echo 'b:2|ms' >&3"),
])
def test_netcat_and_bash(bench, transport, command):
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, transport, backend.addresses))
    command = command.format(port=bench.port, path=bench.path / "in.sock")
    r = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20, cwd=bench.path)
    assert r.returncode == 0, r.stderr
    assert sorted(backend.wait_lines(2)) == [b"a:1|c", b"b:2|ms"]
    assert wait_counters(millrace, received_lines=2)["invalid_lines"] == 0


def test_bash_asks_for_status(bench):
    backend = Collector(bench)
    bench.millrace(conf=one_input(bench, "tcp", backend.addresses))
    r = subprocess.run(["bash",
    "-c",
    f"exec 3<>/dev/tcp/127.0.0.1/{bench.port}; echo status >&3; "
    "while IFS= read -r line <&3 && [ -n \"$line\" ]; do echo \"$line\"; done"],
    capture_output=True,
    text=True,
     timeout=20)
    assert r.stdout.splitlines()[0].startswith("global bytes_recv_udp gauge ")
    assert len(r.stdout.splitlines()) == 10
