# SPDX-License-Identifier: MIT
"""One backend that stalls, is stopped or vanishes behind a dead link costs the others nothing, and is noticed."""
import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest
from conftest import BUILD, wait_for
from faults import Counters, Sender, signal_all, wait_settled, wait_stopped, wait_up

pytestmark = pytest.mark.usefixtures("apart")


def test_stalled_one_of_three_costs_the_others_nothing(bench):
    sink = bench.sink("--number", "--keys", 10000, "--rcvbuf", "64KiB", ports=3)
    millrace = bench.millrace(backends=sink.addresses, workers=2)
    sink.ask(f"stall on {sink.ports[0]}")
    sender = Sender(bench, "--sources", 64, "--pps", 1000, "--time", "2s")
    worst = 0
    while sender.runs:  # the others have what was offered to them, at any moment but the last
        offered = {a: Counters(millrace).sum("backend", "offered_records", backend=a) for a in sink.addresses[1:]}
        began = time.monotonic()
        wait_for(lambda: all(p["lines"] >= offered[p["address"]] for p in sink.report()["ports"][1:]), "the others' lines")
        worst = max(worst, time.monotonic() - began)
    sent = sender.finish()
    counters = wait_for(lambda: (lambda c: c if c.sum("input", "received_lines") == sent["lines"] else None)(
        Counters(millrace)), "all to be read")
    to_others = sum(counters.sum("backend", "offered_records", backend=a) for a in sink.addresses[1:])
    wait_for(lambda: sum(p["lines"] for p in sink.report()["ports"][1:]) == to_others, "the others' lines")
    stalled = sink.report()["ports"][0]
    assert stalled["lines"] == 0 and stalled["stalled"]
    assert counters.dropped() == 0 and counters.waiting(worker=0) + counters.waiting(worker=1) > 0
    print(f"worst wait for what was offered to the others: {worst * 1000:.0f} ms")
    sink.ask(f"stall off {sink.ports[0]}")
    report = sink.wait_lines(sent["lines"])
    assert (report["distinct"], report["doubles"], report["malformed"]) == (sent["lines"], 0, 0)


def start_impatient(bench, backends):
    return bench.millrace(conf=f"""
workers: 2
inputs: {{ udp: {{ type: udp, bind: "127.0.0.1:{{port}}", to: [out] }} }}
outputs:
  out: {{ type: statsite, backends: [{", ".join(f'"{b}"' for b in backends)}], user_timeout: 1s, reconnect_max: 300ms }}
""")


def prove(millrace, sent, report):
    counters = wait_settled(millrace, sent["datagrams"], 30)
    report = wait_for(lambda: (lambda r: r if r["unread_bytes"] == 0 and r["unfinished"] == 0 else None)(report()),
                      "the sink to read all")
    assert counters.sum("backend", "delivered_records") == sent["lines"] and counters.dropped() == 0
    assert 0 <= sent["lines"] - report["distinct"] <= counters.at_risk()
    assert report["doubles"] <= counters.resent()
    assert report["malformed"] == 0


def test_stopped_peer_is_noticed(bench):
    """SIGSTOP: its kernel goes on answering, its window stays shut. After user_timeout the connection is given up; when
    the peer wakes up it gets its lines, whole, within the bounds."""
    sink, good = bench.sink("--number", "--rcvbuf", "16KiB"), bench.sink()
    millrace = start_impatient(bench, sink.addresses + good.addresses)
    bench.replay("--number", "--lines", 1000, "--sources", 16)
    wait_settled(millrace)
    os.kill(sink.pid, signal.SIGSTOP)
    wait_stopped([sink.pid])
    sent = bench.replay("--number", "--number-from", 1000, "--lines", 400000, "--bytes", 8900, "--pps", 1000, "--sources", 16)
    address = re.escape(sink.addresses[0])
    millrace.wait_line(rf"backend {address} down: Connection timed out; holding up to 64 MiB", 15)
    counters = Counters(millrace)
    assert counters.sum("backend", "up", backend=good.addresses[0]) == 2
    signal_all([sink.pid], signal.SIGCONT)
    millrace.wait_line(rf"backend {address} up after .*, 0 dropped", 15)
    wait_settled(millrace, timeout=30)
    offered = Counters(millrace).sum("backend", "offered_records", backend=sink.addresses[0])
    report = wait_for(lambda: (lambda r: r if r["unread_bytes"] == 0 and r["unfinished"] == 0 else None)(sink.report()),
                      "the sink to read all")
    counters = Counters(millrace)
    assert offered - report["distinct"] <= counters.at_risk()
    assert report["doubles"] <= counters.resent() and report["malformed"] == 0
    assert counters.sum("backend", "offered_records") == sent["lines"] + 1000


def test_link_down_is_noticed(own_network, bench):
    """A backend behind a cable that is pulled: no reset, no answer. Given up after user_timeout, found again later."""
    peer = bench.run("unshare", "-n", "sleep", "300")
    if not shutil.which("ip"):
        pytest.skip("needs ip (iproute2)")

    def ip(*words, inside=False):
        prefix = ["nsenter", "-t", str(peer.pid), "-n"] if inside else []
        subprocess.run([*prefix, "ip", *words], check=True)
    wait_for(lambda: os.readlink(f"/proc/{peer.pid}/ns/net") != os.readlink("/proc/thread-self/ns/net"), "the namespace")
    ip("link", "add", "m0", "type", "veth", "peer", "name", "m1", "netns", str(peer.pid))
    ip("addr", "add", "10.99.0.1/24", "dev", "m0")
    ip("addr", "add", "10.99.0.2/24", "dev", "m1", inside=True)
    ip("link", "set", "m0", "up")
    ip("link", "set", "m1", "up", inside=True)
    sink = bench.run("nsenter", "-t", str(peer.pid), "-n", BUILD / "millrace-sink", "--number", "--json", "10.99.0.2:9000")
    sink.wait_line("listening", stream="out")
    millrace = start_impatient(bench, ["10.99.0.2:9000"])
    wait_up(millrace, 1)

    def report():
        n = len(sink.out)
        sink.send_signal(signal.SIGUSR1)
        wait_for(lambda: len(sink.out) > n, "a report")
        return json.loads(sink.out[n])
    sender = Sender(bench, "--sources", 16, "--pps", 1000, "--bytes", 600, "--time", "60s")
    wait_for(lambda: report()["lines"] > 10000, "lines to flow")
    ip("link", "set", "m1", "down", inside=True)
    millrace.wait_line(r"backend 10\.99\.0\.2:9000 down: .*; holding up to 64 MiB", 20)
    millrace.check()
    ip("link", "set", "m1", "up", inside=True)
    millrace.wait_line(r"backend 10\.99\.0\.2:9000 up after .*, 0 dropped", 20)
    prove(millrace, sender.stop(), report)
