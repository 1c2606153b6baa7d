# SPDX-License-Identifier: MIT
"""Full queues: each overflow policy, exact to the line."""
import os
import re
import signal
import socket

import pytest
from conftest import free_port, wait_for
from faults import Counters, Sender, numbered, read_out, send_datagrams, udp_drops, wait_settled, wait_up

pytestmark = pytest.mark.usefixtures("apart")

CONF = """
workers: {workers}
drain_timeout: 2s
inputs:
  udp: {{ type: udp, bind: "127.0.0.1:{{port}}", receive_buffer: {buffer}, to: [out] }}
  tcp: {{ type: tcp, bind: "127.0.0.1:{{port}}", to: [out] }}
outputs:
  out: {{ type: statsite, backends: [{backends}], queue_limit: {limit}, memory_limit: {memory}, overflow: {overflow} }}
"""


def start(bench, backends, overflow, limit="128KiB", memory="1GiB", workers=1, buffer="32MiB"):
    return bench.millrace(conf=CONF.format(workers=workers, backends=", ".join(f'"{b}"' for b in backends), limit=limit,
                                           memory=memory, overflow=overflow, buffer=buffer))


def read_all(millrace, lines):
    return wait_for(lambda: (lambda c: c if c.sum("input", "received_lines") == lines else None)(Counters(millrace)),
                    "all lines to be read")


@pytest.mark.parametrize("overflow", ["drop_newest", "drop_oldest"])
@pytest.mark.parametrize("workers", [1, 2])
def test_queue_limit_is_exact(bench, overflow, workers):
    """A backend that is down: sent = arrived + dropped_queue_full, and the right end of the numbers was kept."""
    sink = bench.sink("--number")
    sink.ask("refuse on")
    millrace = start(bench, sink.addresses, overflow, workers=workers)
    sent = bench.replay("--number", "--lines", 50000, "--sources", 16, "--pps", 2000)
    counters = read_all(millrace, sent["lines"])
    dropped = counters.sum("backend", "dropped_queue_full_records")
    waiting = counters.sum("backend", "queued_records")
    assert dropped > 0 and dropped + waiting == sent["lines"]
    assert counters.dropped() == dropped
    limit = workers * 128 * 1024
    assert limit * 0.9 < counters.sum("backend", "queued_bytes") <= limit
    assert counters.unbalanced(without=["dropped_queue_full_records"]) != []
    sink.ask("refuse off")
    report = sink.wait_lines(waiting)
    assert (report["distinct"], report["doubles"], report["malformed"]) == (sent["lines"] - dropped, 0, 0)
    wait_settled(millrace)
    if workers == 1:
        assert report["max"] == (waiting - 1 if overflow == "drop_newest" else sent["lines"] - 1)
        assert report["missing_ranges"] == ([] if overflow == "drop_newest" else [[0, dropped - 1]])


def test_drop_oldest_beside_lines_in_flight(bench):
    """A stalled backend: what is in flight stays, the oldest of the rest goes, the newest arrives. The limit is larger
    than the socket's buffer: where all of a queue is in flight, nothing can be taken back."""
    sink = bench.sink("--number", "--stall", "--rcvbuf", "8KiB")
    millrace = start(bench, sink.addresses, "drop_oldest", limit="8MiB")
    sent = bench.replay("--number", "--lines", 1000000, "--bytes", 8900, "--pps", 1500)
    counters = read_all(millrace, sent["lines"])
    assert counters.sum("backend", "dropped_queue_full_records") > 0
    sink.ask("stall off")
    counters = wait_settled(millrace)
    dropped = counters.sum("backend", "dropped_queue_full_records")
    report = sink.wait_lines(sent["lines"] - dropped)
    assert (report["distinct"], report["doubles"], report["malformed"]) == (sent["lines"] - dropped, 0, 0)
    assert report["max"] == sent["lines"] - 1
    (first, last), = report["missing_ranges"]
    assert first > 0 and last - first + 1 == dropped


