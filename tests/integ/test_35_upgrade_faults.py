# SPDX-License-Identifier: MIT
"""Upgrades that go wrong at each point, and places where they are hard: containers, other users, stalling backends, many
connections. Whatever happens, every line comes once, or is counted."""
import os
import resource
import shutil
import signal
import socket
import subprocess

import pytest
from conftest import BUILD, ROOT, free_port, wait_for
from faults import Counters, Sender, is_alive, wait_ready, wait_settled, wait_stopped
from peers import Collector, client, needs_root
from upgrade_rig import FAULTS, compiled, refuse, set_fault, start, wait_children

pytestmark = pytest.mark.usefixtures("apart")


def passes(bench, sink, n=2000):
    """Lines go through, each once."""
    before = sink.report()
    lines = bench.replay("--lines", n, "--sources", 64)["lines"]
    wait_for(lambda: sink.report()["lines"] == before["lines"] + lines, f"{lines} more lines")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_program_that_fails_before(bench, fault):
    sink = bench.sink()
    config, millrace = start(bench, sink.addresses)
    refuse(bench, millrace, fault)
    wait_children(millrace)
    passes(bench, sink)
    millrace.upgrade()
    passes(bench, sink)


def test_a_rehearsal_that_hangs_is_ended(bench):
    sink = bench.sink()
    config, millrace = start(bench, sink.addresses, top="start_timeout: 2s")
    millrace.point_at(set_fault(bench, "rehearse", "hang"))
    assert "in time" in "\n".join(millrace.refuse_upgrade())
    wait_children(millrace)
    passes(bench, sink)


def test_replaced_between_rehearsal_and_exec(bench):
    """What was rehearsed is what runs, whatever stands at its path by then."""
    sink = bench.sink()
    config, millrace = start(bench, sink.addresses)
    fifo = bench.path / "fifo"
    os.mkfifo(fifo)
    good, bad = compiled(bench, "faulty"), bench.path / "other"
    millrace.point_at(set_fault(bench, "rehearse", "wait", fifo))
    asker = subprocess.Popen([BUILD / "millracectl", "-s", millrace.control, "upgrade"], stdout=subprocess.PIPE, text=True)
    with open(fifo, "w") as f:  # opens when it is read
        shutil.copy("/bin/false", bad)
        millrace.point_at(bad)
        good.unlink()
        f.write("on\n")
    assert "upgraded" in asker.communicate(timeout=20)[0] and asker.returncode == 0
    passes(bench, sink)
    wait_children(millrace)


@needs_root
def test_workers_that_cannot_start(bench):
    """The old ones go on under the new master, whose later reload repairs it."""
    sink = bench.sink("--number")
    config, millrace = start(bench, sink.addresses)
    pids = wait_ready(millrace)
    cannot = bench.path / "cannot"
    compiled(bench, "cannot.so", "-DPRELOAD", "-shared", "-fPIC")
    cannot.touch()
    millrace.expected_errors += ["Cannot become user", "cannot work", "could not start", "cannot start", "monitor", "reload: "]
    millrace.point_at(set_fault(bench, "resume", "preload", cannot))
    sender = Sender(bench, "--sources", 64, "--pps", 2000, "--time", "60s")
    sink.wait_lines(500)
    r = millrace.ctl("upgrade", check=False)
    assert r.returncode == 1 and "goes on with the old one" in r.stderr, r.stderr
    assert millrace.worker_pids() == pids and millrace.master == millrace.pid
    assert wait_ready(millrace) == pids  # as the status says, too
    here = sink.report()["lines"]
    sink.wait_lines(here + 500)
    millrace.check()
    millrace.expected_errors.append("upgrade: ")
    r = millrace.ctl("upgrade", check=False)
    assert r.returncode == 1 and "reload first" in r.stderr, r.stderr  # at once
    cannot.unlink()
    assert millrace.ctl("reload").returncode == 0
    assert not set(millrace.worker_pids().values()) & set(pids.values())
    lines = sender.stop()["lines"]
    assert sink.wait_lines(lines)["doubles"] == 0
    counters = wait_settled(millrace)
    assert counters.sum("input", "received_lines") == lines == counters.sum("backend", "delivered_records")


def test_it_dies_at_its_first_step(bench):
    """As kill -9 of the master: its workers deliver what they have, and end."""
    sink = bench.sink("--number")
    config, millrace = start(bench, sink.addresses)
    pids = list(wait_ready(millrace).values())
    millrace.point_at(set_fault(bench, "resume", "kill"))
    lines = bench.replay("--number", "--lines", 5000, "--sources", 64)["lines"]
    r = millrace.ctl("upgrade", check=False)
    assert r.returncode != 0
    millrace.expected_exit = -signal.SIGKILL
    assert millrace.wait() == -signal.SIGKILL
    for pid in pids:
        wait_for(lambda: not is_alive(pid), "the workers to end")
    report = sink.wait_lines(lines)
    assert (report["distinct"], report["doubles"]) == (lines, 0)


