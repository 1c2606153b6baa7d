# SPDX-License-Identifier: MIT
"""What a transition asks the kernel or the allocator for is refused: each use in turn, in the master and in its children,
while lines come. The master lives, somebody serves, nothing is lost that is not counted."""
import ctypes
import itertools
import json
import mmap
import os
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from conftest import BUILD, free_port, wait_for
from faults import Counters, Sender, is_alive, wait_ready, wait_settled
from reload_rig import Config, Upgraded

pytestmark = pytest.mark.usefixtures("apart")

LIBRARY = BUILD / "tests" / "fail_nth.so"
# as fail_nth.c numbers them
CLASSES = {name: n for n, name in enumerate(("memory", "descriptor", "pidfd", "map", "fork", "epoll", "send_full", "send_many",
                                             "receive"))}
MASTER, CHILD = 0, 1


class Orders(ctypes.Structure):
    """struct orders of fail_nth.c."""
    _fields_ = [("is_armed", ctypes.c_uint32), ("role", ctypes.c_uint32), ("kind", ctypes.c_uint32), ("n", ctypes.c_uint32),
                ("master", ctypes.c_uint32), ("used", ctypes.c_uint32), ("hit_pid", ctypes.c_uint32),
                ("n_frames", ctypes.c_uint32), ("base", ctypes.c_uint64), ("frames", ctypes.c_uint64 * 24)]


class Failing(Upgraded):
    """A millrace with the library."""

    def __init__(self, bench, text):
        file = bench.path / "orders"
        file.write_bytes(bytes(ctypes.sizeof(Orders)))
        file.chmod(0o666)
        with open(file, "r+b") as f:
            self.orders = Orders.from_buffer(mmap.mmap(f.fileno(), ctypes.sizeof(Orders)))
        super().__init__(bench, text, env={"LD_PRELOAD": str(LIBRARY), "FAIL_NTH": str(file)})
        self.expected_errors.append(" ERROR ")
        self.orders.master = self.pid

    def arm(self, role, kind, n):
        o = self.orders
        o.role, o.kind, o.n, o.used, o.n_frames = role, kind, n, 0, 0
        o.is_armed = 1

    def disarm(self):
        """Whether it was hit."""
        self.orders.is_armed = 0
        return self.orders.used >= self.orders.n

    def trace(self):
        """Where it was hit, as text."""
        o = self.orders
        words = [hex(o.frames[i] - o.base - 1) for i in range(o.n_frames)]
        r = subprocess.run(["addr2line", "-fse", str(BUILD / "millrace"), *words], capture_output=True, text=True)
        names = r.stdout.split("\n")
        return " < ".join(f"{f} {w}" for f, w in zip(names[::2], names[1::2]) if f != "??")

    def rights(self):
        """The capabilities and user of the master and of each worker."""
        def of(pid):
            try:
                text = Path(f"/proc/{pid}/status").read_text()
            except (FileNotFoundError, ProcessLookupError):  # it was leaving
                return None
            return tuple(re.findall(r"^(?:Cap(?:Prm|Inh|Amb|Bnd)|Uid):\s*(.*)$", text, re.M))
        return of(self.pid), {of(p) for p in self.worker_pids().values()} - {None}


class Clients(threading.Thread):
    """TCP connections that are in the middle of a line all the while. What a cut one may have lost is in .open_to_doubt."""

    def __init__(self, port, n=6):
        super().__init__(daemon=True)
        self.port, self.n, self.sent, self.open_to_doubt, self.is_done = port, n, 0, 0, False
        self.cuts = 0
        self.start()

    def run(self):
        sockets, recent, number = [None] * self.n, [[] for _ in range(self.n)], 20_000_000
        rest = [b""] * self.n
        while not self.is_done or any(rest):
            for i in range(self.n):
                try:
                    if sockets[i] is None:
                        sockets[i] = socket.create_connection(("127.0.0.1", self.port), timeout=5)
                        rest[i], recent[i] = b"", []
                    if rest[i]:
                        sockets[i].sendall(rest[i])
                        rest[i] = b""
                        self.sent += 1
                    if not self.is_done:
                        text = b"m.k%06d:%d|c\n" % (number * 2654435761 % 10000, number)
                        number += 1
                        rest[i] = text[9:]
                        recent[i].append(time.monotonic())
                        sockets[i].sendall(text[:9])
                except OSError:
                    self.cuts += 1
                    now = time.monotonic()
                    self.open_to_doubt += sum(now - t < 12 for t in recent[i])
                    if sockets[i]:
                        sockets[i].close()
                    sockets[i], rest[i] = None, b""
                    if self.is_done:
                        return
                recent[i] = recent[i][-2000:]
            time.sleep(0.01)
        for s in sockets:
            if s:
                s.close()

    def stop(self):
        self.is_done = True
        self.join(30)


