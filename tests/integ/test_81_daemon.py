# SPDX-License-Identifier: MIT
"""--daemon: the command returns 0 when all workers are ready, else says why; the pid file tells who it is, and keeps a
second one away; systemd hears how it goes; signals of the first moments."""
import os
import re
import signal
import socket
import statistics
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from conftest import BUILD, Millrace, child_pids, free_port, wait_for
from faults import is_alive
from peers import Collector, config, needs_root, statsite


class Daemon(Millrace):
    """A millrace that went to the background; .start is how its command ended, .err its log file's lines."""

    def __init__(self, bench, *flags, conf=None, backends=("127.0.0.1:1",), name="d", expect=0):
        self.bench, self.control = bench, bench.path / f"{name}.sock"
        self.pid_file, self.log = bench.path / f"{name}.pid", bench.path / f"{name}.log"
        bench.port = bench.port or free_port()
        words = ["--listen", f"udp://127.0.0.1:{bench.port}", "--workers", "2"]
        for b in backends:
            words += ["--backend", b]
        if conf:
            (bench.path / f"{name}.yaml").write_text(conf)
            words = ["-c", bench.path / f"{name}.yaml"]
        words = [BUILD / "millrace", "--daemon", *words, "--control", self.control, "--pid-file", self.pid_file,
                 "--log", self.log, *flags]
        self.start = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=30, cwd=bench.path)
        self.n = None
        if self.start.returncode == 0 and "--pid-file" not in flags:  # whether that was expected or not, it is ended
            self.n = int(self.pid_file.read_text())
            bench.started.append(self)
        assert self.start.returncode == expect, self.start.stderr

    @property
    def pid(self):
        return self.n

    @property
    def err(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    def is_alive(self):
        return is_alive(self.n)

    def end(self, sig=signal.SIGTERM):
        if self.is_alive():
            os.kill(self.n, sig)
        wait_for(lambda: not self.is_alive(), "the daemon to end", 20)

    def finish(self):
        if self.is_alive():
            self.check()
        self.kill()
        assert not any(" ERROR " in line for line in self.err), self.err

    def kill(self):
        self.end()


def test_in_the_background(bench):
    """The command ends when workers serve; what it leaves has no terminal, no folder and nobody's pipes."""
    sink = bench.sink("--number")
    daemon = Daemon(bench, backends=sink.addresses)
    assert daemon.start.stdout == "" and daemon.start.stderr == ""
    bench.replay("--number", "--lines", 1000, "--pps", 2000)  # at once: the endpoints are there
    sink.wait_lines(1000)
    fields = Path(f"/proc/{daemon.pid}/stat").read_text().rsplit(")", 1)[1].split()
    assert fields[3] == str(daemon.pid) and fields[4] == "0"  # a session of its own, without a terminal
    assert os.readlink(f"/proc/{daemon.pid}/cwd") == "/"
    for pid in (daemon.pid, *daemon.worker_pids().values()):
        assert [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)] == ["/dev/null"] * 3
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    assert "Umask:\t0022" in status
    assert daemon.ctl("pages").stdout.split()[-1] == str(daemon.pid)
    assert daemon.pid_file.read_text() == f"{daemon.pid}\n" and daemon.pid_file.stat().st_mode & 0o777 == 0o644
    daemon.check()
    daemon.end()
    assert not daemon.pid_file.exists() and not daemon.control.exists()
    assert re.search(r"output \"backends\": 1000 offered = 1000 delivered", "\n".join(daemon.err))


@pytest.mark.parametrize("how", ["port", "user", "configuration"])
def test_why_it_did_not_start(bench, how):
    """Exit 1, the reason on stderr, and nothing stays behind."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    holder.bind(("127.0.0.1", 0))
    flags, conf, why = [], None, None
    if how == "port":
        bench.port = holder.getsockname()[1]
        why = r"Cannot listen on udp 127\.0\.0\.1:\d+: the address is in use by another program"
    elif how == "user":
        flags, why = ["--user", "nosuchuser"], 'no user "nosuchuser"'
    else:
        conf, why = "inputs: {}\n", "inputs: there are none"
    daemon = Daemon(bench, *flags, conf=conf, expect=1)
    assert re.search(why, daemon.start.stderr), daemon.start.stderr
    assert not daemon.pid_file.exists() and not daemon.control.exists()
    holder.close()


@needs_root
def test_a_worker_that_cannot_work(bench):
    """It says so over its link, for the one who started it; here its queues find no room."""
    conf = bench.path / "millrace.yaml"
    conf.write_text(f"""
