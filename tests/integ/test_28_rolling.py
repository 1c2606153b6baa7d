# SPDX-License-Identifier: MIT
"""Reload, by rolling the workers and by new endpoints: each kind of change under load, on UDP and on open TCP connections;
nothing is lost, no line is half."""
import os
import random
import signal
import socket
import threading

import pytest
from conftest import free_port, wait_for
from faults import Counters, Sender, numbered, udp_sockets, wait_ready, wait_settled
from peers import Collector, client, wait_read
from reload_rig import Config, Load, backends, master_counters, worker_rows

pytestmark = pytest.mark.usefixtures("apart")


def begin(bench, ports=2, **kw):
    sink = bench.sink("--number", "--keys", 10000, ports=ports)
    config = Config(bench, sink.addresses, **kw)
    millrace = config.start()
    return sink, config, millrace


def test_each_worker_is_rolled_and_connections_go_on(bench):
    sink, config, millrace = begin(bench)
    load = Load(bench, sink)
    for limit in ("512MiB", "256MiB", "1GiB"):
        pids = millrace.worker_pids()
        first, lines = config.reload(output=f", memory_limit: {limit}")
        assert first == "1 change, applied by rolling the workers", lines
        now = millrace.worker_pids()
        assert set(now) == set(pids) and not set(now.values()) & set(pids.values())
        load.go_on()
    counters = load.ends_exactly(millrace)
    passed, taken = (counters.sum("input", f"{what}_connections") for what in ("passed", "taken"))
    assert passed == taken > 0 and counters.sum("input", "accepted_connections") == 8
    assert sum(w["deaths"] for w in worker_rows(millrace).values()) == 0


@pytest.mark.parametrize("spread", ["flow", "packet", "shared"])
def test_workers_from_2_to_4_to_1_to_3(bench, spread):
    sink = bench.sink("--number", "--keys", 10000, ports=2)
    config = Config(bench, sink.addresses)
    config.inputs["udp"] = f'{{ type: udp, bind: "127.0.0.1:{{port}}", spread: {spread}, to: [out] }}'
    millrace = config.start()
    load = Load(bench, sink)
    for n in (4, 1, 3, 2):
        first, lines = config.reload(workers=n)
        assert first == "1 change, applied by rolling the workers", lines
        assert set(worker_rows(millrace)) == set(millrace.worker_pids()) == set(range(n))
        assert master_counters(millrace)["workers"] == n
        before = Counters(millrace)
        load.go_on()
        if spread != "shared":
            wait_for(lambda: all(Counters(millrace).sum("input", "received_datagrams", worker=w) >
                                 before.sum("input", "received_datagrams", worker=w) for w in range(n)),
                     f"{n} workers to read")
        millrace.check()
    load.ends_exactly(millrace)


def test_an_unfinished_line_moves_with_its_connection(bench):
    """Half of a line before each roll, half behind it: it arrives whole, whoever reads the end."""
    backend = Collector(bench)
    config = Config(bench, backend.addresses)
    millrace = config.start()
    long = b"long." + b"x" * 60000
    with client(bench, "tcp") as a, client(bench, "tcp") as b:
        a.sendall(b"first:")
        b.sendall(long)
        for s in (a, b):
            wait_read(s)
        for i, n in enumerate((4, 1, 2)):
            config.reload(workers=n)
            a.sendall(f"{i}|c\nnext{i}:".encode())
            b.sendall(b"y")
            for s in (a, b):
                wait_read(s)
        a.sendall(b"9|c\n")
        b.sendall(b":1|c\n")
        want = {b"first:0|c", b"next0:1|c", b"next1:2|c", b"next2:9|c", long + b"yyy:1|c"}
        assert set(backend.wait_lines(5)) == want
    assert Counters(millrace).sum("input", "dropped_truncated_lines") == 0


