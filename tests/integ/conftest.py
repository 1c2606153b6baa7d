# SPDX-License-Identifier: MIT
"""The bench of the integration tests: the real programs on ports that they pick, in a folder of the test's own.

A test asks for `bench` and starts what it needs: bench.sink(), bench.millrace(), bench.replay(). Everything is stopped
at its end, in reverse order; a millrace that still runs must balance its ledger (`millracectl check`), leave with 0 or the
code that the test expects, and have written no line of level ERROR that the test did not announce.
"""
import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

FAULT = re.compile("Sanitizer|: runtime error: ")  # of a build with SAN=address,undefined
ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("MILLRACE_BUILD", ROOT / "build"))


def wait_for(condition, what, timeout=30.0, every=0.01):
    """Polls until condition() is true (its value is returned); fails with `what` after timeout, which is what a hang passes,
    not what a busy machine may take. A last look comes after it: who looks may have been held up longer than what it looks at."""
    until = time.monotonic() + timeout
    while True:
        is_late = time.monotonic() > until
        value = condition()
        if value:
            return value
        if is_late:
            pytest.fail(f"waited {timeout} s for {what}")
        time.sleep(every)


def child_pids(pid):
    """None are left when it has ended. A child that ends during a look hides another one (man 5 proc): two looks agree."""
    def look():
        try:
            return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            return []
    before, pids = None, look()
    while pids != before:
        before, pids = pids, look()
    return pids


def free_port(*kinds):
    """A loopback port below the range of clients that is free for TCP and UDP."""
    import random
    for _ in range(1000):
        port = random.randrange(10000, 30000)
        try:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                with socket.socket(socket.AF_INET, kind) as s:
                    s.bind(("127.0.0.1", port))
            return port
        except OSError:
            pass
    pytest.fail("no free port")


class Process:
    """A program whose output is collected line by line."""

    def __init__(self, words, cwd, **kw):
        self.words = [str(w) for w in words]
        self.out, self.err = [], []
        self.p = subprocess.Popen(self.words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  errors="replace", bufsize=1, **kw)
        self.threads = [threading.Thread(target=self._read, args=a, daemon=True)
                        for a in ((self.p.stdout, self.out), (self.p.stderr, self.err))]
        for t in self.threads:
            t.start()

    @staticmethod
    def _read(stream, lines):
        for line in stream:
            lines.append(line.rstrip("\n"))

    @property
    def pid(self):
        return self.p.pid

    def wait_line(self, pattern, timeout=30.0, stream="err"):
        lines = getattr(self, stream)

        def found():
            for line in list(lines):
                m = re.search(pattern, line)
                if m:
                    return m
            if self.p.poll() is not None and not any(t.is_alive() for t in self.threads):
                for line in list(lines):
                    if re.search(pattern, line):
                        return re.search(pattern, line)
                pytest.fail(f"{self.words[0]} ended with {self.p.returncode} before {pattern!r}:\n" + "\n".join(self.err[-20:]))
            return None
        return wait_for(found, f"{pattern!r} from {self.words[0]}", timeout)

    def send_signal(self, sig):
        self.p.send_signal(sig)

    def wait(self, timeout=30.0):
        """The exit code; all output has been read then."""
        code = self.p.wait(timeout)
        for t in self.threads:
            t.join(timeout)
        return code

    def kill(self):
        if self.p.poll() is None:
            self.p.kill()
            self.p.wait()


class Sink(Process):
    """millrace-sink; .ports in the order of the addresses."""

    def __init__(self, bench, *options, ports=1, udp=False):
        kind = ["--udp"] if udp else []
        super().__init__([BUILD / "millrace-sink", *kind, "--json", "--control-stdin", *options, "--ports", str(ports),
                          "127.0.0.1:0"], bench.path, stdin=subprocess.PIPE)
        wait_for(lambda: sum(line.startswith("listening") for line in self.out) == ports or self.p.poll() is not None,
                 "the sink to listen")
        self.ports = [int(line.rsplit(":", 1)[1]) for line in self.out if line.startswith("listening")]
        self.addresses = [f"127.0.0.1:{p}" + (":udp" if udp else "") for p in self.ports]

    def ask(self, command):
        """Sends a command to a running sink; returns its answer (a dict for `report`)."""
        before = len(self.out)
        self.p.stdin.write(command + "\n")
        self.p.stdin.flush()
        wait_for(lambda: len(self.out) > before, f"the sink's answer to {command}")
        line = self.out[before]
        assert not line.startswith("error"), line
        return json.loads(line) if line.startswith("{") else line

    def report(self):
        return self.ask("report")

    def wait_lines(self, n, key="lines", timeout=30.0):
        """Until n lines have arrived; the report."""
        return wait_for(lambda: (lambda r: r if r[key] >= n else None)(self.report()), f"{n} {key} at the sink", timeout)

    def finish(self):
        """Ends it; its last report."""
        self.send_signal(signal.SIGTERM)
        self.wait()
        return json.loads([line for line in self.out if line.startswith("{")][-1])


