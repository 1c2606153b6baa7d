# SPDX-License-Identifier: MIT
"""make install and make uninstall: what lies where, with which paths inside, and that it runs from there."""
import os
import shutil
import subprocess

import pytest

from conftest import BUILD, ROOT, free_port
from peers import Collector

# Of every installation: path below PREFIX (or below the system's root where PREFIX is /usr), mode.
PROGRAMS = {"sbin/millrace": 0o755, "bin/millracectl": 0o755, "bin/millrace-replay": 0o755, "bin/millrace-sink": 0o755}
PAGES = {f"share/man/man{p.suffix[1:]}/{p.name}": 0o644 for p in (ROOT / "etc/man").glob("*.[18]")}
DOCUMENTS = {f"share/doc/millrace/{name}": 0o644 for name in
             ("README.md", "CHANGELOG.md", "operations.md", "drops.md", "counters.md", "design.md", "measured.md", "tour.md",
              "millrace.yaml", "millrace.alerts.yml")}
CONFIGURATIONS = {"etc/millrace/millrace.yaml": 0o640, "etc/default/millrace": 0o644, "etc/logrotate.d/millrace": 0o644,
                  "etc/sysctl.d/30-millrace.conf": 0o644}
SERVICE = {"etc/init.d/millrace": 0o755, "lib/systemd/system/millrace.service": 0o644}


def make(*words):
    """make, as if by hand: without what a make above this test says to its children."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    r = subprocess.run(["make", "-s", "-C", ROOT, f"B={BUILD}", *words], capture_output=True, text=True, timeout=300, env=env)
    assert r.returncode == 0, r.stdout + r.stderr
    return r.stdout


def files(folder):
    """Everything but folders: path → mode."""
    return {str(p.relative_to(folder)): p.lstat().st_mode & 0o7777 for p in folder.rglob("*")
            if p.is_symlink() or not p.is_dir()}


def expected(prefix):
    """By the rule: all below PREFIX, but with /usr the configuration and the service are the system's."""
    system = "" if prefix == "usr" else prefix + "/"
    here = {**PROGRAMS, **PAGES, **DOCUMENTS}
    if (BUILD / "millrace-kafka").exists():
        here["bin/millrace-kafka"] = 0o755
    here["lib/nagios/plugins/check_millrace_drops"] = 0o755
    if not (ROOT / "etc/check_millrace_drops").exists():
        del here["lib/nagios/plugins/check_millrace_drops"]
    return {**{f"{prefix}/{k}": v for k, v in here.items()},
            **{system + k: v for k, v in {**CONFIGURATIONS, **SERVICE}.items()}, f"{prefix}/sbin/fastcapa": 0o777}


@pytest.mark.parametrize("prefix", ["usr", "usr/local", "opt/millrace"])
def test_what_lies_where(tmp_path, prefix):
    make("install", f"DESTDIR={tmp_path}", f"PREFIX=/{prefix}")
    assert files(tmp_path) == expected(prefix)
    assert os.readlink(tmp_path / prefix / "sbin/fastcapa") == "millrace"
    etc = tmp_path / ("" if prefix == "usr" else prefix) / "etc"
    for name in (etc / "init.d/millrace", etc / "default/millrace", etc.parent / "lib/systemd/system/millrace.service"):
        text = name.read_text()
        assert str(tmp_path) not in text
        assert f"/{prefix}/sbin/millrace" in text or name.parent.name == "default"
        assert ("/usr/sbin/millrace" in text) == (prefix == "usr" and name.parent.name != "default")
        assert f"{str(etc)[len(str(tmp_path)):]}/millrace/millrace.yaml" in text
    make("uninstall", f"DESTDIR={tmp_path}", f"PREFIX=/{prefix}")
    assert files(tmp_path) == {}
    assert not (etc / "millrace").exists() and not (tmp_path / prefix / "share/doc/millrace").exists()