def test_what_waits_in_a_moved_connection_is_read(bench):
    """The peer sends while nobody reads: each worker is stopped, and goes on when it has been told to hand over."""
    sink, config, millrace = begin(bench, workers=2)
    lines = [line.encode() for line in numbered(0, 5000)]
    with client(bench, "tcp") as s:
        s.sendall(lines[0])
        wait_read(s)
        pids = wait_ready(millrace)
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
        s.sendall(b"".join(lines[1:]))
        config.output = ", memory_limit: 128MiB"
        config.write()
        millrace.send_signal(signal.SIGHUP)
        for slot, pid in sorted(pids.items()):
            wait_for(lambda: worker_rows(millrace)[slot]["state"] == "draining", f"worker {slot} to be told to leave")
            os.kill(pid, signal.SIGCONT)
        wait_for(lambda: master_counters(millrace)["reloads"] == 1, "the reload to end")
        report = sink.wait_lines(5000)
        assert (report["distinct"], report["doubles"]) == (5000, 0)


def test_a_held_batch_goes_to_the_successor(bench):
    """A full output holds the inputs back when the workers are to go: they go at once, and nothing is lost."""
    sink = bench.sink("--number", "--keys", 10000, "--stall", "--rcvbuf", "8KiB")
    block = ", queue_limit: 128KiB, overflow: block"
    config = Config(bench, sink.addresses, output=block, top="drain_timeout: 20s")
    millrace = config.start()
    senders = [Sender(bench, "--sources", 8, "--pps", 1000, "--bytes", 300, "--lines", 30000),
               Sender(bench, "--tcp", "--sources", 8, "--number-from", 10_000_000, "--pps", 1000, "--bytes", 300, "--lines",
                      30000)]
    wait_for(lambda: Counters(millrace).sum("input", "held", input="tcp") > 0, "the input to be held")
    for limit in ("64MiB", "128MiB"):
        config.reload(output=f"{block}, memory_limit: {limit}")
        wait_for(lambda: Counters(millrace).sum("input", "held", input="tcp") > 0, "the input to be held by the next")
    sink.ask("stall off")
    lines = sum(s.finish()["lines"] for s in senders)
    report = sink.wait_lines(lines)
    counters = wait_settled(millrace)
    assert (report["distinct"], report["doubles"]) == (lines, 0)
    assert (counters.dropped(), counters.resent(), counters.unbalanced()) == (0, 0, [])


@pytest.mark.parametrize("overflow", ["drop_newest", "block"])
def test_what_waits_for_a_backend_that_is_away_goes_to_the_successor(bench, overflow):
    """Rolled twice, then with fewer and with more workers: the lines are delivered when the backend is there, once."""
    there = bench.sink("--number", "--keys", 10000)
    port = free_port()
    limit = "128KiB" if overflow == "block" else "64MiB"
    config = Config(bench, [f"127.0.0.1:{port}", *there.addresses],
                    output=f", overflow: {overflow}, queue_limit: {limit}, reconnect_max: 300ms")
    millrace = config.start()
    n = 40000 if overflow == "block" else 5000
    sent = Sender(bench, "--sources", 16, "--lines", n, "--bytes", 300, "--pps", 4000)
    if overflow == "block":
        wait_for(lambda: Counters(millrace).sum("input", "held", input="udp") > 0, "the input to be held")
    lines = sent.finish()["lines"]
    assert lines >= n
    for workers in (2, 2, 1, 3):
        config.workers = workers
        config.output += " "
        memory = 64 + len(config.output)
        config.write(config.text().replace("queue_limit", f"memory_limit: {memory}MiB, queue_limit"))
        assert millrace.ctl("reload").stdout
        millrace.check()
    late = Collector(bench, ports=[port])
    wait_for(lambda: there.report()["lines"] + len(late.lines(port)) >= lines, "all lines", 30)
    counters = wait_settled(millrace)
    assert counters.sum("input", "received_lines") == lines == counters.sum("backend", "delivered_records")
    assert (counters.dropped(), counters.sum("backend", "unconfirmed_records"), counters.resent()) == (0, 0, 0)
    assert counters.sum("backend", "passed_records") == counters.sum("backend", "taken_over_records") > 0
    assert counters.unbalanced() == []


