# SPDX-License-Identifier: MIT
"""What the master has for itself changes by a reload, too: the address for HTTP, the log, the pid file. The new one is opened
first; what cannot be opened is said, and nothing has changed."""
import fcntl
import http.client
import os
import socket

import pytest
from conftest import free_port, wait_for
from faults import children, monitor_pid
from reload_rig import Config, Load

pytestmark = pytest.mark.usefixtures("apart")


@pytest.fixture
def rig(bench):
    """Two workers under load, which at the end have delivered all, once, and were never replaced."""
    sink = bench.sink("--number", "--keys", 10000)
    config = Config(bench, sink.addresses, top=f"http: 127.0.0.1:{free_port()}")
    millrace = config.start()
    workers = millrace.worker_pids()
    load = Load(bench, sink)
    yield config
    load.go_on()
    assert millrace.worker_pids() == workers
    load.ends_exactly(millrace)


def get(port, path="/healthz"):
    c = http.client.HTTPConnection(f"127.0.0.1:{port}", timeout=10)
    c.request("GET", path)
    return c.getresponse().status


def is_refused(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) != 0


def port_of(config):
    return int(config.top.rsplit(":", 1)[1])


def test_http_goes_to_another_port(rig):
    """Who is connected is answered yet; the monitor stays, with its ten minutes."""
    old, new = port_of(rig), free_port()
    pid = monitor_pid(rig.millrace)
    early = socket.create_connection(("127.0.0.1", old))
    early.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
    assert get(old) == 200  # so the monitor has `early`, too
    first, lines = rig.reload(top=f"http: 127.0.0.1:{new}")
    assert first == "1 change, applied at once", (first, lines)
    assert get(new) == 200
    wait_for(lambda: is_refused(old), "the old port to be closed")
    early.sendall(b"\r\n")
    early.settimeout(10)
    answer = b""
    while part := early.recv(4096):  # until it is closed
        answer += part
    assert answer.startswith(b"HTTP/1.1 200") and b"Connection: close" in answer
    assert monitor_pid(rig.millrace) == pid


def test_http_goes_away_and_comes_back(rig):
    port = port_of(rig)
    rig.reload(top="http: off")
    wait_for(lambda: is_refused(port), "the port to be closed")
    rig.reload(top=f"http: 127.0.0.1:{port}")
    assert get(port) == 200
    pid = monitor_pid(rig.millrace)
    os.kill(pid, 9)  # the next one has the socket, too
    rig.millrace.wait_line("monitor .*killed by signal 9")
    wait_for(lambda: monitor_pid(rig.millrace) != pid, "the next monitor")
    assert get(port) == 200


def test_the_same_address_in_other_words(rig):
    port = port_of(rig)
    rig.reload(top=f"http: localhost:{port}")
    assert get(port) == 200


def test_http_that_cannot_be(rig, bench):
    """In use by another program, or by ourselves: the sentence says so, and all is as it was."""
    port = port_of(rig)
    top = rig.top
    pid_file, log = bench.path / "new.pid", bench.path / "new.log"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        rig.top = f"http: 127.0.0.1:{taken}\npid_file: {pid_file}\nlog: {log}"
        lines = rig.refuse()
        assert any(f"127.0.0.1:{taken}" in line and "in use" in line for line in lines), lines
    rig.top = f"http: 0.0.0.0:{port}"
    lines = rig.refuse()
    assert any(f"while millrace itself listens on 127.0.0.1:{port}" in line for line in lines), lines
    rig.top = top
    assert not pid_file.exists() and not log.exists()
    assert get(port) == 200
    assert rig.reload()[0] == "nothing has changed"


def processes(millrace):
    return [millrace.pid, monitor_pid(millrace), *children(millrace.pid)]


def has_open(pid, path):
    return any(os.path.realpath(f"/proc/{pid}/fd/{fd}") == str(path) for fd in os.listdir(f"/proc/{pid}/fd"))


def all_have(millrace, path):
    return all(has_open(pid, path) for pid in processes(millrace))


def none_has(millrace, path):
    return not any(has_open(pid, path) for pid in processes(millrace))