class Rig:
    def __init__(self, bench):
        self.sink = bench.sink("--number", "--keys", 10000, ports=3)
        self.config = Config(bench, self.sink.addresses[:2], output=", reconnect_min: 20ms, reconnect_max: 200ms",
                             top="drain_timeout: 3s\nstart_timeout: 5s\nhttp: off")
        self.millrace = self.config.millrace = bench._keep(Failing(bench, self.config.text()))
        self.sender = Sender(bench, "--sources", 32, "--pps", 500, "--bytes", 300, "--time", "3600s")
        self.clients = Clients(bench.port)
        self.sink.wait_lines(500)
        self.rights = self.millrace.rights()
        self.hits = self.injections = 0
        self.is_over = False

    # -- transitions: each returns when it is over, whether it came about or not

    def reload(self):
        c = self.config
        c.workers = 3 if c.workers == 2 else 2
        c.backends = self.sink.addresses[:2] if len(c.backends) == 3 else self.sink.addresses
        c.write()
        self.answer = self.millrace.ctl("reload", check=False)

    def upgrade(self):
        self.answer = self.millrace.ctl("upgrade", check=False)
        if "reload first" in self.answer.stderr:  # what was injected before
            self.millrace.ctl("reload", check=False)  # may be what fails now
            self.answer = self.millrace.ctl("upgrade", check=False)

    def worker(self):
        """Who gets the signal next."""
        workers = sorted(wait_ready(self.millrace).values())
        return workers[self.injections % len(workers)]

    def signal_worker(self, sig):
        pid = self.target
        said = len(self.millrace.err)
        os.kill(pid, sig)
        wait_for(lambda: not is_alive(pid) or self.ends() or
                 any("it goes on itself" in line for line in self.millrace.err[said:]), "another worker")

    def ends(self):
        return self.millrace.p.poll() is not None

    def kill(self):
        """Until another one serves in its place; asked only when it is there, since asking uses what it takes, too."""
        n = len(self.workers_before)
        self.signal_worker(signal.SIGKILL)
        wait_for(lambda: self.ends() or len(set(self.millrace.worker_pids().values()) - {self.target}) == n, "its successor", 20)
        wait_for(self.is_serving, "its successor to serve", 20)

    def term(self):
        self.signal_worker(signal.SIGTERM)

    # -- one injection

    def is_serving(self):
        r = self.millrace.ctl("status", "--json", check=False)
        if self.ends() or r.returncode != 0:
            return self.ends()
        workers = json.loads(r.stdout)["workers"]
        return workers and all(w["state"] == "ready" for w in workers)

    def inject(self, what, role, name, n):
        """False: the n-th use did not come."""
        m = self.millrace
        lines = len(m.err)
        self.injections += 1
        self.workers_before = list(m.worker_pids().values())
        self.target = self.worker()
        m.arm(role, CLASSES[name], n)
        where = f"{what} {'master' if role == MASTER else 'child'} {name} {n}: "
        try:
            getattr(self, what)()
            hit = m.disarm()
            self.hits += hit
            wait_for(self.is_serving, "all workers to serve", 20)
            if what == "upgrade" and hit and self.ends() and any("in place" in line for line in m.err[lines:]):
                return self.died_after_exec(lines)
            assert not self.ends(), f"the master left with {m.p.poll()}"
            here = self.sink.report()["lines"]
            self.sink.wait_lines(here + 100)
            assert hit or what in ("kill", "term") or self.answer.returncode == 0, self.answer.stderr
            m.check()
            master, workers = m.rights()
            assert master == self.rights[0] and workers <= self.rights[1], "the rights have changed"
            new = m.err[lines:]
            assert not any(re.search("bug: |do not balance", line) for line in new), new
        except BaseException as e:
            m.expected_exit = m.p.poll() if self.ends() else 3  # one report is enough
            pytest.fail(f"{where}{e}\nused {m.orders.used}, hit in {m.trace()}\n" + "\n".join(m.err[lines:][-40:]))
        return hit

    def died_after_exec(self, lines):
        """The new program could not go on: as after the death of a master, its workers deliver what they hold, and end."""
        m = self.millrace
        assert m.p.poll() != 0 and not any(re.search("bug: |do not balance", line) for line in m.err[lines:])
        m.expected_exit = m.p.poll()
        group = self.workers_before
        wait_for(lambda: not any(is_alive(p) for p in group), "the workers to drain")
        self.is_over = True
        return True

    def finish(self):
        """All that was sent has arrived, or is counted."""
        if self.is_over:
            self.clients.is_done = True
            self.sender.stop()
            return
        m = self.millrace
        self.clients.stop()
        sent = self.sender.stop()["lines"] + self.clients.sent
        c = wait_settled(m)
        report = wait_for(lambda: (lambda r: r if r["unread_bytes"] == 0 else None)(self.sink.report()), "the sink to read")
        lost = (c.lost_at_death() + c.at_risk() + c.dropped() + c.kernel_drops() + c.sum("input", "dropped_shutdown_lines") +
                self.clients.open_to_doubt)
        missing = sent - report["distinct"]
        text = "\n".join(m.err[-60:])
        print(f"{self.hits} injections: {sent} lines, missing {missing}, counted {lost}, doubles {report['doubles']}, "
              f"cut connections {self.clients.cuts}")
        assert missing <= lost, f"{missing} lines are missing, {lost} are counted\n{text}"
        assert report["doubles"] <= c.resent(), text
        assert report["malformed"] <= self.clients.cuts
        assert c.unbalanced() == []
        m.check()


