# SPDX-License-Identifier: MIT
"""Where log lines go: a file that is rotated, systemd's journal, stderr; what the first lines say; that nothing waits."""
import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from conftest import BUILD, free_port, wait_for
from faults import wait_ready
from peers import Collector, Wrapped, needs_root, one_input, send_datagrams

FORM = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (ERROR|WARN|INFO|DEBUG) (master|worker \d+): ")


def log_file(bench):
    return bench.path / "millrace.log"


def logged(millrace, path, pattern):
    """Until a line of the file matches."""
    return wait_for(lambda: path.exists() and re.search(pattern, path.read_text()), f"{pattern!r} in {path.name}")


def in_file(bench, *flags, backends, workers=2):
    millrace = bench.millrace("--log", log_file(bench), *flags, backends=backends, workers=workers, wait=False)
    logged(millrace, log_file(bench), "is serving")
    return millrace


def test_a_file(bench):
    """All lines of all processes, each whole, none on stderr but warnings of the start; only its group may read it."""
    backend = Collector(bench)
    millrace = in_file(bench, "-l", "debug", backends=backend.addresses)
    os.kill(millrace.worker_pids()[0], signal.SIGKILL)
    logged(millrace, log_file(bench), "killed by signal 9")
    wait_ready(millrace)
    assert millrace.terminate() == 0
    lines = log_file(bench).read_text().splitlines()
    assert all(FORM.match(line) for line in lines), lines
    assert {FORM.match(line).group(2) for line in lines} >= {"master"}
    assert not any("killed by signal" in line for line in millrace.err)  # after the start, nobody looks at stderr
    assert log_file(bench).stat().st_mode & 0o777 == 0o640


def test_errors_of_the_start_are_for_both(bench):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind(("127.0.0.1", 0))
        bench.port = holder.getsockname()[1]
        millrace = bench.millrace("--log", log_file(bench), backends=["127.0.0.1:1"], wait=False)
        millrace.expected_exit, millrace.expected_errors = 1, ["in use by another program"]
        assert millrace.wait() == 1
    for text in ("\n".join(millrace.err), log_file(bench).read_text()):
        assert "ERROR master: Cannot listen on udp" in text


@pytest.mark.parametrize("path, why", [
    ("{}/away/log", r'log: ".*/away/log" cannot be opened: No such file or directory; its folder must be there, and writable'),
    ("{}", r'log: ".*" cannot be opened: Is a directory'),
    ("log", 'log: "log" is not understood; allowed is stderr, syslog, journal, or a path with a / in it'),
    ("/tmp/\x1b", r'log: "/tmp/\\x1b" is not understood'),
])
def test_a_file_that_cannot_be(bench, path, why):
    r = subprocess.run([BUILD / "millrace", "--listen", f"udp://127.0.0.1:{free_port()}", "--backend", "127.0.0.1:1", "--log",
                        path.replace("{}", str(bench.path))], capture_output=True, text=True, timeout=20)
    assert r.returncode == 1 and re.search(why, r.stderr), r.stderr


@needs_root
def test_rotation(bench):
    """mv and USR1 under load, in a folder that only root may write: master and workers, also one that comes later, write to the
    new file and no line is lost; a file that cannot be opened anew is one error, and the old one goes on."""
    sink = bench.sink("--number")
    os.chmod(bench.path, 0o700)
    millrace = in_file(bench, backends=[*sink.addresses])
    load = threading.Thread(target=bench.replay, args=("--number", "--lines", 20000, "--pps", 10000))
    load.start()
    first, second = log_file(bench), bench.path / "millrace.log.1"
    first.rename(second)
    millrace.send_signal(signal.SIGUSR1)
    wait_for(first.exists, "the new file")
    for pid in millrace.worker_pids().values():
        wait_for(lambda pid=pid: str(first) in open_files(pid), "the worker to have it")
    assert str(second) not in open_files(millrace.pid)
    load.join()
    sink.wait_lines(20000)
    sink.finish()  # the backend is gone: a line of each worker
    for slot in (0, 1):
        logged(millrace, first, rf"worker {slot}: backend .* down")
    assert "down" not in second.read_text()
    os.kill(millrace.worker_pids()[0], signal.SIGKILL)
    logged(millrace, first, "worker 0 .*killed by signal 9")
    wait_ready(millrace)
    assert str(first) in open_files(millrace.worker_pids()[0])
    size = first.stat().st_size
    first.rename(second)
    first.mkdir()
    millrace.send_signal(signal.SIGUSR1)
    logged(millrace, second, 'ERROR master: log: ".*" cannot be opened: Is a directory')
    assert second.stat().st_size > size
    first.rmdir()
    millrace.send_signal(signal.SIGUSR1)
    wait_for(first.exists, "the new file")


