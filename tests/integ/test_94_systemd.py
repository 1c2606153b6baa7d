# SPDX-License-Identifier: MIT
"""The unit under a systemd of the test's own: start, reload, watchdog, restart, stop, and a capture behind all its hardening."""
import json

import pytest

from apart import Systemd
from conftest import wait_for
from peers import config, let_pass, needs_root, statsite
from test_91_install import make

pytestmark = needs_root
CONFIG = "/etc/millrace/millrace.yaml"


class Unit(Systemd):
    """With millrace installed, its account made, and a sink."""

    def __init__(self, bench):
        super().__init__(bench)
        make("install", f"DESTDIR={self.path('/')}", "PREFIX=/usr")
        self.run("sh", "-c", "id millrace || useradd --system --user-group millrace")
        self.sink = self.start("millrace-sink", "--json", "127.0.0.1:9001")
        self.sink.wait_line("listening", stream="out")
        self.drop_in(Service={"RestartSec": "100ms"})

    def drop_in(self, **sections):
        folder = self.path("/etc/systemd/system/millrace.service.d")
        folder.mkdir(parents=True, exist_ok=True)
        lines = [line for name, keys in sections.items() for line in [f"[{name}]", *(f"{k}={v}" for k, v in keys.items())]]
        (folder / f"{len(list(folder.iterdir()))}.conf").write_text("\n".join(lines) + "\n")
        self.ctl("daemon-reload")

    def ctl(self, *words, code=0):
        return self.run("systemctl", *words, code=code)

    def show(self, *names):
        """Properties of the unit; a single one as text."""
        text = self.ctl("show", "-p", ",".join(names), "millrace")
        found = dict(line.split("=", 1) for line in text.splitlines())
        return found[names[0]] if len(names) == 1 else found

    def status(self):
        return json.loads(self.run("millracectl", "status", "--json"))

    def lines_pass(self, n, to="127.0.0.1:8125"):
        before = sum(b["delivered_records"] for b in self.status()["backends"])
        self.run("millrace-replay", "-q", "--lines", n, to)
        wait_for(lambda: sum(b["delivered_records"] for b in self.status()["backends"]) == before + n, f"{n} lines to be delivered")
        self.run("millracectl", "check")


@pytest.fixture
def unit(bench):
    u = Unit(bench)
    yield u
    u.end()