def test_a_worker_is_killed_while_it_makes_place(bench):
    """What it held is lost at death, and counted by the new program."""
    port = free_port()
    config, millrace = start(bench, [f"127.0.0.1:{port}"], workers=1)
    lines = bench.replay("--lines", 3000, "--sources", 16)["lines"]
    wait_for(lambda: Counters(millrace).waiting() == lines, "the lines to be held")
    pid = wait_ready(millrace)[0]
    os.kill(pid, signal.SIGSTOP)  # it does not leave; its successor is ready
    asker = subprocess.Popen([BUILD / "millracectl", "-s", millrace.control, "upgrade"], stdout=subprocess.PIPE, text=True)
    millrace.wait_line("its workers make place")
    os.kill(pid, signal.SIGKILL)
    assert "upgraded" in asker.communicate(timeout=20)[0]
    wait_children(millrace, 1)
    counters = wait_settled(millrace)
    assert counters.lost_at_death() == lines == counters.sum("input", "received_lines")
    assert counters.unbalanced() == []


def test_a_batch_in_the_hand_of_a_worker_that_is_killed(bench):
    """What it had read and not handed over is counted, too: of the datagrams the lines, of the streams what had begun."""
    sink = bench.sink("--number", "--stall", "--rcvbuf", "8KiB")
    config, millrace = start(bench, sink.addresses, workers=1, output=", queue_limit: 128KiB, overflow: block")
    pid = wait_ready(millrace)[0]
    with client(bench, "tcp") as a:
        a.sendall(b"half:")
        wait_for(lambda: Counters(millrace).sum("input", "unfinished_lines") == 1, "the half to be read")
        os.kill(pid, signal.SIGSTOP)
        wait_stopped([pid])
        sent = bench.replay("--number", "--lines", 300000, "--bytes", 8900, "--flat-out")
        os.kill(pid, signal.SIGCONT)  # finds full batches of 64 datagrams, more than the queue takes
        before = wait_for(lambda: (lambda c: c if c.sum("input", "held", input="udp") and c.sum("output", "held_records") else None)(
            Counters(millrace)), "the input to be held")
        os.kill(pid, signal.SIGSTOP)
        wait_stopped([pid])
        asker = subprocess.Popen([BUILD / "millracectl", "-s", millrace.control, "upgrade"], stdout=subprocess.PIPE, text=True)
        millrace.wait_line("its workers make place")
        os.kill(pid, signal.SIGKILL)
        millrace.wait_line(r"killed by signal 9 .*; it was of the program before; lost at most [1-9]\d* records that it had read")
        assert "upgraded" in asker.communicate(timeout=20)[0]
    sink.ask("stall off")
    counters = wait_settled(millrace, sent["datagrams"])
    assert counters.kernel_drops() == 0
    # at most one more for each of the 64: what may follow the last newline
    assert 0 <= counters.sum("input", "received_lines", input="udp") - sent["lines"] <= 64
    assert counters.sum("input", "lost_at_death_lines", input="tcp") == 1 == counters.sum("input", "lost_at_death_connections")
    assert counters.sum("input", "lost_at_death_lines", input="udp") > 0
    assert counters.sum("input", "lost_at_death_datagrams") == 0, "the held batch's datagrams were counted before"
    assert counters.sum("output", "lost_at_death_records") >= before.sum("output", "held_records")
    report = sink.wait_lines(counters.sum("backend", "delivered_records"))
    missing = sent["lines"] - report["distinct"]
    assert 0 < missing <= counters.lost_at_death() + counters.at_risk()
    assert counters.unbalanced() == []
    millrace.check()


def test_totals_never_go_down(bench):
    """And the ledger balances whenever one looks."""
    sink = bench.sink("--number")
    config, millrace = start(bench, sink.addresses)
    sender = Sender(bench, "--sources", 64, "--pps", 5000, "--time", "120s")
    sink.wait_lines(1000)
    names = [("input", "received_lines"), ("input", "received_datagrams"), ("backend", "delivered_records"), ("backend", "sent_bytes")]
    last = [0] * len(names)
    for _ in range(3):
        asker = subprocess.Popen([BUILD / "millracectl", "-s", millrace.control, "upgrade"], stdout=subprocess.PIPE, text=True)
        while asker.poll() is None:
            r = millrace.ctl("stats", "--json", check=False)
            assert r.returncode == 0, r.stderr
            counters = Counters(millrace)
            assert counters.unbalanced() == []
            now = [counters.sum(*name) for name in names]
            assert all(a >= b for a, b in zip(now, last)), (now, last)
            last = now
        assert asker.returncode == 0
        millrace.check()
    lines = sender.stop()["lines"]
    assert sink.wait_lines(lines)["doubles"] == 0
    assert wait_settled(millrace).sum("input", "received_lines") == lines


