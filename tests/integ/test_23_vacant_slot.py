# SPDX-License-Identifier: MIT
"""A slot without a worker: the others serve, its sockets are lent to a sibling, the back-off grows, and nothing that
arrives meanwhile is lost."""
import os
import resource
import signal
import socket
import time

import pytest
from conftest import BUILD, wait_for
from faults import (Counters, children, is_alive, kill_if_there, kill_worker, numbered, send_datagrams, udp_sockets, wait_ready,
                    wait_settled)

pytestmark = pytest.mark.usefixtures("apart")

PORTS = 64  # enough senders for every slot to get some


class Numbers:
    """Sends numbered lines and waits until each has arrived."""

    def __init__(self, bench, sink):
        self.bench, self.sink, self.next = bench, sink, 0

    def send(self, n=2 * PORTS):
        send_datagrams(self.bench, numbered(self.next, n), sources=PORTS)
        self.next += n

    def arrived(self):
        report = self.sink.wait_lines(self.next)
        assert (report["distinct"], report["doubles"], report["malformed"]) == (self.next, 0, 0)


def start(bench, workers):
    sink = bench.sink("--number", ports=2)
    millrace = bench.millrace(backends=sink.addresses, workers=workers, listen=("udp",))
    return millrace, Numbers(bench, sink)


def kill_idle(millrace, slot, pid):
    """Kills a worker that holds nothing: then nothing may be missing. The time just before."""
    wait_settled(millrace)
    before = time.monotonic()
    lost, _, _ = kill_worker(millrace, slot, pid)
    assert lost == 0
    return before


def make_vacant(millrace, slot, deaths):
    """Kills the slot's workers until the next one is `deaths` steps of back-off away: 0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2 s."""
    for i in range(deaths):
        pid = wait_ready(millrace, [slot])[slot]
        kill_idle(millrace, slot, pid)
        if i < deaths - 1:
            wait_for(lambda: any(w["slot"] == slot and w["pid"] not in (0, pid) for w in millrace.status()["workers"]),
                     "the next worker")


def test_back_off_grows_and_the_others_serve(bench):
    millrace, numbers = start(bench, 2)
    sibling = millrace.worker_pids()[1]
    waits = []
    for _ in range(5):
        pid = wait_ready(millrace, [0])[0]
        died = kill_idle(millrace, 0, pid)
        numbers.send()  # while nobody reads slot 0
        wait_for(lambda: millrace.worker_pids().get(0, pid) != pid, "the next worker", 20)
        waits.append(time.monotonic() - died)
        numbers.arrived()
    for at_least, was in zip((0, 0.1, 0.2, 0.4, 0.8), waits):
        assert was >= at_least, waits  # measured from a little before the death
    assert millrace.worker_pids()[1] == sibling
    slot, = (w for w in millrace.status()["workers"] if w["slot"] == 0)
    assert (slot["deaths"], slot["starts"], slot["restarts"]) == (5, 6, 5)
    assert Counters(millrace).lost_at_death() == 0


def test_sockets_are_lent_and_given_back(bench):
    millrace, numbers = start(bench, 2)
    numbers.send()
    numbers.arrived()
    had = Counters(millrace)
    assert had.sum("input", "received_datagrams", worker=0) > 0, "no sender went to slot 0"
    make_vacant(millrace, 0, 5)  # the next worker comes after 0.8 s
    numbers.send()  # into a socket that nobody reads yet
    millrace.wait_line("worker 1 reads the sockets of worker 0 meanwhile")
    numbers.send()
    numbers.arrived()
    during = Counters(millrace)
    if wait_ready(millrace, [0], 30) and during.sum("slot", "starts", slot=0) == 5:  # it was vacant all the time
        assert during.sum("slot", "lent", slot=0) == 1
        assert during.sum("input", "received_datagrams", worker=0) == had.sum("input", "received_datagrams", worker=0)
    wait_for(lambda: Counters(millrace).sum("slot", "lent", slot=0) == 0, "the sockets to be given back")
    before = Counters(millrace).sum("input", "received_datagrams", worker=0)
    numbers.send()
    numbers.arrived()
    wait_for(lambda: Counters(millrace).sum("input", "received_datagrams", worker=0) > before, "slot 0 to read again")
    assert Counters(millrace).lost_at_death() == 0