@needs_root
def test_rotation_while_a_worker_stands_still(bench, n=320):
    """T9: more messages than its link holds; when it goes on, it writes to the last of the files."""
    sink = bench.sink("--number")
    os.chmod(bench.path, 0o700)
    millrace = in_file(bench, backends=[*sink.addresses])
    file, pid = log_file(bench), millrace.worker_pids()[0]
    os.kill(pid, signal.SIGSTOP)
    for _ in range(n):
        file.unlink()
        millrace.send_signal(signal.SIGUSR1)
        wait_for(file.exists, "the new file")
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: str(file) in open_files(pid), "the worker to have the last file")
    assert not any(name.startswith(str(file)) and "deleted" in name for name in open_files(pid))


def open_files(pid):
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(os.readlink(fd))
    return found


@needs_root
def test_a_full_disk(bench):
    """Lines are lost, counted and told when there is room again; lines of metrics are not."""
    backend = Collector(bench)
    disk = bench.path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], check=True)
    try:
        millrace = bench.millrace("--log", disk / "log", backends=backend.addresses, wait=False)
        logged(millrace, disk / "log", "is serving")
        with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as f:
            while True:
                f.write(b"x" * 4096)
        with contextlib.suppress(OSError), open(disk / "log", "ab", buffering=0) as f:  # the page that it has
            while True:
                f.write(b"#")
        for _ in range(3):
            millrace.send_signal(signal.SIGHUP)  # a line each: there is no file to reload
            millrace.check()
        send_datagrams(bench, "udp", b"a:1|c")
        assert backend.wait_lines(1) == [b"a:1|c"]
        (disk / "filler").unlink()
        millrace.send_signal(signal.SIGHUP)
        logged(millrace, disk / "log", r"master: [1-9]\d* log lines were lost: the file did not take them")
        assert millrace.terminate() == 0
    finally:
        subprocess.run(["umount", disk], check=True)


def journal(bench, *flags, backends):
    """A millrace whose journal is the test's: (socket, millrace). The folder lets everybody through, as /run does."""
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.bind(str(bench.path / "socket"))
    os.chmod(bench.path / "socket", 0o666)
    s.settimeout(15)
    prepare = (f"mount -t tmpfs none /run && mkdir -p /run/systemd/journal && touch /run/systemd/journal/socket && "
               f"mount --bind {bench.path}/socket /run/systemd/journal/socket")
    conf = one_input(bench, "udp", backends, workers=2)
    return s, Wrapped(bench, ["-m"], prepare, conf, *flags)


@needs_root
def test_journal(bench):
    """Its own protocol, from master and workers, with the level as priority; nothing on stderr after the start."""
    backend = Collector(bench)
    s, millrace = journal(bench, "--log", "journal", backends=[*backend.addresses, "127.0.0.1:1"])
    lines = []
    while not any("is serving" in x for x in lines) or sum("127.0.0.1:1 down" in x for x in lines) < 2:
        lines.append(s.recv(65536).decode())
    form = re.compile(r"PRIORITY=([346])\nSYSLOG_FACILITY=3\nSYSLOG_IDENTIFIER=millrace\nMESSAGE=(master|worker \d): [ -~]+\n")
    assert all(form.fullmatch(x) for x in lines), lines
    assert {form.fullmatch(x).group(2) for x in lines} == {"master", "worker 0", "worker 1"}
    assert all(form.fullmatch(x).group(1) == "4" for x in lines if "down" in x)
    assert millrace.terminate() in (0, 3)
    millrace.expected_exit = millrace.p.returncode
    assert not any("INFO" in line for line in millrace.err)