# -- places ------------------------------------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("shell", [False, True])
def test_pid_1_of_a_namespace(bench, shell):
    """T4: a container lives on, be it its first process or the child of a shell that waits."""
    sink = bench.sink()
    port, control = free_port(), bench.path / "control.sock"
    file = bench.path / "c.yaml"
    file.write_text(f'workers: 2\ncontrol: {control}\nhttp: off\ninputs: {{ u: {{ type: udp, bind: "127.0.0.1:{port}", to: [o] }} }}\n'
                    f'outputs: {{ o: {{ type: statsite, backends: ["{sink.addresses[0]}"] }} }}\n')
    words = [BUILD / "millrace", "-c", file]
    if shell:
        words = ["sh", "-c", f"{words[0]} -c {file}; exit $?"]
    p = bench.run("unshare", "--pid", "--fork", "--kill-child", *words)
    p.wait_line("millrace is serving with")

    def ctl(*words):
        return subprocess.run([BUILD / "millracectl", "-s", control, *words], capture_output=True, text=True, timeout=30)
    for i in range(2):
        r = ctl("upgrade")
        assert r.returncode == 0 and f"as process {2 if shell else 1}" in r.stdout, r.stdout + r.stderr
        lines = bench.replay("--lines", 500, "--sources", 16, target=f"127.0.0.1:{port}")["lines"]
        sink.wait_lines((i + 1) * lines)
        assert ctl("check").returncode == 0
    assert p.p.poll() is None
    assert ctl("drain").returncode == 0
    assert p.wait() == 0


@needs_root
def test_another_user_with_ambient_capabilities(bench):
    """Who may bind ports below 1024 may still do so after an upgrade, and has no more capabilities than before."""
    sink = bench.sink()
    folder = bench.path
    for parent in (folder, *folder.parents):
        if str(parent) in ("/", "/tmp"):
            break
        parent.chmod(0o755)
    folder.chmod(0o777)
    control, file = folder / "control.sock", folder / "c.yaml"

    def write(port):
        file.write_text(f'workers: 2\ncontrol: {control}\nhttp: off\ninputs: {{ u: {{ type: udp, bind: "127.0.0.1:{port}", to: [o] }} }}\n'
                        f'outputs: {{ o: {{ type: statsite, backends: ["{sink.addresses[0]}"] }} }}\n')
    write(901)
    p = bench.run("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps", "+net_bind_service",
                  "--ambient-caps", "+net_bind_service", "--bounding-set", "-all,+net_bind_service", BUILD / "millrace", "-c", file)
    p.wait_line("millrace is serving with")

    def caps():
        text = open(f"/proc/{p.pid}/status").read()
        return {k: v.strip() for k, v in (line.split(":", 1) for line in text.splitlines()) if k.startswith("Cap")}
    before = caps()

    def ctl(*words):
        r = subprocess.run([BUILD / "millracectl", "-s", control, *words], capture_output=True, text=True, timeout=30)
        assert r.returncode == 0, r.stdout + r.stderr
    for port in (902, 903):
        ctl("upgrade")
        assert caps() == before
        assert os.stat(f"/proc/{p.pid}/mem").st_uid == 0  # not dumpable: nobody of the same user reads its memory
        write(port)
        ctl("reload")
    bench.replay("--lines", 500, "--sources", 16, target="127.0.0.1:903")
    sink.wait_lines(500)
    p.send_signal(signal.SIGTERM)
    assert p.wait() == 0