def test_lender_s_reader_dies_too(bench):
    millrace, numbers = start(bench, 3)
    make_vacant(millrace, 0, 7)  # long enough for what follows, also on a busy machine
    millrace.wait_line("worker 1 reads the sockets of worker 0 meanwhile")
    numbers.send()
    numbers.arrived()
    kill_idle(millrace, 1, millrace.worker_pids()[1])
    numbers.send()
    millrace.wait_line("worker 2 reads the sockets of worker 0 meanwhile")
    numbers.send()
    numbers.arrived()
    wait_ready(millrace)
    numbers.send()
    numbers.arrived()


def sender_of_slot(bench, millrace, slot, text):
    """A socket whose datagrams (to the program's port) the kernel gives to this slot; each try sends one `text`."""
    for _ in range(50):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.connect(("127.0.0.1", bench.port))
        before = Counters(millrace).sum("input", "received_datagrams", worker=slot)
        total = Counters(millrace).sum("input", "received_datagrams")
        s.send(text)
        wait_for(lambda: Counters(millrace).sum("input", "received_datagrams") > total, "the datagram to be read")
        if Counters(millrace).sum("input", "received_datagrams", worker=slot) > before:
            return s
        s.close()
    pytest.fail(f"no sender goes to slot {slot}")


def test_given_back_while_its_batch_is_held(bench):
    """overflow: block holds a batch that was read from a lent socket, and the slot gets a worker: the socket is given
    back when the batch is handed over."""
    sink = bench.sink("--rcvbuf", "8KiB")
    millrace = bench.millrace(conf=f"""
workers: 2
inputs: {{ udp: {{ type: udp, bind: "127.0.0.1:{{port}}", to: [out] }} }}
outputs: {{ out: {{ type: statsite, backends: ["{sink.addresses[0]}"], queue_limit: 128KiB, overflow: block }} }}
""")
    sender = sender_of_slot(bench, millrace, 0, b"a:1|c")
    sockets = len(udp_sockets(millrace.worker_pids()[1]))
    make_vacant(millrace, 0, 7)  # long enough for what follows, also on a busy machine
    millrace.wait_line("worker 1 reads the sockets of worker 0 meanwhile")
    sink.ask("stall on")
    before = Counters(millrace).sum("input", "received_lines")
    for i in range(400):
        sender.send(b"b" * 1000 + b":%d|c" % i)
    wait_for(lambda: Counters(millrace).sum("input", "held", worker=1), "worker 1 to be held")
    wait_ready(millrace, [0])
    wait_for(lambda: Counters(millrace).sum("slot", "lent", slot=0) == 0, "the sockets to be given back")
    assert Counters(millrace).sum("input", "held", worker=1) == 1
    sink.ask("stall off")
    wait_for(lambda: Counters(millrace).sum("input", "received_lines") == before + 400, "all to be read")
    wait_settled(millrace)
    wait_for(lambda: len(udp_sockets(millrace.worker_pids()[1])) == sockets, "worker 1 to close what it was lent")
    sink.wait_lines(before + 400)
    sender.close()


@pytest.mark.parametrize("spread", ["packet", "shared"])
def test_other_spreads_lose_nothing(bench, spread):
    sink = bench.sink("--number")
    millrace = bench.millrace(conf=f"""
workers: 2
inputs: {{ udp: {{ type: udp, bind: "127.0.0.1:{{port}}", spread: {spread}, to: [out] }} }}
outputs: {{ out: {{ type: statsite, backends: ["{sink.addresses[0]}"] }} }}
""")
    numbers = Numbers(bench, sink)
    make_vacant(millrace, 0, 4)
    numbers.send(1000)
    numbers.arrived()
    wait_ready(millrace)
    numbers.send(1000)
    numbers.arrived()