daemon: true
workers: 2
http: off
log: {bench.path}/log
pid_file: {bench.path}/pid
inputs: {{ udp: {{ type: udp, bind: "127.0.0.1:{free_port()}", to: [out] }} }}
outputs: {{ out: {{ type: statsite, backends: ["127.0.0.1:1"], memory_limit: 64GiB }} }}
""")
    words = ["prlimit", f"--as={8 << 30}", BUILD / "millrace", "-c", conf]
    r = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=30)
    assert r.returncode == 1
    assert re.search(r"worker \d cannot work: Cannot map \d+ bytes for queues: .*; lower memory_limit\.", r.stderr), r.stderr
    assert not (bench.path / "pid").exists()


def test_root_that_cannot_make_its_workers_somebody_else(bench):
    """Said before anything is made, with the ways that work."""
    words = ["setpriv", "--bounding-set=-setuid,-setgid", BUILD / "millrace", "--daemon", "--listen", f"udp://127.0.0.1:{free_port()}",
             "--workers", "2", "--log", bench.path / "log", "--pid-file", bench.path / "pid", "--backend", "127.0.0.1:1"]
    r = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=30)
    assert r.returncode == 1
    assert "root without CAP_SETUID and CAP_SETGID" in r.stderr and "user: root" in r.stderr, r.stderr
    assert not (bench.path / "pid").exists()


def test_workers_that_are_late(bench):
    """More workers than can be made in the time that they have: the command says who is not there."""
    r = subprocess.run(list(map(str, [BUILD / "millrace", "--daemon", "--listen", f"udp://127.0.0.1:{free_port()}", "--workers",
                                      "256", "--start-timeout", "100ms", "--log", bench.path / "log", "--pid-file",
                                      bench.path / "pid", "--backend", "127.0.0.1:1"])), capture_output=True, text=True, timeout=30)
    if r.returncode == 0:
        os.kill(int((bench.path / "pid").read_text()), signal.SIGTERM)
        pytest.skip("this machine makes 256 workers in 100 ms")
    assert "worker 255 is not ready after start_timeout" in r.stderr, r.stderr
    assert not (bench.path / "pid").exists()


def test_a_second_one_with_the_same_pid_file(bench):
    """It does not start, and the first goes on; other instances do as they like."""
    first = Daemon(bench)
    bench.port = None
    second = Daemon(bench, "--pid-file", first.pid_file, name="second", expect=1)
    assert f'pid_file: "{first.pid_file}" belongs to a millrace that runs as process {first.pid}' in second.start.stderr
    assert int(first.pid_file.read_text()) == first.pid
    bench.port = None
    Daemon(bench, name="third")
    first.check()


@pytest.mark.parametrize("left", ["the number of a stranger", "rubbish", "nothing"])
def test_a_stale_pid_file(bench, left):
    """Left behind by a kill -9: taken over, whoever has that number now."""
    first = Daemon(bench)
    workers = list(first.worker_pids().values())
    os.kill(first.pid, signal.SIGKILL)
    wait_for(lambda: not any(map(is_alive, (first.pid, *workers))), "all of it to end", 20)
    assert first.pid_file.exists()
    first.pid_file.write_text({"the number of a stranger": f"{os.getpid()}\n", "rubbish": "x" * 4096, "nothing": ""}[left])
    first.control.unlink()
    second = Daemon(bench)
    assert second.pid != first.pid
    assert second.pid_file.read_text() == f"{second.pid}\n"


def test_a_pid_file_that_cannot_be(bench):
    daemon = Daemon(bench, "--pid-file", bench.path / "away" / "pid", expect=1)
    assert re.search(r'pid_file: ".*/away/pid" cannot be opened: No such file or directory; give a path', daemon.start.stderr)
    (bench.path / "link").symlink_to(bench.path / "target")
    daemon = Daemon(bench, "--pid-file", bench.path / "link", expect=1)
    assert "cannot be opened" in daemon.start.stderr and not (bench.path / "target").exists()


def test_pid_file_in_the_foreground(bench):
    backend = Collector(bench)
    millrace = bench.millrace("--pid-file", bench.path / "pid", backends=backend.addresses)
    assert (bench.path / "pid").read_text() == f"{millrace.pid}\n"
    assert millrace.terminate() == 0
    assert not (bench.path / "pid").exists()


@pytest.mark.parametrize("words, why", [
    (["--control", "c.sock"], 'control: "c.sock" is not absolute, and a daemon\'s folder is /; begin it with /'),
    (["--pid-file", "./p"], 'pid_file: "./p" is not absolute'),
    (["--log", "./l"], 'log: "./l" is not absolute'),
    (["--log", "stderr"], "log: a daemon has no stderr; name a file, syslog or journal"),
])
def test_a_daemon_needs_absolute_paths(bench, words, why):
    r = subprocess.run([BUILD / "millrace", "--daemon", "--listen", "udp://127.0.0.1:1", "--backend", "127.0.0.1:1", *words],
                       capture_output=True, text=True, timeout=20, cwd=bench.path)
    assert r.returncode == 1 and why in r.stderr, r.stderr


def test_a_daemon_needs_its_file_again(bench):
    (bench.path / "c.yaml").write_text(config({"in": {"type": "udp", "bind": "127.0.0.1:1", "to": "out"}},
                                              {"out": statsite(["127.0.0.1:1"])}))
    r = subprocess.run([BUILD / "millrace", "--daemon", "-c", "c.yaml"], capture_output=True, text=True, timeout=20, cwd=bench.path)
    assert r.returncode == 1 and 'the configuration\'s path "c.yaml" is not absolute' in r.stderr, r.stderr


def test_who_waits_gives_up(bench):
    """Ctrl-C at the command that waits ends the daemon that is about to start."""
    sink = bench.sink()
    words = [BUILD / "millrace", "--daemon", "--listen", f"udp://127.0.0.1:{free_port()}", "--backend", sink.addresses[0],
             "--log", bench.path / "log", "--pid-file", bench.path / "pid", "--workers", "64"]
    starter = bench.run(*words)
    wait_for(lambda: (bench.path / "pid").exists() or starter.p.poll() is not None, "the start")
    starter.send_signal(signal.SIGINT)
    code = starter.wait()
    if code == 0:  # it was ready already: then it is a daemon
        os.kill(int((bench.path / "pid").read_text()), signal.SIGTERM)
    else:
        assert code == 1
    wait_for(lambda: not (bench.path / "pid").exists(), "the pid file to go", 20)


# -- systemd -------------------------------------------------------------------------------------------------------------

class Notify:
    """A systemd that listens."""

    def __init__(self, bench):
        self.path = bench.path / "notify"
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.s.bind(str(self.path))
        self.s.settimeout(15)

    def next(self, wanted):
        """The next message that has this line; what else came is skipped."""
        while True:
            text = self.s.recv(4096).decode()
            if re.search(wanted, text, re.M):
                return text


def test_systemd(bench):
    """READY with MAINPID when it serves, STATUS with each change, STOPPING when it drains."""
    backend = Collector(bench)
    notify = Notify(bench)
    millrace = bench.millrace(backends=backend.addresses, env={**os.environ, "NOTIFY_SOCKET": str(notify.path)})
    assert notify.s.recv(4096).decode() == f"READY=1\nMAINPID={millrace.pid}\nSTATUS=2 of 2 workers serve."
    os.kill(millrace.worker_pids()[0], signal.SIGKILL)
    assert notify.s.recv(4096) == b"STATUS=1 of 2 workers serve."
    assert notify.s.recv(4096) == b"STATUS=2 of 2 workers serve."
    assert millrace.terminate() == 0
    assert notify.s.recv(4096).startswith(b"STOPPING=1\n")


def test_systemd_has_an_abstract_name(bench):
    backend = Collector(bench)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        name = f"millrace-test-{os.getpid()}-{bench.path.name}"
        s.bind("\0" + name)
        s.settimeout(15)
        bench.millrace(backends=backend.addresses, env={**os.environ, "NOTIFY_SOCKET": "@" + name})
        assert s.recv(4096).startswith(b"READY=1\n")


def test_systemd_of_a_daemon(bench):
    """MAINPID is the background's."""
    notify = Notify(bench)
    os.environ["NOTIFY_SOCKET"] = str(notify.path)
    try:
        daemon = Daemon(bench)
    finally:
        del os.environ["NOTIFY_SOCKET"]
    assert f"MAINPID={daemon.pid}\n" in notify.next("^READY=1$")