def test_a_stalled_backend_costs_a_rolled_worker_nothing(bench):
    """What was sent and not acknowledged stays on its connection, which the successor has."""
    sink = bench.sink("--number", "--keys", 10000, "--stall", "--rcvbuf", "8KiB")
    config = Config(bench, sink.addresses)
    millrace = config.start()
    lines = bench.replay("--number", "--lines", 30000, "--bytes", 300, "--sources", 16)["lines"]
    config.reload(output=", memory_limit: 512MiB")
    sink.ask("stall off")
    report = sink.wait_lines(lines, key="distinct")
    counters = wait_settled(millrace)
    assert (report["distinct"], report["doubles"], counters.resent()) == (lines, 0, 0)
    assert (counters.dropped(), counters.sum("backend", "unconfirmed_records")) == (0, 0)


def test_outputs_and_routes_change(bench):
    """A second output comes, takes a copy, then the first goes: the ledger balances in each page all the time."""
    one, two = bench.sink("--number", "--keys", 10000), bench.sink("--number", "--keys", 10000)
    config = Config(bench, one.addresses)
    millrace = config.start()
    sender = Sender(bench, "--sources", 64, "--pps", 3000, "--bytes", 300, "--time", "60s")
    one.wait_lines(1000)
    is_done = threading.Event()
    faults = []

    def check():
        while not is_done.is_set():
            r = millrace.ctl("check", check=False)
            if r.returncode != 0:
                faults.append(r.stdout + r.stderr)
    checker = threading.Thread(target=check)
    checker.start()
    both = config.text().replace("to: [out]", "to: [out, copy]").replace(
        "outputs: {", f'outputs: {{ copy: {{ type: statsite, backends: ["{two.addresses[0]}"] }},')
    first, lines = config.reload(both)
    assert "outputs.copy: added" in lines and first.endswith("rolling the workers")
    here = two.report()["lines"]
    two.wait_lines(here + 1000)
    only = both.replace("to: [out, copy]", "to: [copy]").split("out: {")[0].rstrip(", ") + "}\n"
    first, lines = config.reload(only)
    assert "outputs.out: removed" in lines
    here = two.report()["lines"]
    two.wait_lines(here + 1000)
    config.reload()
    one.wait_lines(one.report()["lines"] + 1000)
    is_done.set()
    checker.join()
    sent = sender.stop()
    counters = wait_settled(millrace, sent["datagrams"])
    assert faults == [] and counters.unbalanced() == [] and counters.dropped() == 0
    assert counters.sum("input", "received_lines") == sent["lines"]
    delivered = {o: counters.sum("backend", "delivered_records", output=o) for o in ("out", "copy")}
    assert one.report()["distinct"] == delivered["out"] and two.report()["distinct"] == delivered["copy"]


def test_endpoints_come_and_go_and_what_they_hold_is_read(bench):
    """A second address joins an input, moves to another one, and goes: of each sender a prefix arrives, without a hole."""
    sink, config, millrace = begin(bench)
    load = Load(bench, sink)
    other = free_port()
    udp = '{ type: udp, bind: ["127.0.0.1:{port}", "127.0.0.1:%d"], to: [out] }' % other
    first, lines = config.reload(inputs={**config.inputs, "udp": udp})
    assert first == "1 change, applied by new endpoints and rolling the workers", lines
    bench.replay("--number", "--number-from", 20_000_000, "--lines", 5000, "--sources", 16, target=f"127.0.0.1:{other}")
    load.go_on()
    moved = {"udp": config.inputs["udp"].replace(f', "127.0.0.1:{other}"', ""),
             "tcp": config.inputs["tcp"], "more": '{ type: udp, bind: "127.0.0.1:%d", to: [out] }' % other}
    first, lines = config.reload(inputs=moved)
    assert "inputs.more: added" in lines
    bench.replay("--number", "--number-from", 30_000_000, "--lines", 5000, "--sources", 16, target=f"127.0.0.1:{other}")
    load.go_on()
    first, lines = config.reload(inputs={k: v for k, v in moved.items() if k != "more"})
    assert "inputs.more: removed" in lines
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", other))  # it is free
    sent = sum(s.stop()["lines"] for s in load.senders) + 10000
    report = sink.wait_lines(sent, key="distinct")
    counters = wait_settled(millrace)
    assert (report["distinct"], report["doubles"]) == (sent, 0)
    assert (counters.dropped(), counters.kernel_drops(), counters.unbalanced()) == (0, 0, [])


