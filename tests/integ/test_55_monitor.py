# SPDX-License-Identifier: MIT
"""The monitor: its life beside the workers, what it answers, and what no client can do to it."""
import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from conftest import ROOT, free_port, wait_for
from faults import is_alive, kill_if_there, monitor_pid
from packets import needs_pcap
from peers import NOBODY, let_pass, needs_root

HTTP = ("--http", "127.0.0.1:0")


def address(millrace):
    """Where it really listens: the log says it."""
    return millrace.wait_line(r"monitor: http://(127\.0\.0\.1:\d+)/").group(1)


def ask(where, path, method="GET", headers=None, body=None):
    """Status, headers and text of one answer."""
    c = http.client.HTTPConnection(where, timeout=10)
    try:
        c.request(method, path, body=body, headers=headers or {})
        r = c.getresponse()
        return r.status, dict(r.getheaders()), r.read().decode()
    finally:
        c.close()


def internet_sockets(pid, *tables):
    """Inodes of the sockets that a process holds and the kernel lists in these tables of /proc/net."""
    held = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            held |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}")))
        except OSError:  # closed meanwhile, or the process has ended
            pass
    listed = {line.split()[9] for table in tables
              for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]}
    return held & listed


def metric(where, name):
    """The sum of a family's samples."""
    text = ask(where, "/metrics")[2]
    return sum(float(v) for v in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))


def test_answers(bench):
    sink = bench.sink()
    millrace = bench.millrace(*HTTP, backends=sink.addresses)
    where = address(millrace)
    assert ask(where, "/healthz")[::2] == (200, "ok\n")
    assert ask(where, "/readyz")[::2] == (200, "ready\n")
    code, headers, text = ask(where, "/metrics")
    assert code == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "# TYPE millrace_input_received_lines_total counter\n" in text
    code, headers, text = ask(where, "/")
    assert code == 200 and headers["Content-Type"].startswith("text/html") and "{{" not in text
    bench.replay("--lines", 5000)
    sink.wait_lines(5000)
    wait_for(lambda: metric(where, "millrace_backend_delivered_records_total") == 5000, "5,000 lines in the metrics")
    assert metric(where, "millrace_input_received_lines_total") == 5000
    status, ctl = json.loads(ask(where, "/api/status")[2]), millrace.status()
    for key in ("version", "pid"):
        assert status[key] == ctl[key]
    for scope in ("inputs", "outputs"):
        assert [i["name"] for i in status[scope]] == [i["name"] for i in ctl[scope]]
    assert status["inputs"][0]["received_lines"] == ctl["inputs"][0]["received_lines"] == 5000
    assert set(status) == set(ctl)


def test_history(bench):
    """What was read stands in the rates: their sum over the seconds is the total."""
    sink = bench.sink()
    millrace = bench.millrace(*HTTP, backends=sink.addresses)
    where = address(millrace)
    page = json.loads(ask(where, "/api/page")[2])
    bench.replay("--lines", 3000)
    sink.wait_lines(3000)

    def lines():
        rates = json.loads(ask(where, f"/api/page?since={page['from']}")[2])["rates"]
        return sum(r[1] for r in rates)
    # a second is one by the monitor's clock, which may be late on a busy machine: near, not equal
    wait_for(lambda: 2000 <= lines() <= 4500, "3,000 lines in the history")
    later = json.loads(ask(where, "/api/page")[2])
    end = later["from"] + len(later["rates"])
    newer = json.loads(ask(where, f"/api/page?since={end - 1}")[2])
    assert newer["from"] == end - 1 and newer["rates"][0] == later["rates"][-1]
    assert json.loads(ask(where, f"/api/page?since={end}")[2])["from"] == end
    assert json.loads(ask(where, "/api/page?since=99999999")[2])["from"] == later["from"], "of another monitor: all"
    assert later["verdict"][0] == "good"


