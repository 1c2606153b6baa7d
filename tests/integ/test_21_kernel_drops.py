# SPDX-License-Identifier: MIT
"""A receive buffer that overflows: sent = received + dropped by the kernel, to the datagram, as millrace itself says."""
import re
import signal

import pytest
from conftest import wait_for
from faults import Counters, signal_all, udp_drops, udp_snmp, wait_settled, wait_stopped

pytestmark = pytest.mark.usefixtures("apart")


def run(bench, workers, *options):
    """The smallest buffer that can be asked for, and a backend for what comes through."""
    sink = bench.sink()
    millrace = bench.millrace("--receive-buffer", "4KiB", backends=sink.addresses, workers=workers, listen=("udp",))
    return sink, millrace


def prove(millrace, sink, sent):
    """All places that know of drops say the same, and it is what is missing."""
    counters = wait_for(lambda: (lambda c: c if c.sum("input", "received_datagrams") + c.kernel_drops() == sent["datagrams"]
                                 else None)(Counters(millrace)), "received + kernel drops = sent")
    dropped = counters.kernel_drops()
    assert dropped > 0
    assert dropped == udp_drops(millrace.pid) == udp_snmp(millrace.pid)["RcvbufErrors"]
    assert dropped == sum(i["kernel_dropped_datagrams"] for i in millrace.status()["inputs"])
    text = millrace.ctl("drops").stdout
    assert re.search(rf"\b{dropped}\b", text) and "receive_buffer" in text, text
    counters = wait_settled(millrace)
    delivered = counters.sum("backend", "delivered_records")
    assert delivered == counters.sum("input", "received_lines")
    assert sink.wait_lines(delivered)["lines"] == delivered


@pytest.mark.parametrize("workers", [1, 2])
def test_stopped_workers_overflow(own_network, bench, workers):
    sink, millrace = run(bench, workers)
    pids = list(millrace.worker_pids().values())
    signal_all(pids, signal.SIGSTOP)
    wait_stopped(pids)
    sent = bench.replay("--count", 3000, "--sources", 16, "--flat-out")
    wait_for(lambda: Counters(millrace).kernel_drops() > 0, "the master to see the drops")  # it does, without the workers
    signal_all(pids, signal.SIGCONT)
    prove(millrace, sink, sent)


def test_flat_out_overflow(own_network, bench):
    sink, millrace = run(bench, 2)
    sent = bench.replay("--time", "2s", "--sources", 16, "--flat-out", "--bytes", 8900)
    prove(millrace, sink, sent)


def test_nothing_dropped_says_nothing(bench):
    sink = bench.sink()
    millrace = bench.millrace(backends=sink.addresses, listen=("udp",))
    sent = bench.replay("--count", 100)
    wait_settled(millrace, sent["datagrams"])
    assert Counters(millrace).kernel_drops() == udp_drops(millrace.pid) == 0