def test_a_removed_input_has_no_hole(bench):
    """Datagrams keep coming while their address goes: those that arrived are the first ones of each sender."""
    sink = bench.sink("--number", "--out", "lines.txt")
    config = Config(bench, sink.addresses, workers=4)
    other = free_port()
    config.inputs["more"] = '{ type: udp, bind: "127.0.0.1:%d", to: [out] }' % other
    millrace = config.start()
    senders = [Sender(bench, "--sources", 1, "--number-from", i * 10_000_000, "--pps", 4000, "--bytes", 200, "--time", "60s",
                      target=f"127.0.0.1:{other}") for i in range(4)]
    sink.wait_lines(10000)
    del config.inputs["more"]
    config.reload()
    for s in senders:
        s.stop()
    received = wait_settled(millrace).sum("input", "received_lines")
    assert sink.wait_lines(received)["doubles"] == 0
    counts, highest = [0] * 4, [0] * 4
    sink.finish()
    for line in (bench.path / "lines.txt").read_text().splitlines():
        sender, number = divmod(int(line.split(":")[1].split("|")[0]), 10_000_000)
        counts[sender] += 1
        highest[sender] = max(highest[sender], number + 1)
    assert counts == highest and sum(counts) == received


def test_a_renamed_input_hears_on(bench):
    """The same address under another name: nothing is lost, open TCP connections go on, new ones come as before."""
    sink = bench.sink("--number", "--keys", 10000)
    config = Config(bench, sink.addresses)
    millrace = config.start()
    load = Load(bench, sink)
    for old, new, workers in (("", "new_", 4), ("new_", "", 2), ("", "other_", 1)):
        load.go_on()
        first, lines = config.reload(inputs={f"{new}{kind}": config.inputs[f"{old}{kind}"] for kind in ("udp", "tcp")},
                                     workers=workers)
        millrace.check()  # pages of workers that ended with the former names, too
        assert f"inputs.{old}udp: removed" in lines and f"inputs.{new}udp: added" in lines
        with client(bench, "tcp") as c:
            c.sendall(b"status\n")
            assert c.recv(100)
    load.go_on()
    sent = sum(s.stop()["lines"] for s in load.senders)
    assert sink.wait_lines(sent, key="distinct")["doubles"] == 0
    counters = wait_settled(millrace)
    assert (counters.dropped(), counters.kernel_drops(), counters.unbalanced()) == (0, 0, [])
    millrace.check()


def test_a_removed_stream_input_is_read_to_its_end(bench):
    """What its connections have sent before is delivered; what they have not finished is counted."""
    sink, config, millrace = begin(bench, workers=1)
    lines = [line.encode() for line in numbered(0, 5000)]
    with client(bench, "tcp") as s:
        s.sendall(lines[0])
        wait_read(s)
        pid = wait_ready(millrace)[0]
        os.kill(pid, signal.SIGSTOP)
        s.sendall(b"".join(lines[1:]) + b"half")
        config.inputs.pop("tcp")
        config.write()
        millrace.send_signal(signal.SIGHUP)
        wait_for(lambda: worker_rows(millrace)[0]["state"] == "draining", "the worker to be told to leave")
        os.kill(pid, signal.SIGCONT)
        millrace.wait_line("reload: inputs.tcp: removed")
        report = sink.wait_lines(5000)
        assert (report["distinct"], report["doubles"]) == (5000, 0)
        s.settimeout(10)
        assert s.recv(1) == b""
    counters = wait_settled(millrace)
    assert (counters.sum("input", "received_lines"), counters.sum("input", "to_outputs_lines")) == (5001, 5000)
    assert counters.unbalanced() == []