@needs_root
def test_the_journal_that_systemd_connected(bench):
    """JOURNAL_STREAM is our stderr: its lines have levels. Another stderr: they go there."""
    backend = Collector(bench)
    s, millrace = journal(bench, backends=backend.addresses)  # no JOURNAL_STREAM
    millrace.wait_line("is serving")
    millrace.finish()
    a, b = socket.socketpair()
    stat = os.fstat(b.fileno())
    (bench.path / "socket").unlink()
    os.environ["JOURNAL_STREAM"] = f"{stat.st_dev}:{stat.st_ino}"
    try:
        bench.port = None
        s2, other = journal(bench, backends=backend.addresses)
        other.wait_line("is serving")  # its stderr is a pipe of the test's
        other.finish()
        s2.setblocking(False)
        with pytest.raises(BlockingIOError):
            s2.recv(65536)
        third = subprocess.Popen(other.words, cwd=bench.path, stderr=b)
        try:
            s2.settimeout(15)
            while b"is serving" not in s2.recv(65536):
                pass
        finally:
            third.terminate()
            assert third.wait(20) == 0
        a.setblocking(False)
        with pytest.raises(BlockingIOError):
            a.recv(65536)
    finally:
        del os.environ["JOURNAL_STREAM"]


@needs_root
def test_the_first_lines(bench):
    """Version, workers, user, capabilities; each endpoint with its sockets and what the kernel gave; the sysctl to raise."""
    backend = Collector(bench)
    rmem_max = int(Path("/proc/sys/net/core/rmem_max").read_text())
    version = subprocess.run([BUILD / "millrace", "--version"], capture_output=True, text=True).stdout.split()[1]
    words = ["setpriv", "--bounding-set=-net_admin", BUILD / "millrace", "--fork-count", "3", "--receive-buffer", rmem_max + 4096,
             "--listen", f"udp://127.0.0.1:{bench.port or free_port()}", "--backend", backend.addresses[0]]
    millrace = bench.run(*words)
    millrace.wait_line("is serving with 3 workers")
    text = "\n".join(millrace.err)
    assert re.search(rf"INFO master: millrace {re.escape(version)} starts: 3 workers as user nobody, group nogroup; capabilities "
                     r"of the master: cap_kill, cap_setgid, cap_setuid, cap_setpcap\n", text), text
    assert re.search(r"listening on udp 127.0.0.1:\d+ with 3 sockets, receive buffer [\d.]+ [KM]iB each", text)
    assert f"set sysctl net.core.rmem_max={rmem_max + 4096}" in text
    assert "starts" in millrace.err[0]
    millrace.send_signal(signal.SIGTERM)
    assert millrace.wait() == 0


def test_what_goes_wrong_often_is_said_seldom(bench):
    """Signals that each write a line, more than a log may have in a second: the rest is counted, not written."""
    backend = Collector(bench)
    millrace = in_file(bench, backends=backend.addresses, workers=1)
    sent = 0
    seen = log_file(bench).read_text().count("ERROR master: reload:")

    def lost():
        nonlocal sent
        for _ in range(200):
            os.kill(millrace.pid, signal.SIGHUP)
            sent += 1
        m = re.search(r"master: (\d+) log lines were lost: .* or they were too many", log_file(bench).read_text())
        return m and int(m.group(1))
    many = wait_for(lost, "lines to be held back", 20)
    assert seen == 0 and many > 0
    assert log_file(bench).read_text().count("ERROR master: reload:") + many <= sent
