# SPDX-License-Identifier: MIT
"""Drops are true: what was sent and not received and does not wait is what every place says that knows of drops: millracectl
drops, /metrics, /proc/net/udp, netstat. And the check script's four answers. Needs root: a network of its own."""
import json
import re
import signal
import socket
import subprocess
import urllib.request

import pytest
from conftest import BUILD, ROOT, free_port, wait_for
from faults import Counters, signal_all, udp_drops, udp_snmp, wait_settled, wait_stopped
from kafka_peers import Mock, needs_kafka
from packets import conf, flow_frames, needs_pcap, rows, wire, write_pcap

pytestmark = pytest.mark.needs_root
CHECK = ROOT / "etc/check_millrace_drops"


def drops(millrace, *words):
    return json.loads(millrace.ctl("drops", "--json", *words).stdout)


def step(path, name, unit=None):
    found = [s for s in path["steps"] if s["step"] == name and unit in (None, s["unit"])]
    assert len(found) == 1, f"{name} {unit}: {found}"
    return found[0]


def reason(path, step_name, name):
    found = [r for s in path["steps"] if s["step"] == step_name for r in s["reasons"] if r["name"] == name]
    assert len(found) == 1, f"{step_name} {name}: {found}"
    return found[0]


def netstat():
    """The "Udp:" part of netstat -anus: text → number."""
    text = subprocess.run(["netstat", "-anus"], capture_output=True, text=True, check=True).stdout
    udp = re.search(r"^Udp:\n((?: +.*\n)+)", text, re.M).group(1)
    return {words: int(n) for n, words in re.findall(r"^ +(\d+) (.*)$", udp, re.M)}


def metric(port, pattern):
    """The sum of the samples of /metrics whose name and labels match."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(rf"^{pattern} (\d+)$", text, re.M)
    assert found, f"no sample {pattern}"
    return sum(map(int, found))


def send(port, n, sources=16):
    """Datagrams of one size, so that what waits can be counted by its memory."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(sources)]
    for i in range(n):
        sockets[i % sources].sendto(b"stats.drops:%06d|c" % i, ("127.0.0.1", port))
    for s in sockets:
        s.close()


def stop(millrace, sig=signal.SIGSTOP):
    """A worker that is stopped within the microsecond in which it publishes leaves a page that nobody can read: then again."""
    pids = list(millrace.worker_pids().values())
    signal_all(pids, sig)
    while sig == signal.SIGSTOP:
        wait_stopped(pids)
        if millrace.ctl("stats", check=False).returncode == 0:
            break
        signal_all(pids, signal.SIGCONT)
        signal_all(pids, sig)


def start(bench, *flags, workers=2, buffer="64KiB"):
    http = free_port()
    sink = bench.sink()
    millrace = bench.millrace("--receive-buffer", buffer, "--http", f"127.0.0.1:{http}", *flags, backends=sink.addresses,
                              workers=workers, listen=("udp",))
    wait_for(lambda: len([s for s in drops(millrace)["sockets"] if s["proc_dropped"] is not None]) == workers, "all sockets", 10)
    wait_for(lambda: drops(millrace)["window_us"], "the monitor", 10)
    return sink, millrace, http


def assert_all_say(millrace, http, lost):
    """Every place says `lost`; those that the master and the monitor write each second, soon."""
    wait_for(lambda: Counters(millrace).kernel_drops() == lost, f"the master to count {lost} drops")
    path = drops(millrace)
    assert step(path, "socket")["lost"] == lost
    assert sum(s["dropped"] for s in path["sockets"]) == sum(s["proc_dropped"] for s in path["sockets"]) == lost
    assert path["host"]["udp"]["RcvbufErrors"] == path["host"]["udp"]["InErrors"] == path["host"]["ours_dropped"] == lost
    assert udp_drops(millrace.pid) == udp_snmp(millrace.pid)["RcvbufErrors"] == lost
    said = netstat()
    assert said["receive buffer errors"] == said["packet receive errors"] == lost
    wait_for(lambda: metric(http, r'millrace_path_lost_total\{path="socket/dropped_datagrams"\}') == lost, "/metrics, the path")
    assert metric(http, r"millrace_endpoint_dropped_datagrams_total\{[^}]*\}") == lost
    assert metric(http, r"millrace_host_udp_rcvbuf_errors_total") == lost
    text = millrace.ctl("drops").stdout
    assert re.search(rf"^socket +datagrams +\d+ +{lost} ", text, re.M), text
    assert f"RcvbufErrors {lost}, " in text and f"ours of these errors: {lost}\n" in text, text
    return path


