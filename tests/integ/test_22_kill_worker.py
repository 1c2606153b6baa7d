# SPDX-License-Identifier: MIT
"""kill -9 of workers: what is missing is at most what the obituaries and counters say, and they say no more than the
worker had in memory."""
import os
import random
import re
import signal
import subprocess

import pytest
from conftest import BUILD, free_port, wait_for
from faults import Counters, Sender, child_names, kill_worker, send_datagrams, wait_ready, wait_settled, wait_stopped
from peers import Collector
from reload_rig import Config

pytestmark = pytest.mark.usefixtures("apart")

LINES_A_DATAGRAM = 35  # of 600 bytes
HAND = 64 * LINES_A_DATAGRAM  # the most that one recvmmsg reads


def prove_bounds(millrace, sink, sent):
    """After the load: (missing, the counters)."""
    counters = wait_settled(millrace, sent["datagrams"])
    assert counters.kernel_drops() == 0
    received = counters.sum("input", "received_datagrams")
    assert received == sent["datagrams"], "the kernel's queue did not survive"
    arrived = counters.sum("backend", "delivered_records")
    report = wait_for(lambda: (lambda r: r if r["distinct"] >= arrived and r["unread_bytes"] == 0 else None)(sink.report()),
                      "what was delivered to arrive")
    missing = sent["lines"] - report["distinct"]
    assert 0 <= missing <= counters.lost_at_death() + counters.at_risk()
    assert report["doubles"] <= counters.resent()
    assert (report["malformed"], report["outside"]) == (0, 0)
    assert counters.unbalanced() == []
    millrace.check()
    return missing, counters


@pytest.mark.parametrize("kills, workers", [
    (8, 4), pytest.param(50, 8, marks=pytest.mark.soak),
])
def test_random_kills_under_load(bench, kills, workers):
    rng = random.Random(kills)
    sink = bench.sink("--number", "--keys", 10000, ports=3)
    millrace = bench.millrace(backends=sink.addresses, workers=workers)
    sender = Sender(bench, "--sources", 64, "--pps", 3000, "--bytes", 600, "--time", "300s")
    total, largest = 0, 0
    for i in range(kills):
        slot, pid = rng.choice(sorted(wait_for(millrace.worker_pids, "a worker").items()))
        had = Counters(millrace).sum("input", "received_lines", worker=slot)
        wait_for(lambda: Counters(millrace).sum("input", "received_lines", worker=slot) > had + 5000 or
                 slot not in millrace.worker_pids(), f"lines to flow through worker {slot}")
        lost, in_hand, queued = kill_worker(millrace, slot, pid)
        total += lost
        largest = max(largest, lost)
        assert lost == in_hand + queued
        assert Counters(millrace).lost_at_death() == total, "the obituary and the counters differ"
        millrace.check()
    assert sender.runs
    sent = sender.stop()
    wait_ready(millrace, timeout=40)
    missing, counters = prove_bounds(millrace, sink, sent)
    print(f"{kills} kills: {sent['lines']} lines, bound {total}, missing {missing}, largest bound {largest}")
    # Not trivial: a second's worth of one worker's lines would be a bound that says nothing.
    assert 0 < total and largest < 3000 * LINES_A_DATAGRAM / 2
    assert counters.unbalanced(without=["lost_at_death_records", "lost_at_death_lines"]) != []


def test_bound_is_what_the_worker_held(bench):
    """Stopped first, so that its counters can be read: the bound is exactly its queues and at most one read more."""
    sink = bench.sink("--number", ports=3)
    millrace = bench.millrace(backends=sink.addresses, workers=2)
    sender = Sender(bench, "--sources", 64, "--pps", 3000, "--bytes", 600, "--time", "300s")
    sink.wait_lines(20000)
    bounds = 0
    for _ in range(3):
        slot, pid = sorted(wait_ready(millrace).items())[0]
        os.kill(pid, signal.SIGSTOP)
        wait_stopped([pid])
        if millrace.ctl("check", check=False).returncode != 0:
            os.kill(pid, signal.SIGCONT)  # stopped within a publication: its page cannot be read
            continue
        held = Counters(millrace).waiting(worker=slot)
        lost, in_hand, queued = kill_worker(millrace, slot, pid)
        assert queued == held
        assert in_hand <= HAND
        bounds += lost
    sent = sender.stop()
    wait_ready(millrace)
    _, counters = prove_bounds(millrace, sink, sent)
    assert counters.lost_at_death() == bounds


def test_missing_is_real_and_a_left_out_counter_shows(bench):
    """Not vacuous: lines that wait for a stalled backend die with their worker, to the line."""
    sink = bench.sink("--number", "--stall", "--rcvbuf", "8KiB")
    millrace = bench.millrace(backends=sink.addresses, workers=1)
    sent = bench.replay("--number", "--lines", 400000, "--bytes", 8900, "--pps", 1000)
    wait_for(lambda: Counters(millrace).sum("input", "received_lines") == sent["lines"], "all lines to be read")
    before = Counters(millrace)
    assert before.sum("backend", "queued_records") > 0
    lost, in_hand, queued = kill_worker(millrace, 0, millrace.worker_pids()[0])
    assert in_hand == 0 and 0 < queued <= sent["lines"]
    wait_ready(millrace)
    sink.ask("stall off")
    missing, counters = prove_bounds(millrace, sink, sent)
    assert missing >= before.sum("backend", "queued_records"), "what was never sent cannot have arrived"
    assert missing > 0
    # The equations notice each counter that is left out.
    assert counters.sum("backend", "offered_records") == sent["lines"]
    (block, went_in, came_out), = counters.unbalanced(without=["lost_at_death_records"])
    assert block[0] == "backend" and went_in - came_out == lost
    assert counters.unbalanced(without=["delivered_records"]) != []