def test_watchdog(bench):
    """Fed at twice the rate that systemd asks for, by the loop: a master that hangs feeds it no more."""
    backend = Collector(bench)
    notify = Notify(bench)
    env = {**os.environ, "NOTIFY_SOCKET": str(notify.path), "WATCHDOG_USEC": "200000"}
    millrace = bench.millrace(backends=backend.addresses, env=env)
    fed = []
    for _ in range(11):
        notify.next("^WATCHDOG=1$")
        fed.append(time.monotonic())
    gap = statistics.median(b - a for a, b in zip(fed, fed[1:]))  # a busy machine holds one or the other up
    assert gap < 0.2, "it comes later than systemd would wait"
    millrace.send_signal(signal.SIGSTOP)
    wait_for(lambda: Path(f"/proc/{millrace.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T", "it to stop")
    notify.s.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            notify.s.recv(4096)
    notify.s.settimeout(0.5)
    with pytest.raises(TimeoutError):
        notify.s.recv(4096)
    millrace.send_signal(signal.SIGCONT)
    notify.s.settimeout(10)
    notify.next("^WATCHDOG=1$")


def test_watchdog_of_somebody_else(bench):
    """WATCHDOG_PID is another process: not fed."""
    backend = Collector(bench)
    notify = Notify(bench)
    env = {**os.environ, "NOTIFY_SOCKET": str(notify.path), "WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid())}
    bench.millrace(backends=backend.addresses, env=env)
    notify.next("^READY=1$")
    notify.s.settimeout(0.3)
    with pytest.raises(TimeoutError):
        notify.s.recv(4096)


# -- signals -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("sig", ["TERM", "INT", "QUIT", "HUP", "USR1", "USR2"])
def test_signals_of_the_first_moments(request, bench, sig):
    """From before main to READY: what ends it leaves no pid file and no socket; what does not, does not kill it."""
    number = getattr(signal, f"SIG{sig}")
    ends = sig in ("TERM", "INT", "QUIT")
    # who runs the tests in a shell's background has INT and QUIT ignored, and a child would have that from us
    request.addfinalizer(lambda before=signal.signal(number, lambda *_: None): signal.signal(number, before))
    for delay_us in (0, 200, 500, 1000, 2000, 3000, 5000, 8000, 12000, 20000):
        for path in ("pid", "c.sock"):
            (bench.path / path).unlink(missing_ok=True)
        words = [BUILD / "millrace", "--listen", f"udp://127.0.0.1:{free_port()}", "--listen", f"unix://{bench.path}/in.sock",
                 "--backend", "127.0.0.1:1", "--workers", "2", "--control", bench.path / "c.sock", "--pid-file", bench.path / "pid"]
        millrace = bench.run(*words)
        until = time.monotonic() + delay_us / 1e6
        if not ends:  # the kernel resets what is pending at exec: wait for our program
            wait_for(lambda: int(re.search(r"SigBlk:\t(\w+)", Path(f"/proc/{millrace.pid}/status").read_text()).group(1), 16)
                     & 1 << number - 1, "main")
        while time.monotonic() < until:
            pass
        millrace.send_signal(number)
        if not ends:
            millrace.wait_line("is serving")
            millrace.send_signal(signal.SIGTERM)
        code = millrace.wait()
        assert code in ((0, 3, -number) if ends else (0, 3)), (delay_us, code, millrace.err)
        assert not (bench.path / "pid").exists() and not (bench.path / "c.sock").exists(), (delay_us, code, millrace.err)
        assert not (bench.path / "in.sock").exists(), (delay_us, code)


def test_upgrade_of_a_daemon(bench):
    """Pid, pid file, HTTP socket and systemd's attention stay; the command that asked waits for it."""
    sink, notify, http = bench.sink("--number"), Notify(bench), free_port()
    bench.port = bench.port or free_port()
    os.environ["NOTIFY_SOCKET"] = str(notify.path)
    try:
        daemon = Daemon(bench, "--http", f"127.0.0.1:{http}", backends=sink.addresses)
    finally:
        del os.environ["NOTIFY_SOCKET"]
    bench.replay("--number", "--lines", 1000)
    sink.wait_lines(1000)
    notify.next("^READY=1$")
    monitor = int(re.search(r"(\d+)", next(p for p in children_of(daemon.pid) if p.endswith("mon"))).group(1))
    assert "upgraded" in daemon.ctl("upgrade").stdout
    notify.next("^RELOADING=1$")
    assert f"MAINPID={daemon.pid}\n" in notify.next("^READY=1$")
    assert daemon.is_alive() and daemon.pid_file.read_text() == f"{daemon.pid}\n"
    wait_for(lambda: get_http(http, "/healthz") == (200, "ok\n"), "the new program's monitor")
    wait_for(lambda: not Path(f"/proc/{monitor}").exists(), "the monitor before to be gone")
    assert get_http(http, "/readyz")[0] == 200
    assert Path(f"/proc/{daemon.pid}/cwd").resolve() == Path("/")
    bench.replay("--number", "--number-from", 1000, "--lines", 1000)
    sink.wait_lines(2000)
    daemon.check()
    daemon.end()
    assert not daemon.pid_file.exists() and not daemon.control.exists()


def children_of(pid):
    """"PID NAME" of each."""
    return [f"{p} " + Path(f"/proc/{p}/comm").read_text().strip() for p in child_pids(pid)]


def get_http(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as r:
            return r.status, r.read().decode()
    except OSError as e:
        return 0, str(e)
