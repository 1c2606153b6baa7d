# SPDX-License-Identifier: MIT
"""Handover when somebody dies on the way, or has not enough descriptors: somebody serves at each moment, and what was not taken
over by the one that died is taken over by the next."""
import os
import resource
import signal
import time
from pathlib import Path

import pytest
from conftest import wait_for
from faults import Counters, children, signal_all, wait_ready, wait_settled, wait_stopped
from peers import Collector, client
from reload_rig import Config, Load, master_counters, worker_rows

pytestmark = pytest.mark.usefixtures("apart")


def begin(bench, workers=2):
    sink = bench.sink("--number", "--keys", 10000, ports=2)
    config = Config(bench, sink.addresses, workers=workers, top="drain_timeout: 20s")
    return sink, config, config.start()


def ask_for_roll(config, i):
    """A reload that rolls, without waiting for it."""
    config.output = f", memory_limit: {64 + i}MiB"
    config.write()
    config.millrace.send_signal(signal.SIGHUP)


def wait_leaving(millrace, slot):
    wait_for(lambda: worker_rows(millrace)[slot]["state"] == "draining", f"worker {slot} to be told to leave")


def named(pid, slot):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == f"millrace/{slot}"
    except (FileNotFoundError, ProcessLookupError):
        return False


def successor(millrace, slot, known):
    """The pid of a worker of the slot that is not among `known`, as soon as there is one: this does not sleep."""
    return wait_for(lambda: next((p for p in children(millrace.pid) if p not in known and named(p, slot)), None),
                    f"a successor in slot {slot}", every=0)


def reloads(millrace):
    m = master_counters(millrace)
    return m["reloads"] + m["reload_failures"]


def test_a_successor_that_is_killed_while_it_starts(bench):
    """The one before goes on, with all that it has, as if nothing had been."""
    sink, config, millrace = begin(bench)
    load = Load(bench, sink)
    millrace.expected_errors += ["reload: ", "its successor could not start"]
    for i in range(20):
        pids = wait_ready(millrace)
        before = reloads(millrace)
        os.kill(pids[0], signal.SIGSTOP)  # so that it hands nothing over even if the other one was faster than we are
        ask_for_roll(config, i)
        os.kill(successor(millrace, 0, pids.values()), signal.SIGKILL)
        os.kill(pids[0], signal.SIGCONT)
        wait_for(lambda: reloads(millrace) > before, "the reload to end")
        load.go_on(300)
        if master_counters(millrace)["reload_failures"] > 0:
            millrace.wait_line("its successor could not start")
            assert wait_ready(millrace)[0] == pids[0]
            break
    else:
        pytest.fail("no successor was killed before it was ready")
    assert config.reload(output=", memory_limit: 1MiB")[0] == "1 change, applied by rolling the workers"
    load.ends_exactly(millrace)


def test_a_successor_that_is_killed_before_it_takes_over(bench):
    """Ready, but the one before is busy: the next successor takes all over."""
    sink, config, millrace = begin(bench)
    load = Load(bench, sink)
    for i in range(3):
        pids = wait_ready(millrace)
        before = reloads(millrace)
        os.kill(pids[0], signal.SIGSTOP)
        ask_for_roll(config, i)
        wait_leaving(millrace, 0)
        first = successor(millrace, 0, pids.values())
        os.kill(first, signal.SIGKILL)
        successor(millrace, 0, {*pids.values(), first})
        os.kill(pids[0], signal.SIGCONT)
        wait_for(lambda: reloads(millrace) > before, "the reload to end")
        load.go_on(300)
    assert master_counters(millrace)["reloads"] == 3
    load.ends_exactly(millrace)