@pytest.mark.parametrize("state", ["stall", "refuse"])
def test_drops_are_said_when_they_begin_and_end(bench, state):
    """Not only counted: one line with the limit to raise, and one with the sum once there is room."""
    sink = bench.sink("--number", "--rcvbuf", "8KiB")
    sink.ask(f"{state} on")
    millrace = start(bench, [*sink.addresses, "127.0.0.1:1"], "drop_newest")
    address, kind = re.escape(sink.addresses[0]), {"stall": "is too slow", "refuse": "is away"}[state]
    sent = bench.replay("--number", "--lines", 600000, "--bytes", 8900, "--pps", 2000)
    read_all(millrace, sent["lines"])
    millrace.wait_line(rf"WARN worker 0: backend {address} {kind}: queue_limit of 128 KiB is reached, the newest lines are dropped")
    sink.ask(f"{state} off")

    def send_one():
        bench.replay("--lines", 10)  # what goes on is what shows it
        return [m for line in millrace.err if (m := re.search(rf"INFO .*{address} has room again: (\d+) lines", line))]
    found = wait_for(send_one, "the end of the drops")
    dropped = Counters(millrace).sum("backend", "dropped_queue_full_records", backend=sink.addresses[0])
    assert dropped > 0 and [int(m.group(1)) for m in found] == [dropped]
    assert sum("lines are dropped" in line and sink.addresses[0] in line for line in millrace.err) == 1
    millrace.expected_exit = 3


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest"])
def test_memory_limit_is_exact(bench, policy):
    """The smallest memory_limit under a large queue_limit: sent = arrived + dropped_memory."""
    sink = bench.sink("--number", ports=3)
    sink.ask("refuse on")
    millrace = start(bench, sink.addresses, policy, limit="64MiB", memory="1MiB")
    sent = bench.replay("--number", "--lines", 200000, "--sources", 4, "--pps", 2000)
    counters = read_all(millrace, sent["lines"])
    dropped = counters.sum("backend", "dropped_memory_records")
    assert dropped > 0 and counters.dropped() == dropped
    assert dropped + counters.sum("backend", "queued_records") == sent["lines"]
    assert counters.sum("output", "memory_bytes") <= 1 << 20
    sink.ask("refuse off")
    wait_up(millrace, 3)
    counters = wait_settled(millrace)
    dropped = counters.sum("backend", "dropped_memory_records")
    report = sink.wait_lines(sent["lines"] - dropped)
    assert (report["distinct"], report["doubles"], report["malformed"]) == (sent["lines"] - dropped, 0, 0)
    more = bench.replay("--number", "--number-from", sent["lines"], "--lines", 10000)
    assert sink.wait_lines(report["lines"] + more["lines"])["distinct"] == report["distinct"] + 10000


def held(millrace, name="udp"):
    return wait_for(lambda: (lambda c: c if c.sum("input", "held", input=name) else None)(Counters(millrace)),
                    f"input {name} to be held")


def test_block_drops_nothing_and_goes_on(bench):
    """The kernel's buffers hold what the queue cannot; when there is room again it all arrives."""
    sink = bench.sink("--number", "--stall", "--rcvbuf", "8KiB")
    millrace = start(bench, sink.addresses, "block")
    sent = bench.replay("--number", "--lines", 400000, "--bytes", 8900, "--pps", 2000)
    counters = held(millrace)
    assert counters.sum("input", "received_lines") < sent["lines"]
    assert counters.sum("backend", "queued_bytes") <= 128 * 1024
    millrace.check()
    sink.ask("stall off")
    report = sink.wait_lines(sent["lines"])
    assert (report["distinct"], report["doubles"], report["malformed"]) == (sent["lines"], 0, 0)
    counters = wait_settled(millrace, sent["datagrams"])
    assert (counters.dropped(), counters.kernel_drops(), counters.sum("input", "held")) == (0, 0, 0)
    assert counters.sum("input", "holds") > 0


def test_block_lets_the_kernel_drop_and_says_so(bench):
    """With a small receive buffer the kernel drops: sent = received + kernel drops, and we drop nothing."""
    sink = bench.sink("--stall", "--rcvbuf", "8KiB")
    millrace = start(bench, sink.addresses, "block", buffer="256KiB")
    sent = bench.replay("--lines", 200000, "--bytes", 8900, "--pps", 2000, "--sources", 4)
    held(millrace)
    wait_for(lambda: Counters(millrace).kernel_drops() > 0, "the kernel's drops to be seen")
    sink.ask("stall off")
    counters = wait_for(lambda: (lambda c: c if c.sum("input", "received_datagrams") + c.kernel_drops() == sent["datagrams"]
                                 else None)(Counters(millrace)), "received + kernel drops = sent")
    assert counters.kernel_drops() == udp_drops(millrace.pid)
    counters = wait_settled(millrace)
    assert counters.dropped() == 0
    assert sink.wait_lines(counters.sum("input", "received_lines"))["lines"] == counters.sum("input", "received_lines")


