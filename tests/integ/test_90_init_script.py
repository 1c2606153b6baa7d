# SPDX-License-Identifier: MIT
"""The init script by its own verbs, as root, installed below a PREFIX of the test's own: exit codes of the LSB, and what an
operator reads. Everything runs in namespaces of its own, so that a daemon that should have ended ends with them."""
import json
import subprocess
from pathlib import Path

import pytest

from apart import Apart
from conftest import ROOT, wait_for
from peers import config, needs_root, statsite
from test_91_install import make

pytestmark = needs_root


class Service(Apart):
    """An installed millrace, and a sink for it."""

    SCRIPT = "/mnt/usr/etc/init.d/millrace"

    def __init__(self, bench):
        make("install", f"DESTDIR={bench.path}", "PREFIX=/mnt/usr", "runstatedir=/mnt/run")
        # seen as /mnt, where other users reach it, too
        super().__init__(bench, 'mount -t proc proc /proc; mount --bind "$1" /mnt', bench.path / "mnt")
        self.prefix = Path("/mnt/usr")
        self.etc = bench.path / "mnt/usr/etc"
        self.pid_file = bench.path / "mnt/run/millrace/millrace.pid"
        self.control = "/mnt/run/millrace/control.sock"
        self.config = self.etc / "millrace/millrace.yaml"
        self.sink = self.start(self.prefix / "bin/millrace-sink", "--json", "--number", "--strict", "127.0.0.1:9001")
        self.sink.wait_line("listening", stream="out")
        self.configure()

    def configure(self, **top):
        self.config.write_text(config({"m": {"type": "udp", "bind": "127.0.0.1:8125", "to": "o"}},
                                      {"o": statsite(["127.0.0.1:9001"])}, **{"control": str(self.control), "workers": 2, **top}))

    def settings(self, *lines):
        with open(self.etc / "default/millrace", "a") as f:
            f.write("\n".join(["", *lines, ""]))

    def __call__(self, verb, code=0):
        return self.run(self.SCRIPT, *verb.split(), code=code)

    def pid(self):
        """The master's, by its pid file."""
        return int(self.pid_file.read_text())

    def masters(self):
        return set(self.processes("millrace"))

    def workers(self):
        return set(self.processes(r"millrace/\d+"))

    def is_gone(self, pid):
        """Whether a process has ended, even if nobody has taken its exit code yet."""
        return "State:\tZ" in self.run("sh", "-c", f"cat /proc/{pid}/status 2>/dev/null || echo 'State:\tZ'")

    def status(self):
        return json.loads(self.run(self.prefix / "bin/millracectl", "-s", self.control, "status", "--json"))

    def lines_pass(self, first, n):
        self.run(self.prefix / "bin/millrace-replay", "-q", "--number", "--number-from", first, "--lines", n, "127.0.0.1:8125")
        wait_for(lambda: sum(b["delivered_records"] for b in self.status()["backends"]) == n, f"{n} lines to be delivered")
        self.run(self.prefix / "bin/millracectl", "-s", self.control, "check")


@pytest.fixture
def service(bench):
    s = Service(bench)
    yield s
    s.end()


def test_the_life_of_a_service(service):
    assert "does not run" in service("status", 3)
    assert service("stop").count("\n") == 1, "stop of what does not run is no fault"

    service("start")
    # it returned when all were ready, not before
    assert [w["state"] for w in service.status()["workers"]] == ["ready", "ready"]
    first = service.pid()
    assert service.masters() == {first} and len(service.workers()) == 2
    assert f"runs as process {first}" in service("status")
    service.lines_pass(0, 1000)

    assert f"process {first}" in service("start"), "start of what runs is no fault"
    assert service.masters() == {first}

    assert "nothing has changed" in service("reload")
    service.configure(workers=3)
    assert "workers" in service("force-reload")
    assert len(service.workers()) == 3
    service.configure()
    service("reload")
    service("status")
    assert service.masters() == {first}

    service("restart")
    second = service.pid()
    assert second != first and service.masters() == {second}
    service.lines_pass(1000, 1000)
    service("try-restart")
    assert service.masters() == {service.pid()} != {second}

    service("stop")
    assert not service.masters() | service.workers() and not service.pid_file.exists()
    service("status", 3)
    service("reload", 7)
    service("try-restart")
    service("status", 3)
    service("restart")
    service("status")
    service("stop")