@pytest.mark.parametrize("workers", [1, 2])
def test_all_places_say_the_same(own_network, bench, workers):
    sink, millrace, http = start(bench, workers=workers)
    assert_all_say(millrace, http, 0)
    stop(millrace)
    send(bench.port, 1, 1)
    one = sum(s["queue_bytes"] for s in drops(millrace)["sockets"])
    sent = 3000
    send(bench.port, sent - 1)
    path = drops(millrace)
    memory = sum(s["queue_bytes"] for s in path["sockets"])
    assert one > 0 and memory % one == 0
    waiting = memory // one
    lost = sent - waiting
    assert 0 < waiting < sent
    path = assert_all_say(millrace, http, lost)
    assert step(path, "socket")["in"] == lost  # none of the others was read yet
    assert f"is stopped by a signal and reads nothing: kill -CONT {millrace.worker_pids()[0]}" in path["advice"] or \
        f"kill -CONT {millrace.worker_pids()[workers - 1]}" in path["advice"]
    stop(millrace, signal.SIGCONT)
    counters = wait_settled(millrace, sent)
    assert counters.sum("input", "received_datagrams") == waiting == sink.wait_lines(waiting)["lines"]
    path = assert_all_say(millrace, http, lost)
    assert step(path, "socket")["in"] == sent and sum(s["queue_bytes"] for s in path["sockets"]) == 0
    wait_for(lambda: step(drops(millrace), "socket")["in_10s"] == sent, "the monitor")
    assert step(drops(millrace), "socket")["lost_10s"] == lost


def test_flat_out(own_network, bench):
    """Two workers that read while senders overrun them: sent = received + lost."""
    sink, millrace, http = start(bench)
    sent = bench.replay("--time", "2s", "--sources", 16, "--flat-out", "--bytes", 1400)
    counters = wait_for(lambda: (lambda c: c if c.sum("input", "received_datagrams") + c.kernel_drops() == sent["datagrams"]
                                 else None)(Counters(millrace)), "received + kernel drops = sent")
    lost = counters.kernel_drops()
    path = assert_all_say(millrace, http, lost)
    assert step(path, "socket")["in"] == sent["datagrams"]
    if lost:
        assert re.search("The worst: socket lost .*(receive_buffer|add workers|spread: packet)", path["advice"])


def test_other_programs_drops_are_not_ours(own_network, bench):
    """A full socket beside us is in the host's totals, and in no account of ours."""
    sink, millrace, http = start(bench)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        other.bind(("127.0.0.1", 0))
        send(other.getsockname()[1], 100)
        send(1, 7)  # nobody listens there
        path = wait_for(lambda: (lambda p: p if (step(p, "host")["lost_10s"] or 0) > 0 else None)(drops(millrace)), "the monitor")
        host = step(path, "host")
        assert host["lost"] == path["host"]["udp"]["RcvbufErrors"] == netstat()["receive buffer errors"] > 0
        assert path["host"]["udp"]["NoPorts"] == netstat()["packets to unknown port received"] == 7
    assert path["host"]["ours_dropped"] == step(path, "socket")["lost"] == 0
    assert path["worst_10s"] is None and path["advice"] == ""
    assert "Nothing was lost." in millrace.ctl("drops").stdout


def test_one_sender(own_network, bench):
    """All from one port: one worker of two reads everything, and the path says what to do about it."""
    sink, millrace, http = start(bench)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(b"a:1|c", ("127.0.0.1", bench.port))
        counters = wait_settled(millrace, 1)
        slot = [counters.sum("input", "received_datagrams", worker=w) for w in (0, 1)].index(1)
        pid = millrace.worker_pids()[slot]
        signal_all([pid], signal.SIGSTOP)
        wait_stopped([pid])
        for _ in range(1000):
            s.sendto(b"a:1|c", ("127.0.0.1", bench.port))
    wait_for(lambda: f"worker {slot} (pid {pid}) is stopped" in drops(millrace)["advice"], "the advice to let it run")
    signal_all([pid], signal.SIGCONT)
    wait_for(lambda: f"worker {slot} reads 100 % of input udp, so few senders send nearly all of it: spread: packet" in
             drops(millrace)["advice"], "the advice to spread")