class Millrace(Process):
    """The daemon, ready. .port is its listening port when the bench chose it."""

    def __init__(self, bench, words, control, wait=True, **kw):
        self.bench, self.control = bench, control
        self.expected_exit, self.expected_errors = 0, []
        super().__init__([BUILD / "millrace", *words], bench.path, **kw)
        if wait:
            self.wait_line(r"millrace is serving with \d+ worker")

    def ctl(self, *words, check=True):
        r = subprocess.run([BUILD / "millracectl", "-s", self.control, *map(str, words)], capture_output=True, text=True,
                           timeout=30)
        if check:
            assert r.returncode == 0, f"millracectl {words}: {r.returncode}\n{r.stdout}{r.stderr}"
        return r

    def status(self):
        return json.loads(self.ctl("status", "--json").stdout)

    def stats(self):
        return json.loads(self.ctl("stats", "--json").stdout)

    def check(self):
        """The ledger balances, now."""
        r = self.ctl("check", check=False)
        assert r.returncode == 0, r.stdout + r.stderr

    def worker_pids(self):
        """Pids of the workers by slot, from the kernel."""
        by_slot = {}
        for pid in child_pids(self.pid):
            try:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if m := re.fullmatch(r"millrace/(\d+)", name):
                by_slot[int(m.group(1))] = pid
        return by_slot

    def terminate(self, sig=signal.SIGTERM, timeout=30.0):
        if self.p.poll() is None:
            self.send_signal(sig)
        return self.wait(timeout)

    def finish(self):
        """What every test ends with: ledger, exit code, clean log."""
        if self.p.poll() is None:
            self.check()
            self.send_signal(signal.SIGTERM)
        code = self.wait()
        text = "\n".join(self.err)
        assert self.expected_exit in (None, code), f"exit code {code}, expected {self.expected_exit}\n{text}"
        for line in self.err:
            if " ERROR " in line and not any(re.search(e, line) for e in self.expected_errors):
                pytest.fail(f"unexpected error in the log: {line}\n{text}")
        assert not FAULT.search(text), text


class Bench:
    def __init__(self, path):
        self.path = path
        self.started = []
        self.port = None

    def _keep(self, process):
        self.started.append(process)
        return process

    def sink(self, *options, **kw):
        return self._keep(Sink(self, *options, **kw))

    def run(self, *words, **kw):
        """Any program in the background, as a Process."""
        return self._keep(Process(words, self.path, **kw))

    def millrace(self, *flags, backends=(), workers=2, listen=("udp", "tcp"), conf=None, wait=True, **kw):
        """By flags (listen on bench.port) or with conf=TEXT of a file in which {port} and {control} are filled in."""
        self.port = self.port or free_port()
        control = self.path / "control.sock"
        if conf is not None:
            file = self.path / "millrace.yaml"
            file.write_text(conf.replace("{port}", str(self.port)).replace("{control}", str(control)))
            words = ["-c", file]
            if "{control}" not in conf:
                words += ["--control", control]
        else:
            words = ["--workers", workers, "--control", control]
            for transport in listen:
                words += ["--listen", f"{transport}://127.0.0.1:{self.port}"]
            for b in backends:
                words += ["--backend", b]
        words += flags
        if "--http" not in words and "http:" not in str(conf):  # tests run side by side: none asks for the default port
            words += ["--http", "off"]
        return self._keep(Millrace(self, words, control, wait=wait, **kw))

    def replay(self, *options, target=None, file=None, timeout=60):
        """Runs millrace-replay to its end; its JSON summary."""
        words = [BUILD / "millrace-replay", "--json", "-q", *map(str, options), target or f"127.0.0.1:{self.port}"]
        if file:
            words.append(file)
        r = subprocess.run(words, capture_output=True, text=True, timeout=timeout, cwd=self.path)
        assert r.returncode == 0, r.stderr
        return json.loads(r.stdout.splitlines()[-1])

    def stop(self):
        failure = None
        for process in reversed(self.started):
            try:
                if isinstance(process, Millrace):
                    process.finish()
            except BaseException as e:  # the others are stopped all the same
                failure = failure or e
            process.kill()
            if FAULT.search("\n".join(getattr(process, "err", []))):
                failure = failure or AssertionError("\n".join(process.err[-60:]))
        if failure:
            raise failure


@contextlib.contextmanager
def network_namespace():
    """A new one, with lo up, for this thread and all that it starts. OSError where we may not (it needs root)."""
    new_network = 0x40000000  # CLONE_NEWNET; os.unshare came with Python 3.12
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(new_network) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            assert libc.setns(home, 0) == 0
    finally:
        os.close(home)


@pytest.fixture
def own_network():
    """A network namespace of the test's own, whose counters are its own too. Name it before `bench`."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(network_namespace())
        except OSError as e:
            pytest.skip(f"no network namespace of its own: {e}; needs root")
        yield


@pytest.fixture
def apart():
    """The same where we may; else the test shares the host's ports with the tests that run beside it. Seen once, with two
    runs side by side: 2,000 lines of another test in a sink, probably of a millrace that kept trying a port which the
    kernel had given to somebody else by then."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(network_namespace())
        yield


@pytest.fixture
def bench(tmp_path):
    b = Bench(tmp_path)
    try:
        yield b
    finally:
        b.stop()


def pytest_configure(config):
    config.addinivalue_line("markers", "needs_root: makes network namespaces and interfaces; skips without root")
    config.addinivalue_line("markers", "soak: the size that an issue states; make soak runs these")