def with_connections(bench, n, **kw):
    """n connections, each in the middle of a line that a worker has read: (backend, config, millrace, clients)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 3 * n)), hard))
    workers = kw.pop("workers", 2)
    backend = Collector(bench)
    config = Config(bench, backend.addresses, workers=workers, top="drain_timeout: 20s")
    config.inputs["tcp"] = f'{{ type: tcp, bind: "127.0.0.1:{{port}}", max_connections: {2 * n}, to: [out] }}'
    millrace = config.start(**kw)
    clients = [client(bench, "tcp") for _ in range(n)]
    for i, s in enumerate(clients):
        s.sendall(f"half.{i}:".encode())
    wait_for(lambda: Counters(millrace).sum("input", "unfinished_lines", input="tcp") == n, "the halves to be read", 30)
    return backend, config, millrace, clients


def ends_whole(backend, millrace, clients):
    """The other halves: each line arrives once."""
    n = len(clients)
    for i, s in enumerate(clients):
        s.sendall(f"{i}|c\n".encode())
    got = backend.wait_lines(n, 30)
    assert len(got) == n and set(got) == {f"half.{i}:{i}|c".encode() for i in range(n)}
    counters = wait_settled(millrace)
    assert counters.sum("input", "passed_connections", input="tcp") == counters.sum("input", "taken_connections", input="tcp")
    assert counters.sum("input", "dropped_truncated_lines") == counters.sum("input", "dropped_shutdown_lines") == 0
    assert counters.unbalanced() == []
    for s in clients:
        s.close()


def n_fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_a_successor_that_is_killed_in_the_middle(bench, n=600):
    """The channel is full and nobody reads it: the rest goes to the next one, which comes at once."""
    backend, config, millrace, clients = with_connections(bench, n, workers=1)
    old = wait_ready(millrace)[0]
    os.kill(old, signal.SIGSTOP)
    ask_for_roll(config, 0)
    wait_leaving(millrace, 0)
    first = successor(millrace, 0, [old])
    os.kill(first, signal.SIGSTOP)
    wait_stopped([first])
    os.kill(old, signal.SIGCONT)
    wait_for(lambda: n_fds(old) < n, "the channel to fill")
    began = time.monotonic()
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: master_counters(millrace)["reloads"] == 1, "the reload to end")
    assert time.monotonic() - began < 10  # not the time after which it would have given up
    assert wait_ready(millrace)[0] not in (old, first)
    ends_whole(backend, millrace, clients)


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM], ids=["dies", "leaves"])
def test_a_sibling_that_goes_before_it_takes_over(bench, sig, n=50):
    """A slot ends, and so does who was to go on with it: the next worker does."""
    backend, config, millrace, clients = with_connections(bench, n)
    pids = wait_ready(millrace)
    os.kill(pids[0], signal.SIGSTOP)
    more = [client(bench, "tcp") for _ in range(n)]  # all to worker 1
    clients += more
    for i, s in enumerate(more, n):
        s.sendall(f"half.{i}:".encode())
    n += n
    wait_for(lambda: Counters(millrace).sum("input", "unfinished_lines", input="tcp") == n, "the halves to be read")
    os.kill(pids[0], signal.SIGCONT)
    os.kill(pids[1], signal.SIGSTOP)
    config.workers = 1
    config.write()
    millrace.send_signal(signal.SIGHUP)
    wait_leaving(millrace, 1)
    taker = wait_ready(millrace, slots=[0])[0]
    had = Counters(millrace).sum("input", "open_connections", worker=0, input="tcp") if sig == signal.SIGKILL else 0
    os.kill(taker, signal.SIGSTOP)
    wait_stopped([taker])
    os.kill(pids[1], signal.SIGCONT)
    wait_for(lambda: not named(pids[1], 1), "the worker to leave")
    os.kill(taker, sig)
    if sig == signal.SIGTERM:
        os.kill(taker, signal.SIGCONT)
    wait_for(lambda: master_counters(millrace)["reloads"] == 1, "the reload to end")
    wait_ready(millrace)
    assert set(worker_rows(millrace)) == {0}
    wait_for(lambda: Counters(millrace).sum("input", "open_connections", input="tcp") == n - had, "the others to go on")
    for i, s in enumerate(clients):
        try:
            s.sendall(f"{i}|c\n".encode())
        except OSError:
            pass  # it died with the sibling that had it
    got = backend.wait_lines(n - had)
    assert len(set(got)) == len(got) == n - had
    assert set(got) <= {f"half.{i}:{i}|c".encode() for i in range(n)}
    for s in clients:
        s.close()


@pytest.mark.parametrize("n", [pytest.param(600, id="some"), pytest.param(2000, id="issue", marks=pytest.mark.soak)])
def test_a_thousand_descriptors_for_each_process(bench, n):
    """T5: 4 workers of one user with `ulimit -n 1024`: none is cut, no byte is lost."""
    limit = (256, 256) if n < 1000 else (1024, 1024)
    backend, config, millrace, clients = with_connections(
        bench, n, workers=4, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit))
    began = time.monotonic()
    for i in range(3):
        config.reload(output=f", memory_limit: {64 + i}MiB")
    if n >= 2000:
        assert time.monotonic() - began < 3 * 2
    ends_whole(backend, millrace, clients)


@pytest.mark.soak
def test_two_thousand_connections_within_two_seconds(bench, n=2000):
    backend, config, millrace, clients = with_connections(bench, n)
    for i in range(3):
        began = time.monotonic()
        config.reload(output=f", memory_limit: {64 + i}MiB")
        assert time.monotonic() - began < 2
    ends_whole(backend, millrace, clients)


def test_the_whole_group_is_told_to_end_in_any_order(bench):
    """T7: workers first, then the master, with a backend that reads nothing until then: no worker is forked anew."""
    sink = bench.sink("--number", "--keys", 10000, "--rcvbuf", "4KiB", "--stall", ports=2)
    config = Config(bench, sink.addresses, workers=4, top="drain_timeout: 20s")
    millrace = config.start()
    lines = bench.replay("--number", "--lines", 30000, "--bytes", 100, "--sources", 64)["lines"]
    wait_for(lambda: Counters(millrace).waiting() > 5000, "lines to wait")
    pids = wait_ready(millrace)
    signal_all([*pids.values(), millrace.pid], signal.SIGTERM)
    wait_for(lambda: any("draining: at most" in line for line in millrace.err), "the drain")
    sink.ask("stall off")
    assert millrace.wait(30) == 0
    report = sink.wait_lines(lines)
    assert (report["distinct"], report["doubles"]) == (lines, 0)
    assert not any("takes over" in line or "killed" in line for line in millrace.err)
