# SPDX-License-Identifier: MIT
"""The command line: without a file, with one, what overrides what, and what is no flag."""
import json
import re
import socket
import subprocess

import pytest

from conftest import BUILD, free_port
from peers import Collector, config, counters, send_datagrams, statsite


def run(*words, **kw):
    return subprocess.run([str(w) for w in (BUILD / "millrace", *words)], capture_output=True, text=True, timeout=15, **kw)


def test_as_the_readme_says(bench):
    """--listen udp and tcp, two backends, 2 workers, 32 MiB."""
    backend = Collector(bench, n=2)
    millrace = bench.millrace("--receive-buffer", "32M", backends=backend.addresses)
    send_datagrams(bench, "udp", *[b"udp.%d:1|c" % i for i in range(100)])
    with socket.create_connection(("127.0.0.1", bench.port)) as s:
        s.sendall(b"".join(b"tcp.%d:1|c\n" % i for i in range(100)))
    lines = backend.wait_lines(200)
    assert sorted(lines) == sorted([b"udp.%d:1|c" % i for i in range(100)] + [b"tcp.%d:1|c" % i for i in range(100)])
    assert all(backend.lines(p) for p in backend.ports)
    status = millrace.status()
    assert [w["state"] for w in status["workers"]] == ["ready", "ready"]
    assert all(e["asked_buffer_bytes"] == 32 << 20 for e in status["endpoints"])


@pytest.mark.parametrize("flag", ["--receive-buffer", "--rcvbuf"])
def test_receive_buffer_overrides_every_input(bench, flag):
    backend = Collector(bench)
    millrace = bench.millrace(flag, "1MiB", conf=config(
        {"a": {"type": "udp", "bind": "127.0.0.1:{port}", "to": "out", "receive_buffer": "8MiB"},
         "b": {"type": "unixgram", "bind": str(bench.path / "b.sock"), "to": "out"}}, {"out": statsite(backend.addresses)}))
    assert {e["asked_buffer_bytes"] for e in millrace.status()["endpoints"]} == {1 << 20}


def test_unix_sockets(bench):
    backend = Collector(bench)
    stream, datagram = bench.path / "s.sock", bench.path / "d.sock"
    millrace = bench.millrace("--listen", f"unix://{stream}", "--listen", f"unixgram://{datagram}", backends=backend.addresses, listen=())
    for kind, path in ((socket.SOCK_STREAM, stream), (socket.SOCK_DGRAM, datagram)):
        with socket.socket(socket.AF_UNIX, kind) as s:
            s.connect(str(path))
            s.send(path.name.encode() + b":1|c\n")
    assert sorted(backend.wait_lines(2)) == [b"d.sock:1|c", b"s.sock:1|c"]
    assert stream.stat().st_mode & 0o777 == datagram.stat().st_mode & 0o777 == 0o666
    assert millrace.terminate() == 0
    assert not stream.exists() and not datagram.exists() and not millrace.control.exists()


def test_udp_backends_by_flag(bench):
    backend = Collector(bench, udp=True)
    bench.millrace(backends=backend.addresses, workers=1)
    send_datagrams(bench, "udp", b"a:1|c\nb:1|c\n")
    assert backend.wait_lines(2) == [b"a:1|c", b"b:1|c"]


def test_flags_override_the_file(bench):
    backend = Collector(bench)
    millrace = bench.millrace("--workers", "1", "--log-level", "debug", conf=config(
        {"in": {"type": "udp", "bind": "127.0.0.1:{port}", "to": "out"}}, {"out": statsite(backend.addresses)},
        workers=3, log_level="error"))
    assert len(millrace.status()["workers"]) == 1
    assert any(" DEBUG " in line for line in millrace.err)