def test_the_last_account_names_what_was_removed(bench):
    """Inputs and outputs that are gone are left out of status, not of the sum; what a roll gave up is no matter of the exit code."""
    sink, nobody = bench.sink("--number"), f"127.0.0.1:{free_port()}"
    config = Config(bench, sink.addresses, top="drain_timeout: 300ms")
    config.inputs["old"] = config.inputs.pop("udp").replace("[out]", "[out, gone]")
    gone = f'outputs: {{ gone: {{ type: statsite, backends: ["{nobody}"] }},'
    millrace = bench.millrace(conf=config.text().replace("outputs: {", gone))
    config.millrace = millrace
    bench.replay("--number", "--lines", 1000)
    sink.wait_lines(1000)
    config.inputs["new"] = config.inputs.pop("old").replace("[out, gone]", "[out]")
    config.reload()
    bench.replay("--number", "--number-from", 1000, "--lines", 500)
    sink.wait_lines(1500)
    wait_for(lambda: Counters(millrace).dropped() == 1000, "the worker before to give up what is for nobody")
    wait_for(lambda: "gone" not in millrace.ctl("status").stdout, "the output to be forgotten")
    rows = [line.split()[0] for line in millrace.ctl("status").stdout.splitlines() if line]
    assert "new" in rows and "out" in rows and not {"old", "gone"} & set(rows)
    assert millrace.terminate() == 0
    log = "\n".join(millrace.err)
    assert 'input "new": 500 lines received' in log and 'input "old": 1000 lines received' in log
    assert 'output "out": 1500 offered = 1500 delivered' in log
    assert 'output "gone": 1000 offered = 0 delivered + 0 unconfirmed + 0 failed + 1000 dropped' in log


def test_an_address_in_use_changes_nothing(bench):
    sink, config, millrace = begin(bench)
    pids = millrace.worker_pids()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        config.inputs["more"] = '{ type: udp, bind: "127.0.0.1:%d", to: [out] }' % s.getsockname()[1]
        config.workers = 3
        first, *_ = config.refuse()
        assert "in use" in first
    assert millrace.worker_pids() == pids and len(worker_rows(millrace)) == 2
    lines = bench.replay("--number", "--lines", 2000, "--sources", 64)["lines"]
    assert sink.wait_lines(lines)["distinct"] == lines
    config.reload()
    assert len(worker_rows(millrace)) == 3


def test_unix_sockets_come_move_and_go(bench):
    sink, config, millrace = begin(bench)
    path, gram = bench.path / "in.sock", bench.path / "gram.sock"
    config.reload(inputs={**config.inputs, "u": f'{{ type: unix, bind: "{path}", mode: "0600", to: [out] }}',
                          "g": f'{{ type: unixgram, bind: "{gram}", to: [out] }}'})
    assert path.stat().st_mode & 0o777 == 0o600
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(str(path))
    lines = [line.encode() for line in numbered(0, 3)]
    stream.sendall(lines[0] + lines[1][:7])
    wait_read(stream)
    config.reload(inputs={**config.inputs, "u": f'{{ type: unix, bind: "{path}", mode: "0640", to: [out] }}'}, workers=3)
    assert path.stat().st_mode & 0o777 == 0o640
    stream.sendall(lines[1][7:])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.connect(str(gram))
        s.send(lines[2])
    assert sink.wait_lines(3)["distinct"] == 3
    stream.close()
    config.reload(inputs={k: v for k, v in config.inputs.items() if k in ("udp", "tcp")})
    assert not path.exists() and not gram.exists()


def test_receive_buffer_and_control_socket(bench):
    sink, config, millrace = begin(bench)
    load = Load(bench, sink)
    config.inputs["udp"] = '{ type: udp, bind: "127.0.0.1:{port}", receive_buffer: 1MiB, to: [out] }'
    first, lines = config.reload()
    assert lines == ["inputs.udp.receive_buffer: 32MiB -> 1MiB"]
    rows = [e for e in millrace.status()["endpoints"] if e["asked_buffer_bytes"] == 1 << 20]
    assert len(rows) == 2 and all(r["receive_buffer_bytes"] <= 1 << 20 for r in rows)
    millrace.control = bench.path / "other.sock"
    config.write(config.text().replace("{control}", str(millrace.control)))
    millrace.send_signal(signal.SIGHUP)
    wait_for(millrace.control.exists, "the new control socket")
    millrace.wait_line("reload: control: ")
    assert not (bench.path / "control.sock").exists()
    load.ends_exactly(millrace)