def test_the_unit_as_it_is_shipped(unit):
    """With the shipped configuration and defaults, two workers: ready when started, reloads, stops; workers are nobody special."""
    with open(unit.path("/etc/default/millrace"), "a") as f:
        f.write("WORKERS=2\n")
    unit.ctl("start", "millrace")
    state = unit.show("ActiveState", "SubState", "MainPID", "StatusText")
    assert (state["ActiveState"], state["SubState"], state["StatusText"]) == ("active", "running", "2 of 2 workers serve."), state
    pid = int(state["MainPID"])
    assert [w["state"] for w in unit.status()["workers"]] == ["ready", "ready"]
    unit.lines_pass(1000)
    workers = unit.processes(r"millrace/\d+")
    assert len(workers) == 2
    for worker in workers:
        assert unit.user_of(worker) == "millrace"
        text = unit.path(f"/proc/{worker}/status").read_text()
        assert "CapEff:\t0000000000000000" in text and "NoNewPrivs:\t1" in text and "Seccomp:\t2" in text, text

    unit.ctl("reload", "millrace")
    file = unit.path(CONFIG)
    good = file.read_text()
    file.write_text(good.replace("type: udp", "type: upd"))
    unit.ctl("reload", "millrace", code=1)
    file.write_text(good)
    assert unit.show("ActiveState", "MainPID") == {"ActiveState": "active", "MainPID": str(pid)}
    unit.lines_pass(1000)

    unit.ctl("stop", "millrace")
    assert unit.show("ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}
    assert not unit.processes("millrace(/.*)?") and not unit.path("/run/millrace").exists()


def test_a_start_that_fails_is_a_failed_start(unit):
    file = unit.path(CONFIG)
    file.write_text(file.read_text().replace("type: udp", "type: upd"))
    unit.ctl("start", "millrace", code=1)
    assert unit.show("ExecMainStatus") == "1"
    assert not unit.processes("millrace(/.*)?")


def test_what_dies_or_hangs_is_started_anew(unit):
    unit.drop_in(Service={"WatchdogSec": "1s"})
    unit.ctl("start", "millrace")
    first = unit.show("MainPID")
    let_pass(2.5)
    assert unit.show("MainPID", "NRestarts") == {"MainPID": first, "NRestarts": "0"}, "the watchdog is fed"

    def another(than):
        def found():
            state = unit.show("MainPID", "ActiveState")
            return state["MainPID"] if state["ActiveState"] == "active" and state["MainPID"] not in ("0", than) else None
        return wait_for(found, "systemd to start it anew", 20)

    unit.run("kill", "-STOP", first)
    second = another(first)
    unit.lines_pass(100)
    unit.run("kill", "-KILL", second)
    another(second)
    unit.lines_pass(100)
    assert unit.show("NRestarts") == "2"
    unit.ctl("stop", "millrace")


def test_an_upgrade(unit):
    """The process stays, is fed to the watchdog, and stopped with the unit."""
    unit.drop_in(Service={"WatchdogSec": "1s"})
    unit.ctl("start", "millrace")
    first = unit.show("MainPID")
    unit.lines_pass(100)
    for _ in range(2):
        assert f"as process {first}" in unit.run("millracectl", "upgrade")
        assert unit.show("MainPID", "ActiveState") == {"MainPID": first, "ActiveState": "active"}
    let_pass(2.5)
    assert unit.show("ActiveState", "MainPID", "NRestarts") == {"ActiveState": "active", "MainPID": first, "NRestarts": "0"}
    unit.lines_pass(100)
    unit.ctl("stop", "millrace")
    assert unit.show("ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}
    assert not unit.processes("millrace(/.*)?")


def test_a_capture_behind_the_hardening(unit):
    """Packets of an interface, their payload to the backend, under the unit's capabilities, filters and file systems."""
    for words in ("link add va type veth peer name vb", "addr add 10.99.0.1/24 dev va", "link set va up", "link set vb up",
                  "neigh add 10.99.0.2 lladdr 02:00:00:00:00:02 dev va"):
        unit.run("ip", *words.split())
    unit.path(CONFIG).write_text(config({"tap": {"type": "capture", "interface": "vb", "driver": "pcap", "filter": "udp port 8125", "to": "o"}},
                                        {"o": statsite(["127.0.0.1:9001"])}, control="/run/millrace/control.sock", user="millrace", workers=2))
    unit.ctl("start", "millrace")
    unit.lines_pass(1000, "10.99.0.2:8125")
    assert unit.user_of(next(iter(unit.processes(r"millrace/\d+")))) == "millrace"
    unit.ctl("stop", "millrace")
    assert unit.show("Result") == "success"


def test_what_waits_while_nobody_lives(unit):
    """kill -9 of the master: sockets are in systemd's store, and what comes meanwhile is read by who is started next."""
    unit.drop_in(Service={"RestartSec": "2s"})
    inputs = {"udp": {"type": "udp", "bind": "127.0.0.1:8125", "to": "o"}, "tcp": {"type": "tcp", "bind": "127.0.0.1:8125", "to": "o"},
              "more": {"type": "tcp", "bind": "127.0.0.1:8200", "to": "o"}}
    outputs = {"o": statsite(["127.0.0.1:9001"])}

    def write():
        unit.path(CONFIG).write_text(config(inputs, outputs, control="/run/millrace/control.sock", user="millrace", workers=2))
    write()
    unit.ctl("start", "millrace")
    n_stored = lambda: int(unit.show("NFileDescriptorStore"))
    wait_for(lambda: n_stored() == 4, "the sockets to be stored")
    del inputs["more"]
    write()
    unit.ctl("reload", "millrace")
    wait_for(lambda: n_stored() == 3, "the removed one to be gone")
    unit.run("millracectl", "upgrade")
    assert n_stored() == 3
    for _ in range(2):
        pid = unit.show("MainPID")
        unit.run("kill", "-KILL", pid)
        wait_for(lambda: not unit.processes(r"millrace(/.*)?"), "all to be gone")
        unit.run("millrace-replay", "-q", "--lines", 100, "127.0.0.1:8125")
        wait_for(lambda: unit.show("ActiveState") == "active" and unit.show("MainPID") not in ("0", pid), "another one", 20)
        wait_for(lambda: sum(b["delivered_records"] for b in unit.status()["backends"]) == 100, "what waited")
        unit.run("millracectl", "check")
        unit.lines_pass(200)
        assert n_stored() == 3
    unit.ctl("restart", "millrace")
    unit.lines_pass(200)
    assert n_stored() == 3
    unit.ctl("stop", "millrace")
    assert unit.show("ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}