def test_killed_during_start(bench):
    """A worker that dies before it is ready is started again, at the program's start and later."""
    sink = bench.sink("--number", ports=2)
    millrace = bench.millrace(backends=sink.addresses, workers=2, listen=("udp",), wait=False)
    first = wait_for(lambda: children(millrace.pid), "a child")[0]
    os.kill(first, signal.SIGKILL)
    millrace.wait_line(r"millrace is serving with 2 workers")
    numbers = Numbers(bench, sink)
    killed = {first}
    for _ in range(2):  # each as soon as it is there: ready or not
        # one that was just killed stands in the page until the master has seen it
        pid = wait_for(lambda: (lambda p: p if p not in killed else None)(wait_ready(millrace)[0]), "the next worker")
        killed.add(pid)
        os.kill(pid, signal.SIGKILL)
        fresh = wait_for(lambda: set(children(millrace.pid)) - killed - {millrace.worker_pids().get(1)}, "a child", 20)
        for pid in fresh:
            if is_alive(pid) and pid != millrace.worker_pids().get(1):
                kill_if_there(pid)
            killed.add(pid)
        numbers.send()
    numbers.arrived()
    wait_ready(millrace)
    numbers.send()
    numbers.arrived()
    millrace.check()


@pytest.mark.skipif("san" in BUILD.name, reason="a limit of address space does not go with AddressSanitizer")
def test_slot_that_cannot_start_leaves_the_others_serving(bench):
    """Its next worker says FATAL (no memory for its queues): tried again, later each time; its sockets are lent meanwhile."""
    sink = bench.sink("--number", ports=2)
    millrace = bench.millrace(conf=f"""
workers: 2
inputs: {{ udp: {{ type: udp, bind: "127.0.0.1:{{port}}", to: [out] }} }}
outputs: {{ out: {{ type: statsite, backends: ["{sink.addresses[0]}", "{sink.addresses[1]}"], memory_limit: 4GiB }} }}
""")  # more than the receive batches of others, which a worker gives up
    numbers = Numbers(bench, sink)
    millrace.expected_errors = ["cannot work: Cannot map", "lower memory_limit"]
    size = int(open(f"/proc/{millrace.pid}/statm").read().split()[0]) * 4096
    resource.prlimit(millrace.pid, resource.RLIMIT_AS, (size + (64 << 20), resource.RLIM_INFINITY))
    kill_idle(millrace, 0, millrace.worker_pids()[0])
    millrace.wait_line(r"ERROR master: worker 0 cannot work: .*lower memory_limit")
    millrace.wait_line("worker 1 reads the sockets of worker 0 meanwhile")
    numbers.send()
    numbers.arrived()
    slot, = (w for w in millrace.status()["workers"] if w["slot"] == 0)
    assert slot["state"] in ("vacant", "starting") and slot["lent"] == 1
    assert numbers.next == Counters(millrace).sum("input", "received_lines", worker=1)
    resource.prlimit(millrace.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    wait_ready(millrace)
    numbers.send()
    numbers.arrived()


@pytest.mark.skipif("san" in BUILD.name, reason="a limit of address space does not go with AddressSanitizer")
def test_no_slot_can_start_ends_the_program(bench):
    sink = bench.sink()
    limit = (8 << 30, resource.RLIM_INFINITY)
    millrace = bench.millrace(wait=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit), conf=f"""
workers: 2
inputs: {{ udp: {{ type: udp, bind: "127.0.0.1:{{port}}", to: [out] }} }}
outputs: {{ out: {{ type: statsite, backends: ["{sink.addresses[0]}"], memory_limit: 64GiB }} }}
""")
    millrace.expected_exit, millrace.expected_errors = 1, ["lower memory_limit"]
    assert millrace.wait() == 1
    assert sum("lower memory_limit" in line for line in millrace.err) >= 1