@pytest.mark.soak
def test_from_another_build(bench):
    """One with a smaller counter table, a counter that has another name by now, and one input type less."""
    tree = bench.path / "tree"
    tree.mkdir()
    subprocess.run(f"git -C {ROOT} ls-files -z -- src include Makefile etc tools tests docs | "
                   f"tar -C {ROOT} --null -T - -c | tar -x -C {tree}", shell=True, check=True)
    for name in subprocess.run(["grep", "-rl", "budget_hits", "src", "include"], cwd=tree, capture_output=True, text=True).stdout.split():
        (tree / name).write_text((tree / name).read_text().replace("budget_hits", "budget_ends"))
    for name, before, after in (("include/stats.h", "STATS_BACKENDS_MAX = 10064", "STATS_BACKENDS_MAX = 5064"),
                                ("include/stats.h", "STATS_ENDPOINTS_MAX = 16384", "STATS_ENDPOINTS_MAX = 8192"),
                                ("src/input/input.c", "    {CONF_INPUT_TYPE_UNIXGRAM, &input_unixgram},\n", "")):
        text = (tree / name).read_text()
        assert before in text
        (tree / name).write_text(text.replace(before, after))
    subprocess.run(["make", "-s", "-j2", "build/millrace"], cwd=tree, check=True)
    sink = bench.sink("--number", ports=2)
    port = free_port()
    inputs = {"udp": '{ type: udp, bind: "127.0.0.1:{port}", to: [out] }', "tcp": f'{{ type: tcp, bind: "127.0.0.1:{port}", to: [out] }}'}
    config, millrace = start(bench, sink.addresses, inputs=inputs)
    sender = Sender(bench, "--sources", 64, "--pps", 3000, "--time", "120s")
    sink.wait_lines(1000)
    total = 0
    for program in (tree / "build/millrace", BUILD / "millrace", tree / "build/millrace", BUILD / "millrace"):
        millrace.point_at(program)
        millrace.upgrade()
        here = sink.report()["lines"]
        sink.wait_lines(here + 1000)
        millrace.check()
        now = Counters(millrace).sum("input", "received_lines")
        assert now >= total
        total = now
    lines = sender.stop()["lines"]
    report = sink.wait_lines(lines)
    assert (report["distinct"], report["doubles"]) == (lines, 0)
    counters = wait_settled(millrace)
    assert counters.sum("input", "received_lines") == lines == counters.sum("backend", "delivered_records")
    assert counters.unbalanced() == []


# -- much that is under way ---------------------------------------------------------------------------------------------


def test_backends_that_stall(bench):
    """T2: nothing twice, no new connection."""
    sink = bench.sink("--number", "--keys", 10000, "--rcvbuf", "4KiB", ports=2)
    config, millrace = start(bench, sink.addresses, top="drain_timeout: 20s")
    sender = Sender(bench, "--one", "--sources", 64, "--pps", 15000, "--time", "60s")
    sink.wait_lines(500)
    connections = sink.report()["connections"]
    sink.ask("stall on")
    wait_for(lambda: Counters(millrace).waiting() > 20000, "lines to wait")
    config.reload(output=", memory_limit: 512MiB")
    millrace.upgrade()
    millrace.check()
    millrace.upgrade()
    sink.ask("stall off")
    lines = sender.stop()["lines"]
    report = sink.wait_lines(lines, key="distinct", timeout=60)
    counters = wait_settled(millrace)
    assert (report["distinct"], report["doubles"], report["malformed"]) == (lines, 0, 0)
    assert report["connections"] == connections
    assert counters.sum("input", "received_lines") == lines == counters.sum("backend", "delivered_records")
    assert (counters.dropped(), counters.resent(), counters.lost_at_death(), counters.unbalanced()) == (0, 0, 0, [])


@pytest.mark.parametrize("n", [1000, pytest.param(2000, marks=pytest.mark.soak)])
def test_many_connections(bench, n, n_long=100, long_bytes=60000):
    """T1: all in the middle of a line, some of a long one: none is cut."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 3 * n)), hard))
    backend = Collector(bench)
    tcp = f'{{ type: tcp, bind: "127.0.0.1:{{port}}", max_connections: {2 * n}, to: [out] }}'
    config, millrace = start(bench, backend.addresses, inputs={"tcp": tcp})
    clients = [client(bench, "tcp") for _ in range(n + n_long)]
    try:
        for i, s in enumerate(clients):
            s.sendall(f"half.{i}".encode() + (b"x" * long_bytes if i >= n else b"") + b":")
        wait_for(lambda: Counters(millrace).sum("input", "unfinished_lines", input="tcp") == n + n_long, "the halves to be read")
        for _ in range(2):
            millrace.upgrade()
        for i, s in enumerate(clients):
            s.sendall(f"{i}|c\n".encode())
        expected = {f"half.{i}".encode() + (b"x" * long_bytes if i >= n else b"") + f":{i}|c".encode() for i in range(n + n_long)}
        assert set(backend.wait_lines(n + n_long)) == expected
        counters = wait_settled(millrace)
        assert counters.sum("input", "accepted_connections") == n + n_long
        assert counters.sum("input", "passed_connections") == counters.sum("input", "taken_connections") == 2 * (n + n_long)
        assert counters.sum("input", "dropped_truncated_lines") == 0
    finally:
        for s in clients:
            s.close()