def test_held_batch_is_counted_at_death(bench):
    """overflow: block holds a batch in hand; killed then, the worker takes it along, and it is counted."""
    sink = bench.sink("--number", "--stall", "--rcvbuf", "8KiB")
    millrace = bench.millrace(workers=1, conf=f"""
workers: 1
inputs: {{ udp: {{ type: udp, bind: "127.0.0.1:{{port}}", to: [out] }} }}
outputs: {{ out: {{ type: statsite, backends: ["{sink.addresses[0]}"], queue_limit: 128KiB, overflow: block }} }}
""")
    pid = millrace.worker_pids()[0]
    os.kill(pid, signal.SIGSTOP)
    wait_stopped([pid])
    sent = bench.replay("--number", "--lines", 300000, "--bytes", 8900, "--flat-out")
    os.kill(pid, signal.SIGCONT)  # finds full batches of 64 datagrams, more than the queue takes
    before = wait_for(lambda: (lambda c: c if c.sum("input", "held") and c.sum("output", "held_records") else None)(
        Counters(millrace)), "the input to be held")
    lost, in_hand, _ = kill_worker(millrace, 0, pid)
    after = Counters(millrace)
    assert in_hand > 0, "the rest of the batch was not counted"
    assert after.lost_at_death() == lost
    assert after.sum("output", "lost_at_death_records") >= before.sum("output", "held_records") > 0
    assert after.sum("input", "lost_at_death_datagrams") == 0, "the held batch's datagrams were counted before"
    for name in ("lost_at_death_records", "lost_at_death_lines"):
        assert after.unbalanced(without=[name]) != []
    wait_ready(millrace)
    sink.ask("stall off")
    missing, _ = prove_bounds(millrace, sink, sent)
    assert missing > 0


def test_all_workers_killed_at_once(bench):
    sink = bench.sink("--number", ports=2)
    millrace = bench.millrace(backends=sink.addresses, workers=4)
    sender = Sender(bench, "--sources", 64, "--pps", 2000, "--bytes", 600, "--time", "300s")
    for i in range(2):
        pids = wait_ready(millrace)
        lines = sink.report()["lines"]
        sink.wait_lines(lines + 5000)
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        for slot, pid in pids.items():
            millrace.wait_line(rf"worker {slot} \(pid {pid}\) killed by signal 9")
        millrace.check()
    wait_ready(millrace)
    lines = sink.report()["lines"]
    sink.wait_lines(lines + 5000)
    prove_bounds(millrace, sink, sender.stop())


def unread(millrace, name):
    """Datagrams that waited in closed sockets of this input."""
    return Counters(millrace).sum("endpoint", "dropped_closed_datagrams", input=name)


def test_an_input_goes_whose_worker_is_killed(bench):
    """Nobody can read what waits in its socket: it is counted when that is closed."""
    backend = Collector(bench)
    other = free_port()
    inputs = {"u": '{ type: udp, bind: "127.0.0.1:{port}", to: [out] }', "gone": f'{{ type: udp, bind: "127.0.0.1:{other}", to: [out] }}'}
    config = Config(bench, backend.addresses, workers=1, inputs=inputs)
    millrace = config.start()
    pid = wait_ready(millrace)[0]
    os.kill(pid, signal.SIGSTOP)
    wait_stopped([pid])
    send_datagrams(bench, ["a:1|c"] * 90, sources=9, port=other)
    send_datagrams(bench, ["b:1|c"] * 10)
    config.inputs = {"u": inputs["u"]}
    config.write()
    asker = subprocess.Popen([BUILD / "millracectl", "-s", millrace.control, "reload"], stdout=subprocess.PIPE, text=True)
    wait_for(lambda: child_names(millrace).count("millrace/0") == 2, "its successor")
    kill_worker(millrace, 0, pid)
    asker.communicate(timeout=20)
    assert asker.returncode == 0
    wait_for(lambda: unread(millrace, "gone") == 90, "what nobody has read to be counted")
    assert len(backend.wait_lines(10)) == 10
    millrace.wait_line("90 datagrams waited unread in a socket that is closed")
    assert "dropped_closed_datagrams" in millrace.ctl("drops").stdout
    millrace.check()


def test_killed_while_the_program_ends(bench):
    """Nobody comes after it: the account at the end has what waited."""
    backend = Collector(bench)
    millrace = bench.millrace(backends=backend.addresses, workers=1)
    pid = wait_ready(millrace)[0]
    os.kill(pid, signal.SIGSTOP)
    wait_stopped([pid])
    send_datagrams(bench, ["a:1|c"] * 90, sources=9)
    millrace.expected_exit = 3
    millrace.send_signal(signal.SIGTERM)
    millrace.wait_line("draining: ")
    os.kill(pid, signal.SIGKILL)
    assert millrace.wait() == 3
    assert re.search(r' WARN .*input "udp": 90 datagrams came = 0 received \+ 0 dropped at full sockets \+ 90 unread in closed ones',
                     "\n".join(millrace.err))