def test_workers_by_default_are_the_cpus_it_may_use(bench):
    backend = Collector(bench)
    import os
    conf = config({"in": {"type": "udp", "bind": "127.0.0.1:{port}", "to": "out"}}, {"out": statsite(backend.addresses)})
    millrace = bench.millrace(conf=conf, preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
    assert len(millrace.status()["workers"]) == 1


def test_version_and_help():
    r = run("--version")
    assert (r.returncode, r.stderr) == (0, "") and re.match(r"millrace \d+\.\d+\.\d+", r.stdout)
    for flag in ("-h", "--help"):
        r = run(flag)
        assert (r.returncode, r.stderr) == (0, "")
        for word in ("--config", "--check-config", "--fork-count", "--per-second-stats", "--listen", "--backend", "--receive-buffer",
                     "--log-level", "--version", "--control", "shard_map", "idle_timeout"):
            assert word in r.stdout, word


@pytest.mark.parametrize("words,says", [
    ([], "-c FILE"),
    (["--backend", "127.0.0.1:9001"], "--listen"),
    (["--listen", "udp://127.0.0.1:8125"], "backend"),
    (["--wrokers", "2"], "--wrokers"),
    (["-x"], "-x"),
    (["stray"], "stray"),
    (["--workers"], "--workers"),
    (["--workers", "many"], "--workers"),
    (["--workers", "9999"], "0 to 256"),
    (["--listen", "sctp://127.0.0.1:1"], "sctp"),
    (["--listen", "udp://127.0.0.1"], "port"),
    (["--listen", "udp://::1:8125"], "brackets"),
    (["--listen", "udp://127.0.0.1:99999"], "65535"),
    (["--backend", "::1:9001"], "brackets"),
    (["--backend", "host:port"], "number"),
    (["--backend", "a:1:sctp"], ":udp"),
    (["--receive-buffer", "lots"], "receive-buffer"),
    (["--receive-buffer", "99GiB"], "1GiB"),
    (["-l", "loud"], "error, warn, info"),
    (["-c", "a.yaml", "-c", "b.yaml"], "two configuration files"),
    (["-c", "a.yaml", "--listen", "udp://127.0.0.1:8125"], "without a file"),
    (["--listen", "udp://127.0.0.1:8125", "--backend", "a:1", "--backend", "a:1"], "duplicate"),
    (["--\033[31mred"], "\\x1b"),
], ids=lambda v: " ".join(v)[:30].replace("\033", "ESC") if isinstance(v, list) else "")
def test_what_is_refused(words, says):
    """One line on stderr that names it and says what to do, exit 1."""
    r = run(*words)
    assert (r.returncode, r.stdout) == (1, "")
    assert r.stderr.count("\n") == 1 and says in r.stderr, r.stderr
    assert "\033" not in r.stderr


def test_dump_loads_to_the_same(bench):
    """--dump prints a file with all defaults; that file gives the same dump, and serves."""
    backend = Collector(bench)
    bench.port = free_port()
    first = run("--dump", "--listen", f"udp://127.0.0.1:{bench.port}", "--backend", backend.addresses[0], "--workers", "1")
    assert (first.returncode, first.stderr) == (0, "")
    file = bench.path / "dump.yaml"
    file.write_text(first.stdout)
    second = run("--dump", "-c", file)
    assert (second.returncode, second.stderr) == (0, "")
    strip = lambda text: [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    assert strip(second.stdout) == strip(first.stdout)
    bench.millrace(conf=first.stdout)
    send_datagrams(bench, "udp", b"a:1|c")
    assert backend.wait_lines(1) == [b"a:1|c"]


def test_json_is_yaml_and_a_map_is_a_map(bench):
    """Flow style on one line, and a backend as a string, as users write it."""
    backend = Collector(bench)
    text = json.dumps({"inputs": {"in": {"type": "udp", "bind": "127.0.0.1:{port}", "to": "out"}},
                       "outputs": {"out": {"type": "statsite", "backends": backend.addresses[0]}}})
    millrace = bench.millrace(conf=text)
    send_datagrams(bench, "udp", b"a:1|c")
    assert backend.wait_lines(1) == [b"a:1|c"]
    assert counters(millrace)["received_lines"] == 1
