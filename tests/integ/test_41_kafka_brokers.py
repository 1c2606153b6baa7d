# SPDX-License-Identifier: MIT
"""Kafka with brokers that die, stop, freeze or are not there, and workers that are killed: nothing is missing and nothing
twice where the design says so; elsewhere what is missing is what the counters say."""
import os
import re
import signal
import time

import pytest
from conftest import free_port, wait_for
from faults import Counters, Sender, kill_worker, quit_with_unread, wait_ready
from kafka_peers import Cluster, Mock, conf, needs_kafka, numbers, topic, total, wait_delivered

pytestmark = needs_kafka
SOAK = pytest.mark.soak


@pytest.fixture(scope="module")
def one():
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three():
    with Cluster(brokers=3) as cluster:
        yield cluster


def settled(millrace, sender, timeout=60):
    """Stops the load and waits for the last report; numbers sent, and the counters."""
    sent = sender.stop()

    def empty():
        c = Counters(millrace)
        return c if c.sum("input", "received_datagrams") + c.kernel_drops() >= sent["datagrams"] and c.waiting() == 0 else None
    counters = wait_for(empty, "all to be reported", timeout)
    assert counters.unbalanced() == []
    millrace.check()
    return sent, counters


def flowing(millrace, more):
    had = total(millrace, "delivered_records")
    wait_for(lambda: total(millrace, "delivered_records") > had + more, "records to flow", 60)


@pytest.mark.parametrize("pps", [1000, pytest.param(10000, marks=SOAK)])
def test_one_of_three_brokers_is_killed(bench, three, pps):
    name = topic(three, 6)
    millrace = bench.millrace(conf=conf(three, name))
    sender = Sender(bench, "--sources", 32, "--pps", pps, "--bytes", 600, "--time", "300s")
    flowing(millrace, 10000)
    three.kill(2)
    flowing(millrace, 20000)
    sent, counters = settled(millrace, sender)
    three.restart(2)
    assert counters.kernel_drops() == 0 and counters.dropped() == 0
    assert sorted(numbers(three, name)) == list(range(sent["lines"]))


@pytest.mark.parametrize("away", [2, pytest.param(30, marks=SOAK)])
def test_all_brokers_stop_and_come_back(bench, three, away):
    name = topic(three, 3)
    millrace = bench.millrace(conf=conf(three, name, properties="reconnect.backoff.max.ms: 500"))
    sender = Sender(bench, "--sources", 32, "--pps", 1000, "--bytes", 600, "--time", "300s")
    flowing(millrace, 10000)
    for n in three.brokers:  # SIGTERM would not do: the last of three never ends without the others
        three.kill(n)
    # Brokers killed all at once may come back without what they knew of the producer: librdkafka's "rewound sequence number"
    # is fatal. What it had not sent by then arrives all the same.
    millrace.expected_errors = ["fatal producer error OUT_OF_ORDER_SEQUENCE_NUMBER"]
    until = time.monotonic() + away
    millrace.wait_line("no broker can be reached", 30)
    wait_for(lambda: time.monotonic() > until, "the pause", away + 5)
    for n in three.brokers:
        three.launch(n)
    for n in three.brokers:
        three.wait(n)
    flowing(millrace, 10000)
    sent, counters = settled(millrace, sender, 90)
    assert counters.kernel_drops() == 0 and counters.dropped() == 0 and counters.sum("backend", "failed_records") == 0
    # A reader sees what all replicas in sync have; those that come back need a while to be that again.
    three.wait_topics({name: 3}, insync=3)
    delivered = total(millrace, "delivered_records")
    found = wait_for(lambda: (lambda n: n if len(n) >= delivered else None)(numbers(three, name)), "what was delivered", 30)
    assert len(set(found)) == len(found)
    unconfirmed = counters.sum("backend", "unconfirmed_records")
    assert len(found) - delivered <= unconfirmed, sorted(set(range(sent["lines"])) - set(found))[:10]
    downs = [line for line in millrace.err if "no broker can be reached" in line]
    assert len(downs) <= 2 * 2, "once for each worker and change of state"


