# SPDX-License-Identifier: MIT
"""millracectl: what it says of a running millrace, in which form, and what it says when there is none."""
import json
import os
import re
import socket
import subprocess
import time

import pytest

from conftest import BUILD, wait_for
from peers import Collector, config, one_input, send_datagrams, send_stream, statsite, wait_counters
from peers import needs_root, NOBODY



def ctl(*words, **kw):
    return subprocess.run([BUILD / "millracectl", *map(str, words)], capture_output=True, text=True, timeout=30, **kw)


@pytest.fixture
def loaded(bench):
    """Two workers, two backends, 1,000 good lines, 3 bad and 2 empty ones, all delivered."""
    backend = Collector(bench, n=2)
    millrace = bench.millrace(conf=one_input(bench, "udp", backend.addresses, workers=2))
    for i in range(20):
        send_datagrams(bench, "udp", b"".join(b"a.%d.%d:1|c\n" % (i, k) for k in range(50)))
    send_datagrams(bench, "udp", b"bad\nbad\n\nbad\n\n", b"")
    wait_counters(millrace, received_lines=1005, received_datagrams=22)
    wait_for(lambda: sum(b["delivered_records"] for b in millrace.status()["backends"]) == 1000, "all to be acknowledged")
    return millrace


def test_status_for_people(loaded):
    text = loaded.ctl("status").stdout
    assert re.match(rf"millrace \d+\.\d+\.\d+, pid {loaded.pid}, up [^,]+, 2 of 2 workers ready\n", text)
    for slot, pid in loaded.worker_pids().items():
        assert re.search(rf"^{slot} +ready +{pid} ", text, re.M)
    assert re.search(r"^in +udp +22 +1005 +\d+ +3 +0 +0 +0$", text, re.M), text
    for b in loaded.status()["backends"]:
        assert re.search(
    rf"^out/{re.escape(b['name'])} +tcp +2 of 2 +{b['offered_records']} +{b['delivered_records']} +0 +0 +0$",
    text,
     re.M)
    assert all(line.isprintable() for line in text.splitlines())


def test_status_json(loaded):
    s = json.loads(loaded.ctl("status", "--json").stdout)
    assert s["pid"] == loaded.pid and 0 < s["uptime_us"] < 60e6 and s["started_us"] == s["loaded_us"]
    assert [(w["slot"], w["state"], w["restarts"], w["pid"]) for w in s["workers"]] == \
        [(slot, "ready", 0, pid) for slot, pid in sorted(loaded.worker_pids().items())]
    i, = s["inputs"]
    assert (i["name"], i["type"], i["to"], i["kernel_dropped_datagrams"]) == ("in", "udp", ["out"], 0)
    assert (i["received_lines"], i["to_outputs_lines"], i["invalid_lines"], i["empty_lines"]) == (1005, 1000, 3, 2)
    assert (i["received_datagrams"], i["to_outputs_datagrams"], i["empty_datagrams"]) == (22, 21, 1)
    o, = s["outputs"]
    assert (o["name"], o["unit"], o["offered_records"], o["taken_records"]) == ("out", "lines", 1000, 1000)
    assert {(b["output"], b["transport"], b["state"], b["up"]) for b in s["backends"]} == {("out", "tcp", "up", 2)}
    assert len(s["endpoints"]) == 2


def test_stats(loaded):
    """Every counter row with worker, input or output, backend; their sums are what status says; the text has the same."""
    rows = loaded.stats()["counters"]
    scopes = {"worker", "input", "output", "backend", "master", "slot", "endpoint", "monitor", "host", "process", "path"}
    assert {r["scope"] for r in rows} - {"interface"} == scopes
    assert {r["kind"] for r in rows} <= {"counter", "gauge", "loss", "hint"}
    labels = {"input": {"worker", "input"}, "output": {"worker", "output"}, "worker": {"worker"}, "slot": {"slot"},
              "backend": {"worker", "output", "backend", "transport"}, "endpoint": {"endpoint", "input"},
              "process": {"slot"}, "path": {"path"}}
    for scope, keys in labels.items():
        assert all(keys <= r.keys() for r in rows if r["scope"] == scope), scope
    names = [tuple(sorted((k, v) for k, v in r.items() if k not in ("value", "kind"))) for r in rows]
    assert len(set(names)) == len(names)
    status = loaded.status()
    for b in status["backends"]:
        mine = [r for r in rows if r["scope"] == "backend" and r["backend"] == b["name"]]
        assert {r["worker"] for r in mine} == {0, 1}
        for name in ("offered_records", "delivered_records", "sent_bytes"):
            assert sum(r["value"] for r in mine if r["name"] == name) == b[name]
    text = loaded.ctl("stats").stdout.splitlines()
    assert len(text) == len(rows)
    assert all(re.fullmatch(r"\w+\{[^{}]*\} \d+", line) for line in text)
    received = [r for r in rows if r["name"] == "received_lines"]
    assert len(received) == 2
    for r in received:
        assert f"received_lines{{worker={r['worker']} input=in}} {r['value']}" in text