def test_refusals(bench):
    sink = bench.sink()
    millrace = bench.millrace(*HTTP, backends=sink.addresses)
    where = address(millrace)
    port = where.rsplit(":", 1)[1]
    assert ask(where, "/nothing")[0] == 404
    assert ask(where, "/metrics/")[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
        code, headers, text = ask(where, "/", method, body=b"x" * 100)
        assert code == 405 and headers["Allow"] == "GET, HEAD" and text.endswith(".\n")
    code, headers, text = ask(where, "/metrics", "HEAD")
    assert code == 200 and text == "" and int(headers["Content-Length"]) > 1000
    # a name that a stranger's DNS made mean 127.0.0.1 is none of ours
    for host, code in ((f"evil.example:{port}", 421), ("127.0.0.1.evil.example", 421), ("[::1", 200), ("localhost", 200),
                       (f"LocalHost.:{port}", 200), (f"127.0.0.1:{port}", 200), (f"[::1]:{port}", 200), ("10.1.2.3", 200)):
        assert ask(where, "/metrics", headers={"Host": host})[0] == code, host
    code, headers, _ = ask(where, "/", headers={"Origin": "http://evil.example"})
    assert code == 200 and not any(h.lower().startswith("access-control") for h in headers)
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy

    def nonce():
        return re.search(r"script-src 'nonce-([0-9a-f]{32})'", ask(where, "/")[1]["Content-Security-Policy"]).group(1)
    first = nonce()
    wait_for(lambda: nonce() != first, "another nonce")
    wait_for(lambda: metric(where, "millrace_monitor_http_refused_requests_total") == 10, "the refusals to be counted")


def test_readyz(bench):
    """Not ready while a slot has no worker that is; with the reason."""
    sink = bench.sink()
    millrace = bench.millrace(*HTTP, backends=sink.addresses)
    where = address(millrace)

    def refused():  # each death makes the next start later
        pid = millrace.worker_pids().get(1)
        if pid:
            kill_if_there(pid)
        code, _, text = ask(where, "/readyz")
        return (code, text) if code != 200 else None
    code, text = wait_for(refused, "a slot without a worker")
    assert code == 503 and re.fullmatch(r"worker 1 is (vacant|starting)\n", text), (code, text)
    assert ask(where, "/healthz")[0] == 200
    wait_for(lambda: ask(where, "/readyz")[0] == 200, "a worker in slot 1", 20)


def test_lives_and_dies(bench):
    """Killed, it comes again with its counters; the workers do not notice; it holds nothing of theirs."""
    sink = bench.sink()
    millrace = bench.millrace(*HTTP, backends=sink.addresses)
    where = address(millrace)
    first, workers = monitor_pid(millrace), millrace.worker_pids()
    wait_for(lambda: metric(where, "millrace_monitor_samples_total") >= 1, "a sample")
    assert internet_sockets(millrace.pid, "udp") and not internet_sockets(first, "udp"), "a worker's socket"
    assert len(internet_sockets(first, "tcp")) <= 3, "its HTTP socket and the last clients; not the input's"
    bench.replay("--lines", 1000)
    os.kill(first, signal.SIGKILL)
    millrace.wait_line(rf"monitor \(pid {first}\) killed by signal 9")
    second = monitor_pid(millrace)
    assert second != first
    bench.replay("--lines", 1000)
    sink.wait_lines(2000)
    wait_for(lambda: metric(where, "millrace_monitor_starts_total") == 2, "the successor to answer at the same address")
    assert metric(where, "millrace_monitor_samples_total") >= 2
    assert millrace.worker_pids() == workers
    assert metric(where, "millrace_input_received_lines_total") == 2000
    # stopped, it harms nobody
    os.kill(second, signal.SIGSTOP)
    bench.replay("--lines", 1000)
    sink.wait_lines(3000)
    os.kill(second, signal.SIGCONT)
    assert millrace.terminate() == 0
    assert not Path(f"/proc/{second}").exists()


@needs_root
def test_is_unprivileged(bench):
    """It answers strangers, so it is nobody, without capabilities, and the kernel refuses what it does not need."""
    sink = bench.sink()
    millrace = bench.millrace(*HTTP, backends=sink.addresses)
    where, pid = address(millrace), monitor_pid(millrace)
    assert ask(where, "/metrics")[0] == 200
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    assert status["Uid"].split() == [str(NOBODY)] * 4
    assert {status[key] for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"


@needs_root
@needs_pcap
def test_holds_no_ring(bench, own_network):
    """A mapping of a ring that a sibling keeps holds it in its fanout group, where it takes packets that nobody reads."""
    sink = bench.sink()
    conf = """
workers: 2
inputs: { tap: { type: capture, driver: pcap, interface: lo, filter: "udp port 7", to: out } }
outputs: { out: { type: statsite, backends: [%s] } }
""" % sink.addresses[0]
    millrace = bench.millrace(*HTTP, conf=conf)

    def rings(pid):
        return sum("socket:" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    assert [rings(pid) for pid in millrace.worker_pids().values()] == [1, 1]
    wait_for(lambda: ask(address(millrace), "/healthz")[0] == 200, "an answer")
    assert rings(monitor_pid(millrace)) == 0


def test_ends_with_the_master(bench):
    sink = bench.sink()
    millrace = bench.millrace(*HTTP, backends=sink.addresses)
    pid = monitor_pid(millrace)
    millrace.expected_exit = -signal.SIGKILL
    millrace.p.kill()
    wait_for(lambda: not is_alive(pid), "the monitor to see that its link ended")


def test_off(bench):
    """Without HTTP there is a monitor all the same: it samples the host."""
    sink = bench.sink()
    millrace = bench.millrace("--http", "off", backends=sink.addresses)
    pid = monitor_pid(millrace)
    wait_for(lambda: not internet_sockets(pid, "tcp", "tcp6", "udp", "udp6"), "it to hold no socket of the network")
    assert not any("http://" in line for line in millrace.err)

    def samples():
        rows = millrace.stats()["counters"]
        return next(r["value"] for r in rows if r["scope"] == "monitor" and r["name"] == "samples")
    wait_for(lambda: samples() >= 2, "two samples")


def test_port_in_use(bench, own_network):
    """One that was asked for is a fault; the default is none."""
    sink = bench.sink()
    with socket.create_server(("127.0.0.1", 8126)):
        for value in ("127.0.0.1:8126", "localhost:8126"):
            refused = bench.millrace("--http", value, backends=sink.addresses, wait=False)
            refused.expected_exit = 1
            refused.expected_errors = ["in use"]
            assert refused.wait() == 1
            assert sum(" ERROR " in line for line in refused.err) == 1
        millrace = bench.millrace("--http", "auto", backends=sink.addresses)
        millrace.wait_line(r"WARN master: .*127\.0\.0\.1:8126.* in use .*Going on without HTTP")
        millrace.terminate()
    millrace = bench.millrace("--http", "auto", backends=sink.addresses)
    assert ask("127.0.0.1:8126", "/healthz")[0] == 200
    assert address(millrace) == "127.0.0.1:8126"


@pytest.mark.parametrize("value, sentence", [
    ("8126", "has no port"),
    ("127.0.0.1:99999", "has a port above 65535"),
    ("", "has no port"),
    ("127.0.0.1:8126:tcp", "has something behind the port"),
    ("127.0.0.1:{port}", "is the same address as another one"),
])
def test_wrong_values(bench, value, sentence):
    bench.port = free_port()
    m = bench.millrace("--http", value.replace("{port}", str(bench.port)), backends=["127.0.0.1:9"], wait=False)
    m.expected_exit = 1
    assert m.wait() == 1
    assert len(m.err) == 1 and "http: " in m.err[0] and sentence in m.err[0], m.err


def test_hostile_clients(bench):
    """Connections that say nothing, half of something, garbage, or do not read: the others are answered, memory stays, and
    no sample is late."""
    sink = bench.sink()
    millrace = bench.millrace(*HTTP, backends=sink.addresses)
    where = address(millrace)
    host, port = where.rsplit(":", 1)
    pid = monitor_pid(millrace)

    def memory():
        return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text()).group(1))
    ask(where, "/metrics")
    had = len(os.listdir(f"/proc/{pid}/fd"))
    before, samples = memory(), metric(where, "millrace_monitor_samples_total")
    began = time.monotonic()
    crowd = []
    texts = [b"", b"GET / HTTP/1.1\r\nX: ", b"\0\xff" * 2000, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50,
             b"GET / HTTP/1.1\r\n" + b"A: " + b"b" * 100000, b"GET " + b"/" * 70000]
    for i in range(100):  # all from other addresses of 127/8, so that the limit of one address is not what stops them
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.bind((f"127.0.1.{i % 3 + 1}", 0))
        s.settimeout(1)
        try:
            s.connect((host, int(port)))
            s.setblocking(False)
            s.send(texts[i % len(texts)])
        except OSError:
            pass
        crowd.append(s)
    bench.replay("--lines", 2000)
    sink.wait_lines(2000)
    assert memory() < before + 20_000, "KiB"
    for s in crowd:
        s.close()
    wait_for(lambda: ask(where, "/healthz")[0] == 200, "an answer")
    wait_for(lambda: metric(where, "millrace_monitor_samples_total") >= samples + 2, "two more samples")
    late = time.monotonic() - began - (metric(where, "millrace_monitor_samples_total") - samples)
    assert late < 5, "seconds that were not sampled"
    wait_for(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= had + 1, "their descriptors to be closed", 20)


def test_one_address_takes_not_all(bench):
    """Whoever holds all connections that one address may have leaves some for others."""
    sink = bench.sink()
    millrace = bench.millrace(*HTTP, backends=sink.addresses)
    where = address(millrace)
    host, port = where.rsplit(":", 1)
    crowd = [socket.create_connection((host, int(port)), source_address=("127.0.2.1", 0)) for _ in range(60)]
    assert ask(where, "/healthz")[0] == 200
    for s in crowd:
        s.close()


def test_many_at_once(bench):
    """Eight that ask for everything all the time get equal and whole answers; the monitor's CPU has a bound that does not
    depend on them for what is dear."""
    sinks = bench.sink(ports=50)
    millrace = bench.millrace(*HTTP, backends=sinks.addresses, workers=2)
    where = address(millrace)
    failures, until = [], time.monotonic() + 2

    def read():
        while time.monotonic() < until:
            for path in ("/metrics", "/api/page", "/api/status", "/"):
                code, headers, text = ask(where, path)
                if code != 200 or len(text.encode()) != int(headers["Content-Length"]):
                    failures.append((path, code))
    threads = [threading.Thread(target=read) for _ in range(8)]
    for t in threads:
        t.start()
    bench.replay("--lines", 50_000)
    for t in threads:
        t.join()
    assert not failures
    sinks.wait_lines(50_000)


def cpu_seconds(pid):
    """Time on a CPU of a process and all its threads; /proc/PID/stat has it in steps of 10 ms only."""
    return sum(int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
               for task in os.listdir(f"/proc/{pid}/task")) / 1e9


def test_cost(bench):
    """Scraped every second with 8 workers and 100 backends; then left alone. The issue says 1 % and 0.5 % of a core; here
    the bound is wider, since other tests run beside it."""
    sinks = bench.sink(ports=100)
    millrace = bench.millrace(*HTTP, backends=sinks.addresses, workers=8)
    where = address(millrace)
    pid = monitor_pid(millrace)
    ask(where, "/metrics")
    began, before = time.monotonic(), cpu_seconds(pid)
    connection = http.client.HTTPConnection(where, timeout=10)
    for i in range(6):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read()
        assert text.count(b"millrace_backend_up{") == 100
        let_pass(max(0, began + i + 1 - time.monotonic()))
    share = (cpu_seconds(pid) - before) / (time.monotonic() - began)
    print(f"scraped every second: {share:.2%} of a core")
    assert share < 0.05


@pytest.mark.soak
def test_idle(bench):
    """Four workers that have nothing to do, and the monitor's tick."""
    sinks = bench.sink(ports=4)
    millrace = bench.millrace(*HTTP, backends=sinks.addresses, workers=4)
    pids = [millrace.pid, monitor_pid(millrace), *millrace.worker_pids().values()]
    let_pass(1)
    began, before = time.monotonic(), sum(map(cpu_seconds, pids))
    let_pass(30)
    share = (sum(map(cpu_seconds, pids)) - before) / (time.monotonic() - began)
    print(f"idle: {share:.3%} of a core")
    assert share < 0.005


def test_documented():
    """The man page names what is served."""
    text = (ROOT / "etc" / "man" / "millrace.8").read_text()
    for path in ("/metrics", "/healthz", "/readyz", "/api/status"):
        assert path in text