def test_an_edited_configuration_is_never_overwritten(tmp_path):
    where = (f"DESTDIR={tmp_path}", "PREFIX=/usr")
    make("install", *where)
    file = tmp_path / "etc/millrace/millrace.yaml"
    shipped = file.read_text()
    assert make("install", *where) == "", "a second installation changes nothing and says nothing"
    file.write_text("# mine\n" + shipped)
    assert f"{file} was edited and stays" in make("install", *where)
    assert file.read_text() == "# mine\n" + shipped
    assert file.with_name("millrace.yaml.new").read_text() == shipped
    assert "was edited and stays" in make("uninstall", *where)
    assert files(tmp_path) == {"etc/millrace/millrace.yaml": 0o640}


def test_it_runs_from_there(bench, tmp_path):
    """The installed programs, with the installed configuration (other ports): a line goes through."""
    root = tmp_path / "root"
    make("install", f"PREFIX={root}", f"runstatedir={root}/run")
    port, backend = free_port(), Collector(bench)
    (root / "run/millrace").mkdir(parents=True)
    file = root / "etc/millrace/millrace.yaml"
    text = file.read_text()
    assert f"{root}/run/millrace/control.sock" in text
    text = text.replace("user: millrace", "user: nobody")
    file.write_text(text.replace("127.0.0.1:8125", f"127.0.0.1:{port}").replace("127.0.0.1:9001", backend.addresses[0]))
    millrace = bench.run(root / "sbin/millrace", "-c", file, "--workers", 1)
    millrace.wait_line("millrace is serving with 1 worker")
    subprocess.run([root / "bin/millrace-replay", "-q", "--lines", "100", f"127.0.0.1:{port}"], check=True, timeout=30)
    assert len(backend.wait_lines(100)) == 100
    ctl = subprocess.run([root / "bin/millracectl", "-s", root / "run/millrace/control.sock", "check"], capture_output=True, text=True)
    assert ctl.returncode == 0, ctl.stdout
    millrace.send_signal(15)
    assert millrace.wait() == 0
    version = subprocess.run([root / "sbin/fastcapa", "--help"], capture_output=True, text=True)
    assert version.returncode == 0 and "fastcapa" in version.stdout


def test_shipped_configurations_are_good(tmp_path):
    for name in ("etc/service.yaml", "etc/millrace.yaml"):
        r = subprocess.run([BUILD / "millrace", "-t", "-c", ROOT / name], capture_output=True, text=True)
        assert r.returncode == 0 and r.stderr == "", r.stderr


def test_man_pages_render_without_warnings():
    pages = sorted((ROOT / "etc/man").glob("*.[18]"))
    assert len(pages) >= 6
    for page in pages:
        r = subprocess.run(["mandoc", "-T", "utf8", "-W", "warning", page], capture_output=True, text=True)
        assert r.returncode == 0, r.stderr
        assert r.stdout.strip()


def test_sysctl_settings_exist():
    """Each names a limit that this kernel has; nothing is set here."""
    for line in (ROOT / "etc/sysctl.d/30-millrace.conf").read_text().splitlines():
        key = line.lstrip("# ").split("=")[0].strip()
        if " = " in line and key.startswith("net."):
            assert os.path.exists("/proc/sys/" + key.replace(".", "/")), key


def test_the_unit_is_sound(tmp_path):
    """systemd-analyze verify, in a root that has systemd's own units and this one; its hardening may not get worse."""
    make("install", f"DESTDIR={tmp_path}", "PREFIX=/usr")
    shutil.copytree("/lib/systemd/system", tmp_path / "lib/systemd/system", dirs_exist_ok=True, symlinks=True)
    for name in ("bin", "sbin"):
        (tmp_path / name).mkdir()
    for program in ("bin/sh", "bin/kill"):
        shutil.copy("/" + program, tmp_path / program)
    analyze = ["systemd-analyze", f"--root={tmp_path}"]
    r = subprocess.run([*analyze, "--man=no", "--recursive-errors=no", "verify", "millrace.service"], capture_output=True, text=True)
    assert r.returncode == 0 and "millrace" not in r.stderr, r.stderr
    r = subprocess.run([*analyze, "--offline=true", "--threshold=40", "security", "millrace.service"], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout[-400:] + r.stderr