def test_every_row_of_counter_def_is_there(loaded):
    """Each counter is listed for each worker that can have it."""
    from conftest import ROOT as tree
    rows = re.findall(r"^COUNTER\((\w+), (\w+),", (tree / "include/tbl/counter.def").read_text(), re.M)
    found = {(r["scope"].upper(), r["name"]) for r in loaded.stats()["counters"]}
    wanted = {r for r in rows if r[0] in {"WORKER", "INPUT", "OUTPUT", "BACKEND", "MASTER", "SLOT", "ENDPOINT", "HOST",
                                         "PROCESS", "PATH"}}
    assert wanted and wanted <= found


def test_check(loaded):
    r = loaded.ctl("check")
    assert r.stdout == "The ledger balances: 2 workers, 1 inputs, 1 outputs, 2 backends, 1 time.\n"
    r = loaded.ctl("check", "--repeat", 50)
    assert "50 times" in r.stdout


def test_drops(bench):
    """The path with what each step lost, the worst one, and what to do: from the counter's own row."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "tcp", backend.addresses))
    assert "Nothing was lost." in millrace.ctl("drops").stdout
    send_stream(bench, "tcp", b"a:1|c\n" * 90 + b"bad\n" * 9 + b"k" * 70000 + b"\n")
    wait_counters(millrace, received_lines=100)
    text = millrace.ctl("drops").stdout
    assert re.findall(r"^(\w+) .* \d+ +\d+ +(?:-|[\d.]+ %)", text, re.M)[-4:] == ["invalid", "worker", "queue", "backend"]
    assert re.search(r"^invalid +lines +100 +10 +10 %", text, re.M), text
    assert re.search(r"^  invalid_lines +lines +9 .* in$", text, re.M), text
    assert re.search(r"^  dropped_too_long_lines +lines +1 .* in$", text, re.M), text
    assert re.search(r"^The worst: invalid lost 10\.00 % .*: in: .*validate: false", text, re.M), text


def test_top_into_a_file(bench):
    """Not a terminal: plain text, N blocks a second apart, rates of that second."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "udp", backend.addresses, workers=2))
    top = bench.run(BUILD / "millracectl", "-s", millrace.control, "top", "--count", 2)
    bench.replay("--one", "--time", "2.5s", "--pps", 2000, "--sources", 8)
    assert top.wait() == 0
    text = "\n".join(top.out)
    assert "\033" not in text and top.err == []
    heads = re.findall(
    rf"^millrace \S+, pid {millrace.pid}: (\d+) datagrams/s, (\d+) lines/s in; 0 datagrams/s dropped by the kernel$",
    text,
     re.M)
    assert len(heads) == 2
    assert all(a == b for a, b in heads) and 1000 < int(heads[1][0]) < 3000
    workers = re.findall(r"^([01]) +ready +\d+ +\d+ % +(\d+) +(\d+)", text, re.M)
    assert len(workers) == 4
    assert abs(sum(int(w[1]) for w in workers[2:]) - int(heads[1][0])) <= 2
    assert len(re.findall(rf"^out/{backend.addresses[0]} ", text, re.M)) == 2


def test_top_ends_with_its_millrace(bench):
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "udp", backend.addresses))
    top = bench.run(BUILD / "millracectl", "-s", millrace.control, "top")
    top.wait_line("^millrace ", stream="out")
    millrace.finish()
    assert top.wait(10) == 0
    assert "millrace has ended" in top.out[-1]


