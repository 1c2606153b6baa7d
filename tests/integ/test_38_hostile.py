# SPDX-License-Identifier: MIT
"""All at once and at random: reloads, kills of workers and monitor, processes that stand still, backends that stall, refuse
and reset, brokers that answer each error, invalid lines, too few descriptors. At the end all is accounted for."""
import contextlib
import os
import random
import resource
import signal
import time
from pathlib import Path

import pytest
from conftest import BUILD, child_pids, wait_for
from faults import Counters, Sender, is_monitor, send_datagrams, wait_ready
from kafka_peers import Mock, needs_kafka
from reload_rig import Config
from test_37_faults import Clients

pytestmark = [needs_kafka, pytest.mark.usefixtures("apart")]

PRODUCE, METADATA = 0, 3
BROKER_ERRORS = """UNKNOWN OFFSET_OUT_OF_RANGE INVALID_MSG UNKNOWN_TOPIC_OR_PART INVALID_MSG_SIZE LEADER_NOT_AVAILABLE
NOT_LEADER_FOR_PARTITION REQUEST_TIMED_OUT BROKER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE MSG_SIZE_TOO_LARGE NETWORK_EXCEPTION
RECORD_LIST_TOO_LARGE NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND INVALID_REQUIRED_ACKS TOPIC_AUTHORIZATION_FAILED
CLUSTER_AUTHORIZATION_FAILED UNSUPPORTED_VERSION POLICY_VIOLATION KAFKA_STORAGE_ERROR THROTTLING_QUOTA_EXCEEDED""".split()


