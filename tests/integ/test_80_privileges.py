# SPDX-License-Identifier: MIT
"""Started as root, workers are somebody else who may do nothing, and the master keeps what its configuration needs. All
of it is read from /proc, and all of it with the work going on: lines, a broker, packets."""
import grp
import os
import pwd
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from conftest import BUILD, free_port, network_namespace, wait_for
from faults import wait_ready
from kafka_peers import Cluster, check_conf, needs_kafka, numbers, topic, wait_delivered
from kafka_peers import conf as kafka_conf
from packets import Wire, flow_frames, needs_pcap, udp_frame, wait_read, write_pcap
from packets import conf as packet_conf
from peers import Collector, config, needs_root, send_datagrams, statsite

CAPS = {name: n for n, name in enumerate(
    "chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable net_bind_service "
    "net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct sys_admin".split())}
CHILDREN = {"kill", "setgid", "setuid", "setpcap"}  # to make them, and to end them
NOBODY, DAEMON = pwd.getpwnam("nobody"), pwd.getpwnam("daemon")


def proc(pid):
    """/proc/PID/status as words by name."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: words.split() for name, _, words in (line.partition(":") for line in lines)}


def capabilities(status, which="Prm"):
    mask = int(status[f"Cap{which}"][0], 16)
    return {name for name, n in CAPS.items() if mask & 1 << n} | ({"others"} if mask >> len(CAPS) else set())


def expect_worker(pid, uid, gid, groups, seccomp=True):
    s = proc(pid)
    assert s["Uid"] == [str(uid)] * 4 and s["Gid"] == [str(gid)] * 4
    assert sorted(map(int, s["Groups"])) == sorted(groups)
    assert all(int(s[f"Cap{which}"][0], 16) == 0 for which in ("Inh", "Prm", "Eff", "Bnd", "Amb")), s
    assert s["NoNewPrivs"] == ["1"]
    assert s["Seccomp"] == ["2" if seccomp else "0"]
    threads = list(Path(f"/proc/{pid}/task").iterdir())
    for thread in threads:  # librdkafka's, too
        t = proc(f"{pid}/task/{thread.name}")
        assert t["Uid"] == s["Uid"] and t["CapPrm"] == s["CapPrm"] and t["Seccomp"] == s["Seccomp"]
    return len(threads)


def expect_master(millrace, *needed):
    s = proc(millrace.pid)
    assert s["Uid"] == ["0"] * 4
    for which in ("Prm", "Eff", "Bnd"):
        assert capabilities(s, which) == CHILDREN | set(needed), which
    for which in ("Inh", "Amb"):
        assert capabilities(s, which) == set()


def groups_of(user):
    return os.getgrouplist(user.pw_name, user.pw_gid)


def small_buffer():
    """A receive buffer that needs no capability here."""
    return int(Path("/proc/sys/net/core/rmem_max").read_text()) // 2


@pytest.mark.parametrize("flags, user, group", [
    ((), NOBODY, None),
    (("--user", "daemon"), DAEMON, None),
    (("--user", "daemon", "--group", "nogroup"), DAEMON, "nogroup"),
    (("--user", str(DAEMON.pw_uid)), DAEMON, None),
    (("--user", "root"), pwd.getpwnam("root"), None),
])
@needs_root
def test_lines(bench, flags, user, group):
    """Also the worker that comes after a kill; and TERM of its own user ends one."""
    sink = bench.sink("--number")
    millrace = bench.millrace("--receive-buffer", small_buffer(), *flags, backends=sink.addresses)
    gid = grp.getgrnam(group).gr_gid if group else user.pw_gid
    groups = os.getgrouplist(user.pw_name, gid)
    expect_master(millrace)
    os.kill(millrace.worker_pids()[0], signal.SIGKILL)
    millrace.wait_line(r"worker 0 .*killed by signal 9")
    os.kill(millrace.worker_pids()[1], signal.SIGTERM)
    millrace.wait_line(r"worker 1 .*left with exit code 0")
    wait_ready(millrace)
    for pid in millrace.worker_pids().values():
        expect_worker(pid, user.pw_uid, gid, groups)
    bench.replay("--number", "--lines", 5000, "--pps", 5000)
    assert sink.wait_lines(5000)["doubles"] == 0
    millrace.wait_line(f"as user {user.pw_name}, group {grp.getgrgid(gid).gr_name}; capabilities of the master: cap_kill")
    if user.pw_uid == 0:
        millrace.wait_line("WARN master: workers are root")


@needs_root
def test_a_worker_that_hangs_is_ended(bench):
    """The master may still kill who is somebody else."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=config({"in": {"type": "udp", "bind": "127.0.0.1:{port}", "to": "out"}},
                                          {"out": statsite(backend.addresses)}, workers=1, drain_timeout="100ms"))
    millrace.expected_exit, millrace.expected_errors = 3, ["workers did not leave in time"]
    os.kill(millrace.worker_pids()[0], signal.SIGSTOP)
    assert millrace.terminate() == 3
    assert not Path(f"/proc/{millrace.pid}").exists()