def test_a_worker_that_is_killed_in_the_middle(bench):
    """Each time another one; the reload ends all the same, with all workers on the new configuration."""
    sink, config, millrace = begin(bench, workers=3)
    for i, kill in enumerate((0, 2)):
        pids = wait_ready(millrace)
        os.kill(pids[1], signal.SIGSTOP)
        config.output = f", memory_limit: {64 + i}MiB"
        config.write()
        millrace.send_signal(signal.SIGHUP)
        wait_for(lambda: worker_rows(millrace)[1]["state"] == "draining", "worker 1 to be asked to leave")
        os.kill(wait_ready(millrace, slots=[kill])[kill], signal.SIGKILL)
        os.kill(pids[1], signal.SIGCONT)
        wait_for(lambda: master_counters(millrace)["reloads"] == i + 1, "the reload to end")
        assert not set(wait_ready(millrace).values()) & set(pids.values())
    lines = bench.replay("--number", "--lines", 2000, "--sources", 64)["lines"]
    assert sink.wait_lines(lines)["distinct"] == lines


def test_term_to_one_worker_hands_its_connections_on(bench):
    sink, config, millrace = begin(bench)
    load = Load(bench, sink)
    for slot in (0, 1):
        old = wait_ready(millrace)
        os.kill(old[slot], signal.SIGTERM)
        millrace.wait_line(rf"worker {slot} \(pid {old[slot]}\) left with exit code 0")
        wait_ready(millrace)
        load.go_on()
    load.ends_exactly(millrace)


def test_term_to_the_program_while_workers_roll(bench):
    sink = bench.sink("--number", "--keys", 10000)
    config = Config(bench, sink.addresses, workers=4)
    millrace = config.start()
    lines = bench.replay("--number", "--lines", 5000, "--sources", 64)["lines"]
    config.workers = 2
    config.write()
    millrace.expected_errors.append("reload: ")
    millrace.send_signal(signal.SIGHUP)
    assert millrace.terminate() == 0
    assert sink.wait_lines(lines)["distinct"] == lines


def udp_input(spread, more=""):
    return f'{{ type: udp, bind: "127.0.0.1:{{port}}", spread: {spread}, to: [out]{more} }}'


def test_spread_changes_to_each_other(bench):
    """A shared socket beside the group, which is read to its end; and a group again."""
    sink, config, millrace = begin(bench, workers=4)
    load = Load(bench, sink)
    for spread in ("shared", "flow", "shared", "packet", "shared", "packet", "flow"):
        config.inputs["udp"] = udp_input(spread)
        first, lines = config.reload()
        assert any(line.startswith("inputs.udp.spread: ") for line in lines), (first, lines)
        millrace.check()
        load.go_on()
        n_sockets = len(udp_sockets(millrace.pid))
        assert n_sockets == (1 if spread == "shared" else 4)
    load.ends_exactly(millrace)


def test_spread_to_shared_together_with_what_cannot_be(bench):
    """The new socket is given up before it has read anything; the workers' number changes with it, too."""
    sink, config, millrace = begin(bench, workers=4)
    load = Load(bench, sink)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        other = f"127.0.0.1:{taken.getsockname()[1]}"
        config.inputs = {"udp": udp_input("shared"), "tcp": config.inputs["tcp"],
                         "other": f'{{ type: tcp, bind: "{other}", to: [out] }}'}
        for _ in range(5):
            assert any(other in line for line in config.refuse())
            load.go_on(200)
    assert len(udp_sockets(millrace.pid)) == 4
    del config.inputs["other"]
    config.reload(workers=2)
    load.go_on()
    assert len(udp_sockets(millrace.pid)) == 1
    load.ends_exactly(millrace)


def test_what_cannot_be_reloaded_is_refused_in_a_sentence(bench):
    sink, config, millrace = begin(bench)
    config.workers = 200
    first, *lines = config.refuse()
    assert any("workers" in line and "restart" in line for line in lines)
    config.workers, config.top = 2, "daemon: true"
    first, *lines = config.refuse()
    assert any("daemon" in line for line in lines), lines
    config.top = ""
    assert config.reload() == ("nothing has changed", [])