def test_without_a_monitor(own_network, bench):
    """A monitor that is stopped writes nothing: the last ten seconds are said to be unknown, or measured by the asker."""
    sink, millrace, http = start(bench)
    monitor = int(Counters(millrace).sum("monitor", "pid"))
    signal_all([monitor], signal.SIGSTOP)
    wait_for(lambda: drops(millrace)["window_us"] is None, "the monitor's word to be old", 15)
    path = drops(millrace)
    assert step(path, "socket")["lost_10s"] is None and path["worst_10s"] is None
    assert "The last 10 s are not known" in millrace.ctl("drops").stdout
    stop(millrace)
    measure = bench.run(BUILD / "millracectl", "-s", millrace.control, "drops", "--json", "--seconds", 3)
    wait_for(lambda: maps_pages(measure.pid), "its first sample")
    send(bench.port, 3000)
    assert measure.wait() == 0
    path = json.loads("\n".join(measure.out))
    assert step(path, "socket")["lost_10s"] == step(path, "socket")["lost"] > 0
    assert "is stopped by a signal" in path["advice"]
    stop(millrace, signal.SIGCONT)
    signal_all([monitor], signal.SIGCONT)
    wait_for(lambda: drops(millrace)["window_us"], "the monitor", 15)


def maps_pages(pid):
    return "millrace-counters" in open(f"/proc/{pid}/maps").read()


def test_watch(own_network, bench):
    sink, millrace, http = start(bench)
    watch = bench.run(BUILD / "millracectl", "-s", millrace.control, "drops", "--watch", "--json")
    watch.wait_line(r'^"advice"', stream="out")
    stop(millrace)
    send(bench.port, 3000)
    watch.wait_line(r'"worst_10s":\{"step":"socket"', stream="out")
    stop(millrace, signal.SIGCONT)
    wait_settled(millrace, 3000)
    millrace.finish()
    assert watch.wait(10) == 2 and "millrace has ended" in watch.err[-1]
    for text in "\n".join(watch.out).split("\n}\n"):
        assert '"steps"' in text


# -- the check script -----------------------------------------------------------------------------------------------------

def check(millrace, *words):
    r = subprocess.run([CHECK, "-m", BUILD / "millracectl", "-s", getattr(millrace, "control", millrace), *map(str, words)],
                       capture_output=True, text=True, timeout=30)
    assert r.stderr == "" and r.stdout.count("\n") == 1, r.stdout + r.stderr
    return r.returncode, r.stdout


def test_check_script(own_network, bench):
    sink, millrace, http = start(bench)
    code, text = check(millrace)
    assert code == 0 and re.match(r"MILLRACE DROPS OK - nothing lost in the last 10 s \| ", text), text
    perf = dict(p.split("=") for p in text.split("|")[1].split())
    assert perf["socket_datagrams"] == "0%;0.01;1;0;100" and perf["socket_datagrams_lost"] == "0;;;0"
    stop(millrace)
    send(bench.port, 3000)
    stop(millrace, signal.SIGCONT)
    wait_settled(millrace, 3000)
    path = wait_for(lambda: (lambda p: p if step(p, "socket")["in_10s"] == 3000 else None)(drops(millrace)), "the monitor")
    lost, percent = step(path, "socket")["lost_10s"], step(path, "socket")["percent_10s"]
    assert percent == pytest.approx(lost * 100 / 3000, abs=0.0001) and 1 < percent < 99
    answers = {}
    for words in (("-w", 99, "-c", 99), ("-w", 1, "-c", 99), ("-c", 1), ("-w", 99, "-c", 99, "-W", lost),
                  ("-w", 99, "-c", 99, "-W", lost + 1), ("-w", 99, "-c", 99, "-W", 1, "-C", lost)):
        answers[words], text = check(millrace, *words)
        assert f"socket lost {lost} datagrams in the last 10 s, {percent:g}".rstrip("0") in text, text
        assert ("The worst: socket lost" in text) == (answers[words] > 0)
        assert f" socket_datagrams_lost={lost};" in text
    assert list(answers.values()) == [0, 1, 2, 1, 0, 2]


