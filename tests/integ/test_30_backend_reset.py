# SPDX-License-Identifier: MIT
"""Backends that reset, go away and come back: only whole lines are sent again, and the bounds hold."""
import socket

import pytest
from conftest import wait_for
from faults import Counters, Sender, wait_settled, wait_up


def prove_bounds(millrace, sink, sent):
    """After the load, with the backends up: missing ≤ at_risk, doubled ≤ resent, no line torn. (missing, doubles, counters)"""
    counters = wait_settled(millrace, sent["datagrams"], timeout=30)
    delivered = counters.sum("backend", "delivered_records")
    report = wait_for(lambda: (lambda r: r if r["unread_bytes"] == 0 and r["unfinished"] == 0 else None)(sink.report()),
                      "the sink to read all")
    assert delivered + counters.dropped() == sent["lines"]
    missing = sent["lines"] - report["distinct"]
    assert 0 <= missing <= counters.at_risk() + counters.dropped()
    assert report["doubles"] <= counters.resent()
    assert (report["malformed"], report["outside"]) == (0, 0)
    millrace.check()
    return missing, report["doubles"], counters


@pytest.mark.parametrize("resets", [6, pytest.param(50, marks=pytest.mark.soak)])
def test_resets_under_load(bench, resets):
    sink = bench.sink("--number", "--keys", 10000, ports=3)
    millrace = bench.millrace(backends=sink.addresses, workers=2)
    sender = Sender(bench, "--sources", 64, "--pps", 2000, "--bytes", 600, "--time", "600s")
    for i in range(resets):
        wait_up(millrace, 3)
        before = sink.report()
        sink.wait_lines(before["lines"] + 10000)
        sink.ask(f"reset {sink.ports[i % 3]}")
        wait_for(lambda: Counters(millrace).sum("backend", "disconnects") >= (i + 1) * 2, "both workers to notice")
        millrace.check()
    wait_up(millrace, 3)
    missing, doubles, counters = prove_bounds(millrace, sink, sender.stop())
    disconnects = counters.sum("backend", "disconnects")
    print(f"{resets} resets: {disconnects} connections lost, missing {missing} of at most {counters.at_risk()}, doubled "
          f"{doubles} of at most {counters.resent()}")
    assert disconnects == 2 * resets and counters.dropped() == 0
    assert counters.at_risk() > 0


def test_reset_every_50_ms(bench):
    """More often than a connection lasts: the lines get through between."""
    sink = bench.sink("--number", "--keys", 10000, "--reset-every", "50ms", ports=2)
    millrace = bench.millrace(workers=2, conf=f"""
workers: 2
inputs: {{ udp: {{ type: udp, bind: "127.0.0.1:{{port}}", to: [out] }} }}
outputs: {{ out: {{ type: statsite, backends: [{", ".join(sink.addresses)}], reconnect_min: 10ms, reconnect_max: 20ms }} }}
""")
    sent = bench.replay("--number", "--sources", 64, "--pps", 2000, "--bytes", 600, "--time", "2s")
    missing, doubles, counters = prove_bounds(millrace, sink, sent)
    assert counters.sum("backend", "disconnects") > 20
    print(f"missing {missing} of at most {counters.at_risk()}, doubled {doubles} of at most {counters.resent()}")


def test_what_a_stalled_peer_never_read_is_at_risk(bench):
    """Not vacuous: acknowledged by the peer's kernel, thrown away by its reset. Missing, and covered by at_risk alone."""
    sink = bench.sink("--number", "--stall", "--rcvbuf", "64KiB")
    millrace = bench.millrace(backends=sink.addresses, workers=1)
    sent = bench.replay("--number", "--lines", 100000, "--bytes", 1432, "--pps", 2000)
    counters = wait_for(lambda: (lambda c: c if c.sum("backend", "delivered_records") > 1000 and
                                 c.sum("input", "received_lines") == sent["lines"] else None)(Counters(millrace)),
                        "the peer's kernel to acknowledge")
    sink.ask("reset")
    sink.ask("stall off")
    wait_up(millrace, 1)
    missing, _, counters = prove_bounds(millrace, sink, sent)
    assert missing > 1000
    assert missing > counters.dropped() + counters.lost_at_death(), "without at_risk the bound would not hold"


