# SPDX-License-Identifier: MIT
"""make deb: the package in a Debian of its own, by dpkg: installs, starts, serves, upgrades, goes, and leaves nothing."""
import json
import os
import subprocess

import pytest

from apart import Machine
from conftest import wait_for
from test_91_install import make

CONFIG = "/etc/millrace/millrace.yaml"


@pytest.fixture(scope="module")
def deb():
    return make("deb").split()[-1]


@pytest.fixture
def m(bench, deb):
    if os.geteuid() != 0:
        pytest.skip("a chroot in namespaces needs root")
    machine = Machine(bench, deb)
    yield machine
    machine.end()


def newer(deb, folder):
    """The same package one version later, whose own configuration has changed, too."""
    tree = folder / "newer"
    subprocess.run(["dpkg-deb", "-R", deb, tree], check=True)
    control = tree / "DEBIAN/control"
    text = control.read_text()
    version = next(line for line in text.splitlines() if line.startswith("Version: "))
    control.write_text(text.replace(version, version + "+1"))
    with open(str(tree) + CONFIG, "a") as f:
        f.write("# of the newer version\n")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tree, folder / "newer.deb"], check=True, capture_output=True)
    return folder / "newer.deb"


def policy(m, code):
    """What the administrator says about services that packages start: 0 yes, 101 no."""
    file = m.path("/usr/sbin/policy-rc.d")
    file.write_text(f"#!/bin/sh\nexit {code}\n")
    file.chmod(0o755)


def lines_pass(m, first, n):
    """Numbered lines on the port of the shipped configuration reach the shipped backend, and the ledger balances."""
    m.run("millrace-replay", "-q", "--number", "--number-from", first, "--lines", n, "127.0.0.1:8125")

    def delivered():
        status = json.loads(m.run("millracectl", "status", "--json"))
        return sum(b["delivered_records"] for b in status["backends"]) == n
    wait_for(delivered, f"{n} lines to be delivered")
    m.run("millracectl", "check")


def test_install_upgrade_remove_purge(m, bench, deb):
    before = m.files("/etc", "/run", "/var/log", "/usr", "/lib")
    policy(m, 0)
    m.run("dpkg", "-i", m.copy(deb))
    assert "runs as process" in m.run("/etc/init.d/millrace", "status")
    sink = m.start("millrace-sink", "--json", "--number", "--strict", "--expect", 3000, "127.0.0.1:9001")
    sink.wait_line("listening", stream="out")
    master = m.processes("millrace")
    assert len(master) == 1 and len(m.processes(r"millrace/\d+")) >= 1
    for pid in m.processes(r"millrace/\d+"):
        assert m.user_of(pid) == "millrace", "the workers are the package's user"
    lines_pass(m, 0, 1000)

    # A newer version: what the operator changed stays, the service is a new one and serves.
    config = m.path(CONFIG)
    mine = "# the operator's\n" + config.read_text()
    config.write_text(mine)
    m.run("dpkg", "--force-confold", "-i", m.copy(newer(deb, bench.path)))
    assert config.read_text() == mine
    assert m.path(CONFIG + ".dpkg-dist").read_text().endswith("# of the newer version\n")
    assert (config.stat().st_mode & 0o777) == 0o640
    assert len(m.processes("millrace")) == 1 and not m.processes("millrace").keys() & master.keys()
    lines_pass(m, 1000, 2000)
    assert sink.wait() == 0, sink.out + sink.err

    # Removed: nothing runs, the configuration stays. Installed again: the operator's configuration is in force.
    m.run("dpkg", "-r", "millrace")
    assert not m.processes("millrace.*")
    assert config.read_text() == mine and not m.path("/usr/sbin/millrace").exists()
    assert not m.path("/run/millrace/millrace.pid").exists()
    m.run("dpkg", "--force-confold", "-i", m.copy(deb))
    assert config.read_text() == mine
    m.run("/etc/init.d/millrace", "status")

    # Purged while it runs: nothing is left but the account.
    m.path("/var/log/millrace/statistics.log").write_text("{}\n")
    m.run("dpkg", "-P", "millrace")
    assert not m.processes("millrace.*")
    left = m.files("/etc", "/run", "/var/log", "/usr", "/lib") - before
    accounts = {"/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-", "/etc/subuid-", "/etc/subgid-"}
    logs = {"/var/log/dpkg.log", "/usr/sbin/policy-rc.d", "/run/adduser"}
    assert {f for f in left - accounts - logs if "millrace" in f} == set() == left - accounts - logs, left


def test_a_policy_against_starting_is_respected(m, deb):
    policy(m, 101)
    m.run("dpkg", "-i", m.copy(deb))
    assert not m.processes("millrace.*")
    m.run("/etc/init.d/millrace", "status", code=3)
    m.run("dpkg", "-P", "millrace")


def test_a_port_in_use_is_said_and_does_not_break_the_installation(m, deb):
    policy(m, 0)
    m.run("perl", "-MIO::Socket::INET", "-e", "my $s = IO::Socket::INET->new(LocalAddr => '127.0.0.1:8125', Proto => 'udp') or die; "
          "exit if fork; sleep 600")
    text = m.run("dpkg", "-i", m.copy(deb))
    assert "127.0.0.1:8125" in text and "in use" in text, text
    assert not m.processes("millrace.*")
    assert "install ok installed" in m.run("dpkg-query", "-W", "-f", "${Status}", "millrace")
    m.run("/etc/init.d/millrace", "status", code=3)