@needs_root
def test_what_the_configuration_needs(bench):
    """Each capability only where something needs it; what needs it works."""
    with network_namespace():
        backend = Collector(bench)
        for needed, inputs, top in [
            (["net_bind_service"], {"type": "tcp", "bind": "127.0.0.1:125"}, {}),
            (["net_admin"], {"type": "tcp", "bind": f"127.0.0.1:{bench.port or free_port()}", "receive_buffer": "64MiB"}, {}),
            (["chown"], {"type": "unix", "bind": str(bench.path / "in.sock")}, {"control_group": "daemon"}),
        ]:
            conf = config({"in": {"receive_buffer": small_buffer(), "to": "out", **inputs}}, {"out": statsite(backend.addresses)},
                          workers=1, **top)
            millrace = bench.millrace(conf=conf)
            expect_master(millrace, *needed)
            expect_worker(millrace.worker_pids()[0], NOBODY.pw_uid, NOBODY.pw_gid, groups_of(NOBODY))
            millrace.finish()


@needs_root
def test_files_of_somebody_else(bench):
    """The folder belongs to daemon: root without capabilities could not write there, so one is kept."""
    backend = Collector(bench)
    folder = bench.path / "theirs"
    folder.mkdir(mode=0o700)
    os.chown(folder, DAEMON.pw_uid, DAEMON.pw_gid)
    conf = config({"in": {"type": "unix", "bind": str(folder / "in.sock"), "to": "out", "receive_buffer": small_buffer()}},
                  {"out": statsite(backend.addresses)}, pid_file=str(folder / "pid"), workers=1)
    millrace = bench.millrace(conf=conf)
    expect_master(millrace, "dac_override")
    millrace.finish()
    assert list(folder.iterdir()) == []


@pytest.fixture(scope="module")
def kafka():
    with Cluster() as cluster:
        yield cluster


@needs_root
@needs_kafka
def test_kafka(bench, kafka):
    """A real broker, by name, which librdkafka's threads resolve behind the filter."""
    name = topic(kafka, 2)
    named = kafka.bootstrap.replace("127.0.0.1", "localhost")
    millrace = bench.millrace("--receive-buffer", small_buffer(), conf=kafka_conf(named, name))
    bench.replay("--number", "--lines", 5000, "--sources", 8, "--pps", 5000)
    wait_delivered(millrace, 5000)
    assert sorted(numbers(kafka, name)) == list(range(5000))
    expect_master(millrace)
    for pid in millrace.worker_pids().values():
        assert expect_worker(pid, NOBODY.pw_uid, NOBODY.pw_gid, groups_of(NOBODY)) > 2


@needs_root
@needs_kafka
@needs_pcap
def test_capture(bench):
    """A capture needs privileges only in the master; also the handle of a worker that comes later."""
    with network_namespace(), Cluster() as kafka:
        wire = Wire()
        name = topic(kafka, 2)
        millrace = bench.millrace(conf=packet_conf(kafka.bootstrap, name, workers=2))
        expect_master(millrace, "net_raw")
        os.kill(millrace.worker_pids()[0], signal.SIGKILL)
        millrace.wait_line("killed by signal 9")
        wait_ready(millrace)
        file = write_pcap(bench.path / "flows.pcap", flow_frames(3000, 50))
        assert wire.replay(file, "--pps", 3000) == 3000
        wait_read(millrace, 3000)
        wait_delivered(millrace, 3000)
        for pid in millrace.worker_pids().values():
            expect_worker(pid, NOBODY.pw_uid, NOBODY.pw_gid, groups_of(NOBODY))
        millrace.finish()


@needs_root
def test_files_are_read_by_who_started_it(bench):
    """A program that reads files and ends is a tool of its user: the file is root's alone."""
    sink = bench.sink("--number")
    file = write_pcap(bench.path / "lines.pcap", [udp_frame(b"m.k1:%d|c" % i) for i in range(100)])
    os.chmod(file, 0o400)
    conf = config({"in": {"type": "file", "path": str(file), "to": "out"}}, {"out": statsite(sink.addresses)}, workers=1)
    millrace = bench.millrace(conf=conf, wait=False)
    assert millrace.wait() == 0
    assert sink.report()["lines"] == 100
    millrace.wait_line("as user root")


@needs_root
@pytest.mark.parametrize("words, why", [
    (["--user", "nosuchuser"], 'user: this machine has no user "nosuchuser"; make it, or name another.'),
    (["--group", "nosuchgroup"], 'group: this machine has no group "nosuchgroup"; make it, or name another.'),
    (["--control-group", "nosuchgroup"], 'control_group: this machine has no group "nosuchgroup"; make it, or name another.'),
])
def test_who_is_not_there(bench, words, why):
    millrace = bench.millrace(*words, backends=["127.0.0.1:1"], wait=False)
    millrace.expected_exit, millrace.expected_errors = 1, [why]
    assert millrace.wait() == 1
    assert sum(" ERROR " in line for line in millrace.err) == 1
    assert why in millrace.err[-1]
    assert not millrace.control.exists()