def test_stop_delivers_what_was_accepted(service):
    service("start")
    service.run(service.prefix / "bin/millrace-replay", "-q", "--number", "--lines", 50000, "127.0.0.1:8125")
    service("stop")
    service.run("kill", *service.processes("millrace-sink"))
    assert service.sink.wait() == 0, service.sink.out
    assert json.loads(service.sink.out[-1])["lines"] == 50000


@pytest.mark.parametrize("then", ["start", "restart", "stop"])
def test_a_killed_master(service, then):
    service("start")
    pid = service.pid()
    service.run("kill", "-9", pid)
    wait_for(lambda: service.is_gone(pid), "the kill")
    assert "does not run, but its pid file" in service("status", 1)
    service("reload", 7)
    wait_for(lambda: not service.workers(), "the workers to drain and end")
    service(then)
    if then == "stop":
        service("status", 3)
        assert not service.pid_file.exists()
    else:
        assert service.pid() != pid
        service("status")
        service.lines_pass(0, 500)
        service("stop")


def test_a_bad_configuration(service):
    service("start")
    pid = service.pid()
    good = service.config.read_text()
    service.config.write_text(good.replace('"udp"', '"upd"'))
    for verb in ("restart", "reload", "force-reload"):
        text = service(verb, 6)
        assert "millrace.yaml:" in text and "upd" in text and "nothing" in text.lower(), text
        assert service.masters() == {pid}
    assert "upd" in service("configtest", 1)
    service("stop")
    text = service("start", 1)
    assert "millrace.yaml:" in text and "upd" in text, text
    assert not service.masters() | service.workers()
    service("status", 3)
    service.config.write_text(good)
    assert "good" in service("configtest")
    service("start")
    service.lines_pass(0, 100)
    service("stop")


def test_a_port_in_use(service):
    other = service.start("python3", "-c", "import signal, socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 8125)); "
                          "print('bound', flush=True); signal.pause()")
    other.wait_line("bound", stream="out")
    text = service("start", 1)
    assert "127.0.0.1:8125" in text and "in use" in text, text
    assert not service.masters() | service.workers()
    service("status", 3)


def test_settings(service):
    service.configure(workers=1)
    service.settings("WORKERS=3", "RECEIVE_BUFFER=64KiB", "EXTRA_FLAGS='--log-level debug'")
    service("start")
    assert len(service.workers()) == 3
    words = service.path(f"/proc/{service.pid()}/cmdline").read_bytes().split(b"\0")
    assert b"64KiB" in words and words[words.index(b"--log-level") + 1] == b"debug"
    service("stop")


def test_rotate(service):
    """What logrotate does: the file is renamed, lines go into a new one of the old name, and none is lost."""
    folder = service.etc.parent.parent / "log"
    folder.mkdir()
    service.configure(log="/mnt/log/millrace.log")
    service("rotate", 7)
    service("start")
    file = folder / "millrace.log"
    assert "millrace is serving" in file.read_text()
    file.rename(folder / "millrace.log.1")
    service("rotate")
    wait_for(file.exists, "a new file")
    service("stop")
    assert "drain" in file.read_text()


def test_codes_of_the_lsb(service):
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", service.SCRIPT)
    for verb in ("", "begin", "start now"):
        assert "Usage" in service(verb, 2)
    assert "needs root" in service.run(*nobody, "start", code=4)
    other = service.etc / "elsewhere.yaml"
    service.config.rename(other)
    assert "/mnt/usr/etc/millrace/millrace.yaml" in service("start", 6)
    service.settings("CONFIG=/mnt/usr/etc/elsewhere.yaml")
    service("start")
    assert "runs as process" in service.run(*nobody, "status")
    service("stop")
    service.path("/mnt/usr/sbin/millrace").unlink()
    assert "not installed" in service("start", 5)


def test_shell_and_headers():
    """POSIX sh as dash reads it, and what update-rc.d needs."""
    script = ROOT / "etc/init.d/millrace"
    subprocess.run(["dash", "-n", script], check=True)
    text = script.read_text()
    head = text[text.index("### BEGIN INIT INFO"):text.index("### END INIT INFO")]
    for key in ("Provides:", "Required-Start:", "Required-Stop:", "Default-Start:", "Default-Stop:", "Short-Description:", "Description:"):
        assert key in head