class Hostile:
    """A relay of statsite and Kafka under load, and what is done to it. Each method that is named in DEEDS is one deed."""

    DEEDS = ("reload", "kill_worker", "kill_monitor", "stand_still", "stall", "refuse", "reset", "broker_error", "broker_down",
             "invalid", "few_descriptors", "upgrade")

    def __init__(self, bench, seed):
        self.bench, self.chance = bench, random.Random(seed)
        self.sink = bench.sink("--number", "--keys", 10000, ports=4)
        self.mock = Mock(bench, "t:4", brokers=2)
        self.config = Config(bench, self.sink.addresses, workers=3, output=", reconnect_min: 20ms, reconnect_max: 200ms",
                             top="drain_timeout: 20s\nhttp: 127.0.0.1:0\nlog_level: info")
        self.config.inputs = {"udp": '{ type: udp, bind: "127.0.0.1:{port}", to: [out, raw] }',
                              "tcp": '{ type: tcp, bind: "127.0.0.1:{port}", to: [out, raw] }'}
        self.millrace = self.config.millrace = bench.millrace(conf=self.text())
        self.pid = self.millrace.pid
        self.millrace.expected_errors, self.millrace.expected_exit = ["."], None
        self.sender = Sender(bench, "--sources", 32, "--pps", 2000, "--bytes", 200, "--time", "900s")
        self.clients = Clients(bench.port)
        self.invalid_datagrams = self.kills = 0
        self.sink.wait_lines(1000)

    def text(self):
        return self.config.text().replace(
            "outputs: {", "outputs: { raw: { type: kafka, topic: t, batch_delay: 5ms, properties: { bootstrap.servers: \"%s\", "
            "message.timeout.ms: 5000 } }," % self.mock.bootstrap)

    # -- deeds --

    def reload(self):
        if self.chance.random() < 0.3:
            self.config.write("inputs: [")
        else:
            self.config.workers = self.chance.randint(1, 4)
            self.config.backends = self.chance.sample(self.sink.addresses, self.chance.randint(2, 4))
            self.config.write(self.text())
        self.millrace.ctl("reload", check=False)

    def kill_worker(self):
        pids = list(self.millrace.worker_pids().values())
        if pids:
            self.kills += 1
            os.kill(self.chance.choice(pids), signal.SIGKILL)

    def kill_monitor(self):
        for pid in self.all_children():
            if is_monitor(pid):
                os.kill(pid, signal.SIGKILL)

    def some_child(self):
        """One of them as a list, which is empty when all have just been killed."""
        pids = self.all_children()
        return self.chance.sample(pids, 1) if pids else []

    def all_children(self):
        return child_pids(self.pid)

    def stand_still(self):
        """SIGSTOP of a child for a moment. It is nobody else meanwhile: the master takes no exit code of what has not ended."""
        for pid in self.some_child():
            os.kill(pid, signal.SIGSTOP)
            self.pass_time(0.3)
            os.kill(pid, signal.SIGCONT)

    def pass_time(self, seconds):
        """What a deed takes: traffic goes on meanwhile."""
        until = time.monotonic() + seconds
        wait_for(lambda: time.monotonic() >= until, "time to pass")

    def port(self):
        return self.chance.choice(self.sink.ports)

    def stall(self):
        self.sink.ask(f"stall {self.chance.randint(100, 1500)}ms {self.port()}")

    def refuse(self):
        port = self.port()
        self.sink.ask(f"refuse on {port}")
        self.sink.ask(f"reset {port}")
        self.pass_time(0.2)
        self.sink.ask(f"refuse off {port}")

    def reset(self):
        self.sink.ask(f"reset {self.port()}")

    def broker_error(self):
        errors = self.chance.sample(BROKER_ERRORS, 2)
        self.mock.ask(f"errors {self.chance.choice([PRODUCE, METADATA])} {self.chance.randint(1, 20)} " + " ".join(errors))

    def broker_down(self):
        broker = self.chance.randint(1, 2)
        self.mock.ask(f"down {broker}")
        self.pass_time(0.3)
        self.mock.ask(f"up {broker}")

    def invalid(self):
        n = self.chance.randint(1, 50)
        send_datagrams(self.bench, ["no:line\n"] * n)
        self.invalid_datagrams += n

    def few_descriptors(self):
        """Half of what it has, so that it opens nothing more."""
        pid = self.chance.choice([self.pid, *self.all_children()])
        try:
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")) // 2, before[1]))
            asked = self.bench.run(BUILD / "millracectl", "-s", self.millrace.control, "reload")  # may have to wait
            self.chance.choice([self.reset, self.kill_worker])()
            self.pass_time(0.2)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            asked.wait()
        except OSError:
            pass  # it has ended meanwhile

    def upgrade(self):
        self.millrace.ctl("upgrade", check=False)

    # -- the end --

    def rest(self):
        """All that was done is taken back; the relay serves as at the start."""
        for port in self.sink.ports:
            self.sink.ask(f"stall off {port}")
        for key in (PRODUCE, METADATA):
            self.mock.ask(f"clear {key}")
        self.config.workers, self.config.backends = 3, list(self.sink.addresses)
        self.config.write(self.text())
        wait_for(lambda: self.millrace.ctl("reload", check=False).returncode == 0, "a reload", 60)
        wait_ready(self.millrace, timeout=60)
        wait_for(lambda: len(self.millrace.worker_pids()) == 3 and any(map(is_monitor, self.all_children())), "all children", 60)

    def sizes(self):
        """(resident bytes of the master, its descriptors)"""
        rss = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * 4096
        return rss, len(os.listdir(f"/proc/{self.pid}/fd"))

    @staticmethod
    def read(c):
        """Datagrams that came to an end, whichever."""
        return c.sum("input", "received_datagrams") + c.kernel_drops() + c.sum("endpoint", "dropped_closed_datagrams")

    def settled(self, datagrams):
        c = Counters(self.millrace)
        return c if c.waiting() == c.sum("input", "open_connections") == 0 and self.read(c) >= datagrams else None

    def most_lost(self, c):
        return c.lost_at_death() + c.at_risk() + c.dropped() + c.kernel_drops() + self.clients.open_to_doubt

    def all_is_accounted_for(self):
        sent = self.sender.stop()
        self.clients.stop()
        lines = sent["lines"] + self.clients.sent
        datagrams = sent["datagrams"] + self.invalid_datagrams
        c = wait_for(lambda: self.settled(datagrams), f"{datagrams} datagrams and all connections to be read, and the queues to empty", 60)
        wait_for(lambda: self.sink.report()["unread_bytes"] == 0, "the sink to read the rest")
        assert c.unbalanced() == []
        self.millrace.check()
        report = self.sink.report()
        assert self.read(c) == datagrams
        assert c.sum("input", "invalid_lines") == self.invalid_datagrams
        print(f"sent {lines}, arrived {report['distinct']}, lost at death {c.lost_at_death()}, at risk {c.at_risk()}")
        assert (report["malformed"], report["outside"]) == (0, 0)
        assert 0 <= lines - report["distinct"] <= self.most_lost(c)
        assert report["doubles"] <= c.resent()


@pytest.mark.soak
@pytest.mark.parametrize("seconds, seed", [(8, 1), (300, 2)])
def test_all_at_once(bench, seconds, seed):
    h = Hostile(bench, seed)
    h.config.workers = 4  # what a slot has once had is kept
    h.config.reload(h.text())
    h.upgrade()
    h.rest()
    rss, descriptors = h.sizes()
    until = time.monotonic() + seconds
    done = []
    while time.monotonic() < until:
        done.append(h.chance.choice(h.DEEDS))
        print(done[-1], flush=True)
        with contextlib.suppress(ProcessLookupError):  # whom it was meant for may just have been ended by another deed
            getattr(h, done[-1])()
        assert h.millrace.p.poll() is None, "the master ended\n" + "\n".join(h.millrace.err[-30:])
    h.rest()
    wait_for(lambda: h.sizes()[1] <= descriptors, f"{descriptors} descriptors, not {h.sizes()[1]}", 30)
    assert h.sizes()[0] <= rss + 8 * 1024 * 1024
    h.all_is_accounted_for()
    assert not [line for line in h.millrace.err if "BUG" in line or "Sanitizer" in line]