@pytest.mark.parametrize("words", [("-w", "x"), ("-w",), ("-z",), ("-c", "1.2.3"), ("more",), ("-W", "1%")])
def test_check_script_misused(tmp_path, words):
    r = subprocess.run([CHECK, "-s", tmp_path / "nothing", "-m", BUILD / "millracectl", *words], capture_output=True, text=True,
                       timeout=30)
    assert r.returncode == 3 and "UNKNOWN" in r.stdout


def test_check_script_without_millrace(bench, tmp_path):
    code, text = check(tmp_path / "nothing.sock")
    assert code == 3 and text.startswith("MILLRACE DROPS UNKNOWN - millracectl: No millrace answers at"), text
    r = subprocess.run([CHECK, "-m", "/nonexistent/millracectl"], capture_output=True, text=True, timeout=30)
    assert r.returncode == 3 and r.stdout.startswith("MILLRACE DROPS UNKNOWN")
    sink, millrace, http = start(bench)
    millrace.send_signal(signal.SIGSTOP)  # accepts for the kernel, and never answers
    wait_stopped([millrace.pid])
    code, text = check(millrace)
    millrace.send_signal(signal.SIGCONT)
    assert code == 3 and "does not answer" in text


def test_check_script_help():
    r = subprocess.run([CHECK, "--help"], capture_output=True, text=True, timeout=30)
    assert r.returncode == 0 and "-w PERCENT" in r.stdout and "exit status" in r.stdout


# -- packets --------------------------------------------------------------------------------------------------------------

@needs_kafka
@needs_pcap
def test_capture_ring(wire, bench):
    """The same for a ring on a veth: sent = received + waiting in the ring + found it full."""
    http = free_port()
    mock = Mock(bench, "t:1")
    text = conf(mock.bootstrap, "t", inputs="ring_size: 1MiB,", top=f"http: 127.0.0.1:{http}")
    millrace = bench.millrace(conf=text)
    wait_for(lambda: drops(millrace)["window_us"], "the monitor")
    stop(millrace)
    n = 20000
    before = step(drops(millrace), "card")["in"]
    assert wire.replay(write_pcap(bench.path / "r.pcap", flow_frames(n, 200, 200)), "--topspeed") == n
    path = wait_for(lambda: (lambda p: p if step(p, "ring")["in"] == n else None)(drops(millrace)), "the master to see all packets")
    lost = step(path, "ring")["lost"]
    waiting = rows(millrace, "endpoints")["ring_packets"]
    assert lost > 0 and waiting > 0 and n == lost + waiting
    assert step(path, "card")["in"] >= before + n and step(path, "card")["lost"] == 0
    assert step(path, "filter")["in"] == n and step(path, "filter")["left_out"] == 0
    assert "is stopped by a signal" in path["advice"]
    stop(millrace, signal.SIGCONT)
    wait_for(lambda: rows(millrace)["received_packets"] == n - lost, "the rest to be read")
    wait_for(lambda: Counters(millrace).waiting() == 0, "Kafka to have it")
    path = drops(millrace)
    assert step(path, "ring")["lost"] == lost == rows(millrace, "endpoints")["dropped_ring_packets"]
    wait_for(lambda: metric(http, r'millrace_path_lost_total\{path="ring/dropped_ring_packets"\}') == lost, "/metrics")
    assert step(path, "kafka_queue")["unit"] == "packets" and step(path, "delivery")["in"] == n - lost
    assert step(path, "delivery")["lost"] == 0
    assert re.search(rf"^ring +packets +{n} +{lost} ", millrace.ctl("drops").stdout, re.M)
    # the interface itself, as iproute2 reads it, in the path and in the metrics
    link, = json.loads(subprocess.run(["ip", "-j", "-s", "link", "show", wire.far], capture_output=True, check=True).stdout)
    known = link["stats64"]["rx"]
    found, = (i for i in drops(millrace)["interfaces"] if i["name"] == wire.far)
    assert n <= found["rx_packets"] == known["packets"] and found["rx_dropped"] == known["dropped"]
    wait_for(lambda: metric(http, rf'millrace_interface_rx_packets_total\{{interface="{wire.far}"\}}') == known["packets"],
             "/metrics, the interface")
    top = millrace.ctl("top", "--count", 1).stdout
    assert re.search(rf"^tap/{wire.far} slot 1 +up +\d+ +\d+ +0 +0$", top, re.M), top