@pytest.mark.parametrize("seconds, pps", [(2, 10000), pytest.param(8, 30000, marks=SOAK)])
def test_a_frozen_broker_loses_nothing(bench, one, seconds, pps):
    name = topic(one, 2)
    millrace = bench.millrace(conf=conf(one, name, "format: datagram; partition: random"))
    bench.replay("--number", "--one", "--lines", 1000, "--pps", 5000, "--sources", 8)
    wait_delivered(millrace, 1000)
    one.pause(1)
    try:
        sent = bench.replay("--number", "--number-from", 1000, "--one", "--lines", seconds * pps, "--pps", pps, "--sources", 8, "--burst", 8)
    finally:
        one.resume(1)
    n = 1000 + sent["lines"]
    wait_delivered(millrace, n, 60)
    counters = Counters(millrace)
    assert counters.kernel_drops() == 0 and counters.dropped() == 0
    assert sorted(numbers(one, name)) == list(range(n))


def test_order_is_kept_in_each_partition(bench, one):
    name = topic(one, 3)
    millrace = bench.millrace(conf=conf(one, name, "format: datagram", workers=1))
    bench.replay("--number", "--one", "--lines", 2000, "--pps", 5000)
    wait_delivered(millrace, 2000)
    one.pause(1)
    try:
        bench.replay("--number", "--number-from", 2000, "--one", "--lines", 20000, "--pps", 20000)
    finally:
        one.resume(1)
    wait_delivered(millrace, 22000)
    found = {}
    for m in one.read(name):
        found.setdefault(m.partition, []).append(int(m.value.split(b":")[1].split(b"|")[0]))
    assert sum(len(f) for f in found.values()) == 22000
    assert all(f == sorted(f) for f in found.values()), "one sender, one partition, one order"


@pytest.mark.parametrize("kills", [3, pytest.param(8, marks=SOAK)])
def test_workers_are_killed(bench, one, kills):
    name = topic(one, 4)
    millrace = bench.millrace(conf=conf(one, name))
    sender = Sender(bench, "--sources", 32, "--pps", 2000, "--bytes", 600, "--time", "300s")
    lost = 0
    for i in range(kills):
        flowing(millrace, 10000)
        slot, pid = sorted(wait_for(millrace.worker_pids, "a worker").items())[i % 2]  # a slot's back-off grows each time
        lost += kill_worker(millrace, slot, pid)[0]
        wait_ready(millrace, timeout=30)
        millrace.check()
    sent, counters = settled(millrace, sender)
    assert counters.kernel_drops() == 0
    assert counters.lost_at_death() == lost
    found = numbers(one, name)
    missing = sent["lines"] - len(set(found))
    assert 0 <= missing <= lost
    assert len(found) == len(set(found)), "a killed worker's messages are not sent again"


def test_messages_of_a_killed_worker(bench):
    """What no broker has taken yet dies with it: to the message."""
    millrace = bench.millrace(conf=conf(f"127.0.0.1:{free_port()}", "t", "format: datagram", workers=1))
    sent = bench.replay("--number", "--one", "--lines", 500)["datagrams"]
    held = ("queued_messages", "in_flight_messages")
    wait_for(lambda: sum(Counters(millrace).sum("kafka", name) for name in held) == sent, "the messages to be held")
    os.kill(wait_ready(millrace)[0], signal.SIGKILL)
    millrace.wait_line(rf"lost at most {sent} records \(0 read and not yet handed over, {sent} queued or not acknowledged\)")
    counters = Counters(millrace)
    assert counters.sum("kafka", "lost_at_death_messages") == sent == counters.sum("kafka", "offered_messages")
    assert counters.sum("backend", "lost_at_death_records") == sent
    assert sum(counters.sum("kafka", name) for name in held) == 0
    assert counters.unbalanced() == []
    millrace.check()
    wait_ready(millrace)


def test_datagrams_that_a_quit_left_unread(bench):
    """They are read, counted as dropped, and the exit code says that something was lost. On a machine that is so busy that the
    worker is killed at its deadline, what it had not read is counted all the same."""
    mock = Mock(bench, "t:1")
    millrace = bench.millrace(conf=conf(mock.bootstrap, "t", "format: datagram", workers=1))
    # more than a turn reads
    sent, log = quit_with_unread(millrace, lambda: bench.replay("--number", "--one", "--lines", 10000)["datagrams"])
    came, received, unread = map(int, re.search(
        r'"in": (\d+) datagrams came = (\d+) received \+ 0 dropped at full sockets \+ (\d+) unread in closed ones', log).groups())
    passed, dropped, lost = map(int, re.search(
        r'"in": \d+ datagrams received = (\d+) to outputs \+ 0 empty \+ (\d+) dropped \+ (\d+) lost at death', log).groups())
    assert came == sent == received + unread and received == passed + dropped + lost
    assert dropped > 0 or "killed by signal 9" in log