def test_block_holds_streams_back(bench):
    """A TCP sender is slowed down by its own full socket, and loses nothing."""
    sink = bench.sink("--number", "--stall", "--rcvbuf", "8KiB")
    millrace = start(bench, sink.addresses, "block")
    sender = Sender(bench, "--tcp", "--sources", 4, "--lines", 1000000)
    held(millrace, "tcp")
    sink.ask("stall off")
    sent = sender.finish()
    report = sink.wait_lines(sent["lines"])
    assert (report["distinct"], report["doubles"], report["malformed"]) == (sent["lines"], 0, 0)


def test_other_inputs_and_outputs_go_on_while_one_is_held(bench):
    full, good = bench.sink("--stall", "--rcvbuf", "8KiB"), bench.sink("--number")
    other = free_port()
    millrace = bench.millrace(conf=f"""
workers: 2
drain_timeout: 1s
inputs:
  udp: {{ type: udp, bind: "127.0.0.1:{{port}}", to: [full] }}
  other: {{ type: udp, bind: "127.0.0.1:{other}", to: [good] }}
outputs:
  full: {{ type: statsite, backends: ["{full.addresses[0]}"], queue_limit: 128KiB, overflow: block }}
  good: {{ type: statsite, backends: ["{good.addresses[0]}"] }}
""")
    bench.replay("--lines", 400000, "--bytes", 8900, "--pps", 2000, "--sources", 16)
    wait_for(lambda: Counters(millrace).sum("input", "held", input="udp") == 2, "both workers to be held")
    send_datagrams(bench, numbered(0, 6400), sources=64, port=other)
    assert good.wait_lines(6400)["distinct"] == 6400
    counters = Counters(millrace)
    assert counters.sum("input", "held", input="udp") == 2
    assert counters.sum("input", "held", input="other") == 0
    full.ask("stall off")
    wait_settled(millrace)


def test_term_while_held_with_connections_waiting(bench):
    """Connections that are accepted by the drain wait until the batch in hand is handed over: not a line is lost."""
    sink = bench.sink("--number", "--stall", "--rcvbuf", "8KiB")
    millrace = start(bench, sink.addresses, "block")
    first = Sender(bench, "--tcp", "--lines", 20000)
    held(millrace, "tcp")
    first.finish()
    pid = millrace.worker_pids()[0]
    os.kill(pid, signal.SIGSTOP)
    clients = []
    for i in range(8):
        c = socket.create_connection(("127.0.0.1", bench.port))
        c.sendall("".join(numbered(20000 + i * 100, 100)).encode())
        clients.append(c)
    millrace.send_signal(signal.SIGTERM)
    millrace.wait_line("draining: at most")
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: Counters(millrace).sum("input", "accepted_connections") == 9, "the waiting ones to be accepted")
    sink.ask("stall off")
    assert millrace.wait() == 0
    sink.wait_lines(20800)
    report = read_out(sink)
    assert (report["distinct"], report["doubles"], report["malformed"]) == (20800, 0, 0)
    for c in clients:
        c.close()


def test_deadline_while_held_counts_every_line(bench):
    """A drain that gives up with a batch in hand: received lines = sent, each is delivered, unconfirmed or dropped."""
    sink = bench.sink("--number", "--stall", "--rcvbuf", "8KiB")
    millrace = start(bench, sink.addresses, "block")
    pid = millrace.worker_pids()[0]
    os.kill(pid, signal.SIGSTOP)
    sent = bench.replay("--number", "--lines", 200000, "--bytes", 8900, "--flat-out")
    os.kill(pid, signal.SIGCONT)
    held(millrace)
    millrace.expected_exit = 3
    assert millrace.terminate() == 3
    log = "\n".join(millrace.err)
    m = re.search(r'input "udp": (\d+) lines received = (\d+) to outputs .* \+ (\d+) dropped \+ 0 lost at death', log)
    received, to_outputs, dropped = map(int, m.groups())
    assert received == sent["lines"], "lines that were read or waited in the socket are not in the account"
    assert to_outputs + dropped == received and dropped > 0
    m = re.search(r'output "out": (\d+) offered = (\d+) delivered \+ (\d+) unconfirmed \+ 0 failed \+ (\d+) dropped', log)
    assert int(m.group(1)) == to_outputs