def test_log_goes_elsewhere(rig, bench):
    """All processes write to the new file from then on, and leave the old one; and back to stderr."""
    one, two = bench.path / "one.log", bench.path / "two.log"
    top = rig.top
    assert rig.reload(top=f"{top}\nlog: {one}")[0] == "1 change, applied at once"
    wait_for(lambda: all_have(rig.millrace, one), "all processes to have the file")
    assert "reload: 1 change" in one.read_text()
    rig.reload(top=f"{top}\nlog: {two}")
    wait_for(lambda: all_have(rig.millrace, two) and none_has(rig.millrace, one), "all to have the other file")
    size = one.stat().st_size
    rig.reload(top=f"{top}\nlog: {two}\nlog_level: debug")
    assert one.stat().st_size == size and "log_level: info -> debug" in two.read_text()
    rig.reload(top=f"{top}\nlog: stderr\nlog_level: debug")
    wait_for(lambda: none_has(rig.millrace, two), "all to leave the file")
    rig.millrace.wait_line("INFO master: reload: 1 change, applied at once")


def test_workers_that_serve_write_to_the_new_log(bench):
    """Those that are forked later, too."""
    backend, log = bench.sink(), bench.path / "new.log"
    config = Config(bench, backend.addresses)
    millrace = config.start()
    config.reload(top=f"log: {log}")
    wait_for(lambda: all_have(millrace, log), "all processes to have the file")
    backend.kill()
    for slot in 0, 1:
        wait_for(lambda: f"WARN worker {slot}: backend" in log.read_text(), f"worker {slot} to say that it is down")
    os.kill(millrace.worker_pids()[0], 9)
    millrace.expected_errors.append("killed by signal 9")
    wait_for(lambda: "killed by signal 9" in log.read_text(), "the obituary")
    wait_for(lambda: log.read_text().count("WARN worker 0: backend") == 2, "the next worker")
    config.reload(top="log: stderr")


@pytest.mark.parametrize("log, sentence", [("{}/away/log", "its folder must be there, and writable"), ("{}", "Is a directory")])
def test_a_log_that_cannot_be_opened(rig, bench, log, sentence):
    top = rig.top
    rig.top = f"http: off\npid_file: {bench.path}/pid\nlog: {log.format(bench.path)}"
    lines = rig.refuse()
    assert any("log: " in line and sentence in line for line in lines), lines
    assert get(port_of(Config(bench, [], top=top))) == 200 and not (bench.path / "pid").exists()
    rig.top = top
    assert rig.reload()[0] == "nothing has changed"


def test_pid_file_goes_elsewhere(rig, bench):
    one, two = bench.path / "one.pid", bench.path / "two.pid"
    top, number = rig.top, f"{rig.millrace.pid}\n"
    rig.reload(top=f"{top}\npid_file: {one}")
    assert one.read_text() == number
    rig.reload(top=f"{top}\npid_file: {two}")
    assert two.read_text() == number and not one.exists()
    rig.reload(top=f"{top}\npid_file: {bench.path}/./two.pid")  # the same file
    assert two.read_text() == number
    two.unlink()
    two.write_text("somebody's\n")
    rig.reload(top=f"{top}\npid_file: {one}")
    assert one.read_text() == number and two.read_text() == "somebody's\n"
    rig.reload(top=top)
    assert not one.exists()


def test_a_pid_file_that_cannot_be(rig, bench):
    """No folder, or another millrace's: ours stays."""
    one, theirs = bench.path / "one.pid", bench.path / "theirs.pid"
    top = f"{rig.top}\npid_file: {one}"
    rig.reload(top=top)
    theirs.write_text("4711\n")
    with open(theirs) as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        for path, sentence in ((theirs, "runs as process 4711"), (bench.path / "away/pid", "cannot be opened")):
            rig.top = top.replace(str(one), str(path))
            lines = rig.refuse()
            assert any(sentence in line for line in lines), lines
    assert one.read_text() == f"{rig.millrace.pid}\n" and theirs.read_text() == "4711\n"
    rig.top = top
    assert rig.reload()[0] == "nothing has changed"