class Walk:
    """Injections into one program after the other: a slot whose workers die often starts them later and later."""

    def __init__(self, bench, what, seconds=float("inf")):
        self.bench, self.what, self.until, self.rig, self.hits = bench, what, time.monotonic() + seconds, Rig(bench), 0

    def go(self, role, name, steps):
        """n of steps, until there is a run without a hit, or the time is over; the last n."""
        for n in steps:
            if self.rig.is_over or (self.rig.injections == 8 and self.what == "kill"):
                self.finish()
                self.rig = Rig(self.bench)
            if time.monotonic() > self.until or not self.rig.inject(self.what, role, name, n):
                return n

    def finish(self):
        self.rig.finish()
        self.hits += self.rig.hits
        self.rig.millrace.finish()


def sample():
    """1, 2, 4, 7, 13 …"""
    n, step = 1, 1
    while True:
        yield n
        n += step
        step += step * 2 // 3 + n % 3


def test_who_is_to_take_over_does_not_hear_of_it(bench):
    """A slot ends, and the channel for its sibling is lost on the way: the reload goes on when its time is over."""
    config = Config(bench, [f"127.0.0.1:{free_port()}"], top="drain_timeout: 500ms\nhttp: off")
    config.millrace = millrace = bench._keep(Failing(bench, config.text()))
    wait_ready(millrace)
    millrace.arm(CHILD, CLASSES["receive"], 2)  # the first is the one that slot 0 gives with, and nothing is connected
    first, _ = config.reload(workers=1)
    assert millrace.disarm() and "applied by rolling" in first
    assert len(wait_ready(millrace)) == 1
    millrace.check()


def test_who_leaves_gets_no_channel(bench):
    """It is lost on the way to the worker that leaves: that one is not told that all end, and the slot's sockets stay open."""
    config = Config(bench, [f"127.0.0.1:{free_port()}"], workers=1, top="drain_timeout: 500ms\nhttp: off")
    config.millrace = millrace = bench._keep(Failing(bench, config.text()))
    wait_ready(millrace)
    millrace.arm(CHILD, CLASSES["receive"], 1)
    first, _ = config.reload(output=", memory_limit: 65MiB")
    assert millrace.disarm() and "applied by rolling" in first
    with socket.create_connection(("127.0.0.1", bench.port)) as s:
        s.sendall(b"a:1|c\n")
        wait_for(lambda: Counters(millrace).sum("input", "received_lines") == 1, "the line to be read")
    millrace.check()
    millrace.expected_exit = 3  # its backend was never there


TRANSITIONS = ("reload", "term", "kill", "upgrade")


@pytest.mark.parametrize("what", TRANSITIONS)
def test_some_uses_fail(bench, what):
    walk = Walk(bench, what, 10)
    for role in (MASTER, CHILD):
        for name in CLASSES:
            walk.go(role, name, itertools.count(1) if name in ("fork", "pidfd") else sample())  # few
    walk.finish()
    assert walk.hits > 0


@pytest.mark.soak
@pytest.mark.parametrize("role", [MASTER, CHILD], ids=["master", "child"])
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("what", TRANSITIONS)
def test_every_use_fails(bench, what, name, role):
    walk = Walk(bench, what)
    n = walk.go(role, name, itertools.count(1))
    walk.finish()
    print(f"{what} {name}: {n - 1} uses")