def test_no_broker_at_the_start(bench):
    port = free_port()
    millrace = bench.millrace(conf=conf(f"127.0.0.1:{port}", "t", workers=1, top="drain_timeout: 1s"))
    bench.replay("--number", "--lines", 1000)
    millrace.wait_line("no broker can be reached: .*holding up to")
    wait_for(lambda: total(millrace, "queued_records") == 1000, "the lines to wait")
    millrace.check()
    assert len([line for line in millrace.err if "WARN worker" in line]) <= 2, millrace.err
    millrace.expected_exit = 3
    millrace.terminate()
    assert any("1000 lines not sent" in line for line in millrace.err)


@pytest.mark.parametrize("how", ["alive", "frozen", "dead"])
def test_term_is_never_late(bench, how):
    """With a mock of its own: the real one is shared."""
    mock = Mock(bench, "t:4")
    millrace = bench.millrace(conf=conf(mock, "t", top="drain_timeout: 1s"))
    bench.replay("--number", "--lines", 1000, "--sources", 8)
    wait_delivered(millrace, 1000)
    if how == "frozen":
        mock.process.send_signal(signal.SIGSTOP)
    if how == "dead":
        mock.process.kill()
    bench.replay("--number", "--lines", 20000, "--sources", 8, "--pps", 5000)
    wait_for(lambda: sum(r["received_lines"] for r in millrace.status()["inputs"]) == 21000, "all to be read")
    millrace.expected_exit = 0 if how == "alive" else 3
    millrace.terminate()  # a worker that is late is an ERROR in the log
    account = next(line for line in millrace.err if "21000 offered = " in line)
    assert ("21000 delivered" in account) == (how == "alive"), account
    if how == "frozen":
        mock.process.send_signal(signal.SIGCONT)


def test_what_failed_long_ago_was_not_left(bench, one):
    """Exit code 3 and "left" are about the drain."""
    name = topic(one)
    millrace = bench.millrace(conf=conf(one, name, "format: datagram", "message.timeout.ms: 1000, socket.timeout.ms: 1000, "
                                        "reconnect.backoff.max.ms: 500", workers=1))
    bench.replay("--number", "--one", "--lines", 100)
    wait_delivered(millrace, 100)
    one.pause(1)
    try:
        bench.replay("--number", "--number-from", 100, "--one", "--lines", 100)
        wait_for(lambda: total(millrace, "unconfirmed_records") + total(millrace, "failed_records") == 100, "the timeout")
    finally:
        one.resume(1)
    assert total(millrace, "unconfirmed_records") > 0
    bench.replay("--number", "--number-from", 200, "--one", "--lines", 100)
    wait_delivered(millrace, 200, 30)
    assert millrace.terminate() == 0
    assert not any(": left " in line for line in millrace.err)


def test_block_holds_only_its_own_input(bench, one):
    """The topic's input waits, its kernel buffer fills; the other input and output go on."""
    name, other = topic(one), free_port()
    sink = bench.sink("--number")
    text = conf(one, name, "format: datagram; overflow: block; memory_limit: 1MiB", workers=1,
                outputs=f'  shards: {{ type: statsite, backends: ["{sink.addresses[0]}"] }}')
    text = text.replace("inputs: {", f'inputs: {{ side: {{ type: udp, bind: "127.0.0.1:{other}", to: [shards] }},')
    millrace = bench.millrace(conf=text)
    bench.replay("--number", "--one", "--lines", 100, "--pps", 5000)
    wait_delivered(millrace, 100)
    one.pause(1)
    try:
        bench.replay("--number", "--number-from", 100, "--one", "--lines", 20000, "--pps", 20000)
        wait_for(lambda: total(millrace, "held_records", "outputs") > 0, "the output to hold")
        bench.replay("--number", "--lines", 10000, "--pps", 2000, target=f"127.0.0.1:{other}")
        assert sink.wait_lines(10000)["distinct"] == 10000
        millrace.check()
        counters = Counters(millrace)
        assert counters.dropped() == 0 and counters.kernel_drops() == 0
        assert sum(r["memory_bytes"] for r in millrace.status()["outputs"] if r["name"] == "raw") <= 1 << 20
    finally:
        one.resume(1)
    wait_for(lambda: len(numbers(one, name)) == 20100, "the rest to arrive", 30)
    millrace.check()


def test_pids_are_gone(bench):
    """A producer's threads do not keep a worker alive."""
    mock = Mock(bench, "t:1")
    millrace = bench.millrace(conf=conf(mock, "t"))
    pids = list(wait_ready(millrace).values())
    millrace.terminate()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