def test_line_cut_by_the_reset_is_sent_whole(bench):
    """Small buffers and long lines: a reset comes within a line nearly every time."""
    sink = bench.sink("--rcvbuf", "4KiB", "--slow", 200000, "--out", "lines.txt")
    millrace = bench.millrace(backends=sink.addresses, workers=1, listen=("tcp",))
    lines = [f"long.{i:06d}.{'x' * (3000 + i % 500)}:{i}|c" for i in range(600)]
    with socket.create_connection(("127.0.0.1", bench.port)) as c:
        c.sendall("".join(line + "\n" for line in lines).encode())
    for _ in range(3):
        had = sink.report()["lines"]
        wait_for(lambda: sink.report()["lines"] > had + 5, "lines to arrive")
        sink.ask("reset")
        wait_up(millrace, 1)
    sink.ask("slow off")
    counters = wait_settled(millrace)
    report = wait_for(lambda: (lambda r: r if r["unread_bytes"] == 0 and r["unfinished"] == 0 else None)(sink.report()),
                      "the sink to read all")
    arrived = (bench.path / "lines.txt").read_text().splitlines()
    assert len(arrived) == report["lines"]
    assert set(arrived) <= set(lines), "a line was torn"
    assert len(lines) - len(set(arrived)) <= counters.at_risk()
    assert len(arrived) - len(set(arrived)) <= counters.resent()
    assert report["cut"] > 0, "no reset came within a line"


@pytest.mark.parametrize("seconds", [1, pytest.param(5, marks=pytest.mark.soak)])
def test_backend_away_and_back(bench, seconds):
    """Nothing is lost while the queues suffice, and nothing arrives twice: nothing was under way when it went."""
    sink = bench.sink("--number", "--keys", 10000, ports=3)
    millrace = bench.millrace(backends=sink.addresses, workers=2)
    first = bench.replay("--number", "--lines", 10000, "--sources", 16)
    sink.wait_lines(first["lines"])
    wait_settled(millrace)
    away = sink.ports[0]
    sink.ask(f"refuse on {away}")
    wait_up(millrace, 1, "down")
    second = bench.replay("--number", "--number-from", 10000, "--sources", 16, "--pps", 2000, "--bytes", 600,
                          "--time", f"{seconds}s")
    waiting = wait_for(lambda: Counters(millrace).sum("backend", "queued_records"), "lines to wait")
    assert waiting > 0
    millrace.check()
    sink.ask(f"refuse off {away}")
    wait_up(millrace, 3)
    lines = first["lines"] + second["lines"]
    report = sink.wait_lines(lines)
    assert (report["distinct"], report["doubles"], report["malformed"]) == (lines, 0, 0)
    counters = wait_settled(millrace)
    assert counters.sum("backend", "delivered_records") == lines
    assert (counters.dropped(), counters.resent()) == (0, 0)
    address = f"127.0.0.1:{away}"
    millrace.wait_line(rf"WARN worker \d: backend {address} down: .*; holding up to 64 MiB")
    millrace.wait_line(rf"INFO worker \d: backend {address} up after .*, 0 dropped")


def test_backend_down_at_start(bench):
    sink = bench.sink("--number")
    sink.ask("refuse on")
    millrace = bench.millrace(backends=sink.addresses)
    sent = bench.replay("--number", "--lines", 5000, "--sources", 16)
    wait_for(lambda: Counters(millrace).sum("backend", "queued_records") == sent["lines"], "all lines to wait")
    sink.ask("refuse off")
    report = sink.wait_lines(sent["lines"])
    assert (report["distinct"], report["doubles"]) == (sent["lines"], 0)