@needs_root
def test_not_root(bench):
    """Oneself may be named; anybody else is one sentence. The filter is there all the same."""
    words = [BUILD / "millrace", "--listen", f"udp://127.0.0.1:{bench.port or free_port()}", "--backend", "127.0.0.1:1", "--workers", "1"]
    how = {"user": NOBODY.pw_uid, "group": NOBODY.pw_gid, "extra_groups": [], "cwd": "/"}
    r = subprocess.run([*words, "--user", "daemon"], capture_output=True, text=True, timeout=20, **how)
    assert r.returncode == 1
    assert 'user: only root can start millrace as "daemon"; start it as root, or leave it out.' in r.stderr
    r = subprocess.run([*words, "--group", "daemon"], capture_output=True, text=True, timeout=20, **how)
    assert r.returncode == 1 and 'group: only root can start millrace in "daemon"' in r.stderr
    millrace = bench.run(*words, "--user", "nobody", "--group", "nogroup", user=NOBODY.pw_uid, group=NOBODY.pw_gid, extra_groups=[])
    millrace.wait_line("millrace is serving")
    millrace.wait_line("as user nobody, group nogroup; capabilities of the master: none")
    worker = int(Path(f"/proc/{millrace.pid}/task/{millrace.pid}/children").read_text().split()[0])
    s = proc(worker)
    assert s["NoNewPrivs"] == ["1"] and s["Seccomp"] == ["2"] and capabilities(s) == set()
    millrace.send_signal(signal.SIGTERM)
    assert millrace.wait() == 0


@needs_root
def test_root_without_capabilities(bench):
    """docker run --cap-drop ALL: one sentence that says how to start it; as the user, and as root on purpose, it serves."""
    words = [BUILD / "millrace", "--listen", f"udp://127.0.0.1:{bench.port or free_port()}", "--backend", "127.0.0.1:1", "--workers", "1",
             "--http", "off"]
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    r = subprocess.run([*drop, *words], capture_output=True, text=True, timeout=20)
    errors = [line for line in r.stderr.splitlines() if " ERROR " in line]
    assert r.returncode == 1 and len(errors) == 1, r.stderr
    assert "without CAP_SETUID and CAP_SETGID" in errors[0] and "runAsUser: 65534" in errors[0]
    for how in ["--reuid=65534", "--regid=65534", "--clear-groups"], []:
        millrace = bench.run(*drop, *how, *words, *([] if how else ["--user", "root"]))
        millrace.wait_line("millrace is serving")
        millrace.send_signal(signal.SIGTERM)
        assert millrace.wait() == 0, millrace.err
    millrace.wait_line("WARN master: workers are root")


@needs_root
def test_control_group(bench):
    """Members of the group may ask, others may not."""
    backend = Collector(bench)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder) / "control.sock"
        millrace = bench.millrace("--control", path, "--control-group", "daemon", backends=backend.addresses)
        millrace.control = path
        status = path.stat()
        assert status.st_mode & 0o777 == 0o660 and (status.st_uid, status.st_gid) == (0, DAEMON.pw_gid)
        for group, code in ((DAEMON.pw_gid, 0), (NOBODY.pw_gid, 2)):
            r = subprocess.run([BUILD / "millracectl", "-s", path, "pages"], user=NOBODY.pw_uid, group=group, extra_groups=[],
                               capture_output=True, text=True, timeout=20)
            assert r.returncode == code, r.stdout + r.stderr
        millrace.finish()
        assert not path.exists()


@needs_root
def test_the_filter_can_be_left_out(bench):
    backend = Collector(bench)
    millrace = bench.millrace("--seccomp=false", backends=backend.addresses)
    millrace.wait_line("WARN master: workers may make any system call")
    expect_worker(millrace.worker_pids()[0], NOBODY.pw_uid, NOBODY.pw_gid, groups_of(NOBODY), seccomp=False)
    send_datagrams(bench, "udp", b"a:1|c")
    assert backend.wait_lines(1) == [b"a:1|c"]


@needs_kafka
def test_kerberos_needs_kinit(bench):
    """Which no filtered process can start: said before the start."""
    code, err = check_conf(bench, kafka_conf("127.0.0.1:1", "t", properties="security.protocol: sasl_plaintext, "
                                                                          "sasl.mechanisms: GSSAPI"))
    assert code == 1 and "sasl.mechanisms: GSSAPI runs kinit, which workers may not; set seccomp: false" in err, err
    code, err = check_conf(bench, kafka_conf("127.0.0.1:1", "t", properties="security.protocol: sasl_plaintext, "
                                                                          "sasl.mechanisms: GSSAPI"), "--seccomp=false")
    assert "kinit, which workers" not in err
