# SPDX-License-Identifier: MIT
"""kill -9 of the master: the workers deliver what was accepted and leave; no process stays, and a new start works."""
import os
import signal
import time

import pytest
from conftest import free_port, wait_for
from faults import Sender, is_alive, read_out, signal_all, wait_stopped

pytestmark = pytest.mark.usefixtures("apart")


def kill_master(millrace):
    """Kills it; the workers that it leaves behind."""
    workers = list(millrace.worker_pids().values())
    assert workers
    millrace.expected_exit = -signal.SIGKILL
    os.kill(millrace.pid, signal.SIGKILL)
    millrace.p.wait()
    return workers


def wait_gone(pids):
    wait_for(lambda: not any(map(is_alive, pids)), "the workers to leave")


@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_accepted_lines_are_delivered(bench, transport):
    """What the kernel took before the master died arrives; the workers are stopped meanwhile, so that all of it waits."""
    sink = bench.sink("--number", ports=2)
    millrace = bench.millrace(backends=sink.addresses, workers=2)
    pids = list(millrace.worker_pids().values())
    signal_all(pids, signal.SIGSTOP)
    wait_stopped(pids)
    sent = bench.replay("--number", "--lines", 20000, "--sources", 16, *(["--tcp"] if transport == "tcp" else []))
    assert sent["lines"] == 20000
    workers = kill_master(millrace)
    signal_all(pids, signal.SIGCONT)
    report = sink.wait_lines(20000)
    assert (report["distinct"], report["doubles"], report["malformed"]) == (20000, 0, 0)
    wait_gone(workers)
    millrace.wait()  # until all that they wrote is read
    assert sum("the master is gone: draining" in line for line in millrace.err) == 2


def test_dies_under_load(bench):
    """No hole: of one sender's numbers those that arrive are the first."""
    sink = bench.sink("--number")
    millrace = bench.millrace(backends=sink.addresses, workers=2, listen=("udp",))
    sender = Sender(bench, "--pps", 3000, "--bytes", 600, "--time", "60s")
    sink.wait_lines(20000)
    workers = kill_master(millrace)
    wait_gone(workers)
    sender.stop()
    report = read_out(sink)
    assert (report["missing"], report["doubles"], report["malformed"]) == (0, 0, 0)


def test_dead_backend_does_not_keep_the_workers(bench):
    millrace = bench.millrace("--drain-timeout", "1s", backends=[f"127.0.0.1:{free_port()}"], workers=2)
    bench.replay("--number", "--lines", 1000, "--sources", 16)
    died = time.monotonic()
    workers = kill_master(millrace)
    wait_gone(workers)
    assert time.monotonic() - died >= 0.9, "drain_timeout was not used"
    millrace.wait_line(r"backend .*: \d+ lines not sent, 0 sent and not acknowledged at the end")


def test_new_start_on_the_same_ports(bench):
    sink = bench.sink("--number")
    first = bench.millrace(backends=sink.addresses, workers=2)
    wait_gone(kill_master(first))
    assert first.control.exists(), "nobody could remove it"
    second = bench.millrace(backends=sink.addresses, workers=2)
    sent = bench.replay("--number", "--lines", 1000)
    assert sink.wait_lines(sent["lines"])["distinct"] == 1000
    second.check()


def test_workers_in_back_off_and_stopped_ones(bench):
    """The master dies while one slot is vacant: nobody is left all the same."""
    sink = bench.sink()
    millrace = bench.millrace(backends=sink.addresses, workers=3)
    for _ in range(3):
        pid = wait_for(lambda: millrace.worker_pids().get(0), "slot 0")
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not is_alive(pid), "its end")
        wait_for(lambda: millrace.worker_pids().get(0) != pid, "its end")
    wait_gone(kill_master(millrace))