BROKEN = ["workers: x\n", "a: b\n", "", "inputs: [", None]


def change_at_random(config, sink, chance):
    change = chance.choice(["backends", "weights", "workers", "buffers"])
    if change == "backends":
        config.backends = chance.sample(sink.addresses, chance.randint(1, 4))
    elif change == "weights":
        config.backends = [f'{{ address: "{a}", weight: {chance.randint(1, 5)} }}' for a in sink.addresses]
    elif change == "workers":
        config.workers = chance.randint(1, 4)
    else:
        config.inputs["udp"] = ('{ type: udp, bind: "127.0.0.1:{port}", receive_buffer: %dMiB, to: [out] }' %
                                chance.randint(8, 32))


def read_out_what_came(sink):
    """Until the sink has read all that its kernel holds."""
    wait_for(lambda: sink.report()["unread_bytes"] == 0, "the sink to read the rest")


def run_reloads(bench, n, pps):
    sink = bench.sink("--number", "--keys", 10000, ports=4)
    config = Config(bench, sink.addresses[:2])
    millrace = config.start()
    chance = random.Random(n)
    load = Load(bench, sink, pps)
    applied = refused = 0
    for i in range(n):
        if i % 2:
            text = chance.choice(BROKEN)
            config.refuse(text if text is not None else config.text().replace("type: statsite", "type: nowhere"))
            refused += 1
            continue
        change_at_random(config, sink, chance)
        config.reload()
        applied += 1
        millrace.check()
        load.go_on(100)
    counters = load.ends_exactly(millrace)
    assert counters.sum("backend", "resent_records") == 0
    master = master_counters(millrace)
    assert (master["reloads"], master["reload_failures"]) == (applied, refused)
    assert set(worker_rows(millrace)) == set(range(config.workers))
    assert set(backends(millrace)) == {a.split('"')[1] if a.startswith("{") else a for a in config.backends}


@pytest.mark.parametrize("n, pps", [
    pytest.param(20, 1000, id="some"),
    pytest.param(100, 3000, id="hundred", marks=pytest.mark.soak),
])
def test_reloads_under_load_half_of_them_broken(bench, n, pps):
    run_reloads(bench, n, pps)


@pytest.mark.parametrize("n, pps", [
    pytest.param(12, 1000, id="some"),
    pytest.param(100, 3000, id="hundred", marks=pytest.mark.soak),
])
def test_reloads_while_backends_stall_and_die(bench, n, pps):
    """Each kind of change, half of the files broken, and each time a backend stalls or its process is gone for a moment: what
    is missing or came twice is within what the counters say of broken connections."""
    sink = bench.sink("--number", "--keys", 10000, ports=4)
    config = Config(bench, sink.addresses[:2], output=", reconnect_min: 20ms, reconnect_max: 100ms", top="drain_timeout: 20s")
    millrace = config.start()
    chance = random.Random(2 * n)
    load = Load(bench, sink, pps)
    for i in range(n):
        port = chance.choice(sink.ports)
        how = chance.choice(["stall 100ms", "reset", "refuse on"])
        sink.ask(f"{how} {port}")
        if i % 2:
            config.refuse(chance.choice(BROKEN[:4]))
        else:
            change_at_random(config, sink, chance)
            config.reload()
            millrace.check()
        sink.ask(f"refuse off {port}")
        load.go_on(100)
    lines = sum(s.stop()["lines"] for s in load.senders)
    wait_for(lambda: Counters(millrace).sum("input", "received_lines") == lines, "all lines to be read")
    counters = wait_settled(millrace)
    read_out_what_came(sink)
    report = sink.report()
    missing, doubles = lines - report["distinct"], report["doubles"]
    print(f"missing {missing} of at most {counters.at_risk()}, doubled {doubles} of at most {counters.resent()}")
    assert counters.sum("input", "received_lines") == lines
    assert (counters.dropped(), counters.lost_at_death(), counters.kernel_drops(), report["malformed"]) == (0, 0, 0, 0)
    assert 0 <= missing <= counters.at_risk() and doubles <= counters.resent()
    assert counters.unbalanced() == []