@pytest.mark.parametrize("workers", [1, 2])
def test_log_level_of_a_running_millrace(bench, workers):
    """Also of its workers: what they log at level debug comes, then not."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "tcp", [*backend.addresses, "127.0.0.1:1"], workers=workers,
                                             output={"reconnect_min": "20ms", "reconnect_max": "20ms"}))
    r = millrace.ctl("log", "error")
    assert r.stdout == "log level is error\n"
    r = millrace.ctl("log", "loud", check=False)
    assert (r.returncode, r.stdout) == (1, "")
    assert r.stderr == 'millracectl: "loud" is no log level; allowed are error, warn, info and debug\n'
    # a death is a warning, which is not logged now
    before = len(millrace.err)
    pid = millrace.worker_pids()[0]
    os.kill(pid, 15)
    wait_for(lambda: millrace.worker_pids().get(0) not in (None, pid), "the next worker")
    wait_for(lambda: all(w["state"] == "ready" for w in millrace.status()["workers"]), "it to be ready")
    assert len([x for x in millrace.err[before:] if "master" in x]) == 0
    # nor has the next worker gone back to the configuration's level: it cannot reach 127.0.0.1:1 and would say so
    failures = [b for b in millrace.stats()["counters"] if b["name"] == "connect_failures" and b["worker"] == 0 and b["value"]]
    assert failures and not [x for x in millrace.err[before:] if "worker 0" in x]
    millrace.ctl("log", "info")
    millrace.ctl("drain")
    assert millrace.wait() == 0
    assert any("draining" in line for line in millrace.err)


def test_drain(bench):
    """As TERM: what was accepted is delivered, exit 0; while it drains it accepts nothing new."""
    sink = bench.sink("--number")
    millrace = bench.millrace(backends=sink.addresses)
    bench.replay("--number", "--lines", 20000, "--flat-out", "--bytes", 8000, "--tcp")
    r = millrace.ctl("drain")
    assert r.stdout == "draining\n"
    assert millrace.wait() == 0
    assert sink.wait_lines(20000)["distinct"] == 20000
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", bench.port))


COMMANDS = [["status"], ["status", "--json"], ["top", "--count", "1"], ["drops"], ["stats"], ["stats", "--json"], ["check"],
            ["log", "debug"], ["drain"], ["pages"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_without_a_millrace(bench, command):
    """Exit 2 and one sentence that says where it looked and what to do; a stale socket, a file, and a folder too."""
    path = bench.path / "none.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(bench.path / "stale.sock"))
    stale.close()
    (bench.path / "file").write_text("")
    for place in (path, bench.path / "stale.sock", bench.path / "file", bench.path):
        r = ctl("-s", place, *command)
        assert (r.returncode, r.stdout) == (2, "")
        assert r.stderr.count("\n") == 1 and str(place) in r.stderr and "--control" in r.stderr
    r = ctl(*command, env={**os.environ, "MILLRACE_CONTROL": str(path)})
    assert r.returncode == 2 and str(path) in r.stderr
    r = ctl("-s", "/" + "x" * 200, *command)
    assert r.returncode == 2 and "too long" in r.stderr


def test_something_else_at_the_socket(bench):
    """What is no millrace: it is said what it answered, with its control bytes escaped."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(bench.path / "other.sock"))
        server.listen()
        p = subprocess.Popen([BUILD / "millracectl", "-s", bench.path / "other.sock", "status"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        peer, _ = server.accept()
        with peer:
            assert peer.recv(100) == b"pages\n"
            peer.sendall(b"220 \x1b[31mmail server\n")
            out, err = p.communicate(timeout=30)
    assert (p.returncode, out) == (2, "")
    assert "is it a millrace?" in err and "\\x1b" in err and "\033" not in err


@pytest.mark.parametrize("words", [
    [], ["statsu"], ["status", "--jsno"], ["status", "extra"], ["top", "--count", "0"], ["top", "--count"], ["drops", "x"],
    ["check", "--repeat", "x"], ["hash"], ["hash", "-c"], ["diff-map", "one"], ["log"],
    ["log", "a", "b"], ["drain", "now"], ["-x"],
], ids=" ".join)
def test_wrong_usage(loaded, words):
    r = loaded.ctl(*words, check=False)
    assert (r.returncode, r.stdout) == (2, "")
    assert r.stderr.startswith("millracectl: ") or "millracectl" in r.stderr
    loaded.check()


def test_hash_and_diff_map_with_a_bad_file(bench):
    file = bench.path / "bad.yaml"
    file.write_text("inputs: {}\nwrong: 1\n")
    for words in (["hash", "-c", file], ["diff-map", file, file],
                  ["hash", "-c", bench.path], ["hash", "-c", bench.path / "none"]):
        r = ctl(*words, input="a\n")
        assert (r.returncode, r.stdout) == (1, "")
        assert str(words[-1]) in r.stderr


@needs_root
def test_another_user_may_not_ask(bench, tmp_path_factory):
    """The control socket is for its user and group: mode 0660."""
    backend = Collector(bench)
    millrace = bench.millrace(backends=backend.addresses)
    assert millrace.control.stat().st_mode & 0o777 == 0o660
    path = f"/tmp/millrace-test-{os.getpid()}-{time.monotonic_ns()}.sock"
    other = bench.millrace("--control",
    path,
    conf=config({"in": {"type": "unixgram",
    "bind": str(bench.path / "x.sock"),
    "to": "out"}},
     {"out": statsite(backend.addresses)}))
    other.control = path
    r = ctl("-s", path, "status", user=NOBODY, group=NOBODY, extra_groups=[])
    assert r.returncode == 2 and f"You may not use {path}" in r.stderr


def test_help_and_version():
    r = ctl("--help")
    assert r.returncode == 0
    for word in ("status", "top", "drops", "stats", "check", "hash", "diff-map", "log", "drain", "--socket", "exit status"):
        assert word in r.stdout
    r = ctl("--version")
    assert r.returncode == 0 and re.fullmatch(r"millracectl \d+\.\d+\.\d+\n", r.stdout)


def test_a_closed_pipe_is_no_trouble(loaded):
    """millracectl stats | head."""
    r = subprocess.run(["bash",
    "-o",
    "pipefail",
    "-c",
    f"{BUILD}/millracectl -s {loaded.control} stats | head -1"],
    capture_output=True,
     text=True)
    assert r.stdout.count("\n") == 1
    loaded.check()
