# SPDX-License-Identifier: MIT
"""A statsrelay.yaml works unchanged: same keys to the same shards, same flags."""
import re
import socket
import subprocess

import pytest

from conftest import BUILD, free_port, wait_for
from peers import Collector, config, shard_table, statsite, wait_counters

TABLE = shard_table()

STATSRELAY = """
carbon:
  bind: 127.0.0.1:{carbon}
  validate: true
  tcp_cork: false
  shard_map:
    0: ADDRESS0
    1: ADDRESS1
statsd:
  bind: 127.0.0.1:{port}
  tcp_cork: true
  validate: true
  max_send_queue: 134217728
  always_resolve_dns: false
  shard_map:
    0: ADDRESS2
    1: ADDRESS3:tcp
    2: ADDRESS4:udp
"""


def section(addresses, name="statsd"):
    return f"{name}:\n  bind: 127.0.0.1:{{port}}\n  shard_map:\n" + "".join(f"    {i}: {a}\n" for i, a in enumerate(addresses))


def send(port, kind, text):
    with socket.socket(socket.AF_INET, kind) as s:
        s.connect(("127.0.0.1", port))
        s.sendall(text)


def test_a_file_as_it_is(bench):
    tcp, udp = Collector(bench, n=4), Collector(bench, udp=True)
    carbon = free_port()
    text = STATSRELAY.replace("{carbon}", str(carbon))
    for i, a in enumerate([*tcp.addresses, udp.addresses[0].removesuffix(":udp")]):
        text = text.replace(f"ADDRESS{i}", a)
    millrace = bench.millrace(conf=text)
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        send(bench.port, kind, b"".join(f"{key}:1|c\n".encode() for key, _, _ in TABLE) + b"bad|line\n")
        send(carbon, kind, b"".join(f"{key} 1.5 1656581400\n".encode() for key, _, _ in TABLE) + b"bad line\n")
    n = len(TABLE)
    wait_for(lambda: len(tcp.lines()) + len(udp.lines()) == 4 * n, f"{4 * n} lines")
    for shard, port in enumerate([*tcp.ports[2:], *udp.ports]):
        wanted = [f"{k}:1|c".encode() for k, _, s in TABLE if s[3] == shard] * 2
        assert sorted((udp if shard == 2 else tcp).lines(port)) == sorted(wanted)
    for shard, port in enumerate(tcp.ports[:2]):
        wanted = [f"{k} 1.5 1656581400".encode() for k, value, _ in TABLE if value % 2 == shard] * 2
        assert sorted(tcp.lines(port)) == sorted(wanted)
    status = {i["name"]: i for i in millrace.status()["inputs"]}
    assert set(status) == {"statsd_udp", "statsd_tcp", "carbon_udp", "carbon_tcp"}
    assert all(i["invalid_lines"] == 1 for i in status.values())


@pytest.mark.parametrize("n", [3, 4, 10])
@pytest.mark.parametrize("workers", [1, 2])
def test_every_key_goes_to_statsrelays_shard(bench, n, workers):
    backend = Collector(bench, n=n)
    bench.millrace("--workers", workers, conf=section(backend.addresses))
    send(bench.port, socket.SOCK_STREAM, b"".join(f"{key}:{i}|c\n".encode() for i, (key, _, _) in enumerate(TABLE)))
    backend.wait_lines(len(TABLE))
    for shard, port in enumerate(backend.ports):
        assert sorted(backend.lines(port)) == sorted(f"{k}:{i}|c".encode() for i, (k, _, s) in enumerate(TABLE) if s[n] == shard)


@pytest.mark.parametrize("share", [lambda shard: shard % 4, lambda shard: shard // 256, lambda shard: shard * shard % 4])
def test_virtual_shards_share_backends(bench, share):
    """1,024 shards on four backends: one connection for each backend, and each key at the backend of its shard."""
    backend = Collector(bench, n=4)
    millrace = bench.millrace("--workers", 1, conf=section([backend.addresses[share(i)] for i in range(1024)]))
    send(bench.port, socket.SOCK_STREAM, b"".join(f"{key}:1|c\n".encode() for key, _, _ in TABLE))
    backend.wait_lines(len(TABLE))
    for i, port in enumerate(backend.ports):
        assert sorted(backend.lines(port)) == sorted(f"{k}:1|c".encode() for k, _, s in TABLE if share(s[1024]) == i)
    used = len({share(i) for i in range(1024)})
    assert (len(millrace.status()["backends"]), backend.open) == (used, used)


@pytest.mark.parametrize("n", [3, 4, 10, 1024])
def test_millracectl_hash_is_stathasher(bench, n):
    file = bench.path / "statsrelay.yaml"
    file.write_text(section([f"10.0.{i // 250}.{i % 250 + 1}:9000" for i in range(n)]).replace("{port}", "8125"))
    keys = "".join(f"{k}\n" for k, _, _ in TABLE)
    r = subprocess.run([BUILD / "millracectl", "hash", "-c", file], input=keys, capture_output=True, text=True, timeout=20)
    assert (r.returncode, r.stderr) == (0, "")
    assert r.stdout.splitlines() == [
        f"key={k} statsd=10.0.{s[n] // 250}.{s[n] % 250 + 1}:9000 statsd_shard={s[n]}" for k, _, s in TABLE]


def test_millracectl_hash_with_carbon(bench):
    file = bench.path / "statsrelay.yaml"
    file.write_text(section(["a:1", "b:2", "c:3"]).replace("{port}", "8125") +
                    section(['"[::1]:4"', "e:5:udp"], "carbon").replace("{port}", "2003"))
    r = subprocess.run([BUILD / "millracectl", "hash", "-c", file], input="abcde\n\nabcde:1|c ignored\n", capture_output=True, text=True)
    # 1,764,605,401 is odd, and 1 modulo 3
    assert r.stdout.splitlines()[0] == "key=abcde carbon=e:5:udp carbon_shard=1 statsd=b:2 statsd_shard=1"
    assert len(r.stdout.splitlines()) == 2


def test_validate_off_and_carbon(bench):
    """carbon is keyed by the bytes before the first space, whatever comes behind."""
    backend = Collector(bench, n=2)
    text = section(backend.addresses, "carbon").replace("  shard_map", "  validate: false\n  shard_map")
    millrace = bench.millrace("--workers", 1, conf=text)
    lines = [f"{k} anything at all:{i}|c".encode() for i, (k, _, _) in enumerate(TABLE)]
    send(bench.port, socket.SOCK_STREAM, b"\n".join(lines) + b"\nno_space\n leading\n")
    backend.wait_lines(len(lines))
    for shard, port in enumerate(backend.ports):
        assert sorted(backend.lines(port)) == sorted(x for x, (_, value, _) in zip(lines, TABLE) if value % 2 == shard)
    wait_counters(millrace, "carbon_tcp", received_lines=len(lines) + 2, invalid_lines=2)


@pytest.mark.parametrize("flags", [["-l", "warn"], ["--log-level=warning"], ["--log-level", "WARN"]])
def test_log_level(bench, flags):
    backend = Collector(bench)
    millrace = bench.millrace(*flags, conf=section(backend.addresses), wait=False)
    wait_for(lambda: (bench.path / "control.sock").exists() and millrace.ctl("status", check=False).returncode == 0, "it to answer")
    wait_for(lambda: all(w["state"] == "ready" for w in millrace.status()["workers"]), "its workers to be ready")
    assert millrace.terminate() == 0
    assert not [line for line in millrace.err if " INFO " in line or " DEBUG " in line]


def test_verbose(bench):
    backend = Collector(bench)
    millrace = bench.millrace("-v", conf=section(backend.addresses))
    millrace.wait_line(" DEBUG ")


@pytest.mark.parametrize("flag", ["--fork-count", "--workers"])
def test_fork_count(bench, flag):
    backend = Collector(bench)
    millrace = bench.millrace(flag, "3", conf=section(backend.addresses))
    millrace.wait_line("millrace is serving with 3 workers")
    assert sorted(millrace.worker_pids()) == [0, 1, 2]


@pytest.mark.parametrize("workers", [1, 2])
def test_per_second_stats(bench, workers):
    """A line a second: packets and bytes in total and for each worker; their sums are what was sent."""
    backend = Collector(bench)
    millrace = bench.millrace("--per-second-stats", "--fork-count", workers, conf=section(backend.addresses))
    sent = bench.replay("--one", "--count", 4000, "--pps", 4000, "--sources", 16)
    pattern = r"last second: (\d+) packets, (\d+) bytes:" + ",".join(rf" worker {i} (\d+) packets (\d+) bytes" for i in range(workers)) + "$"

    def rows():
        return [[int(x) for x in m.groups()] for m in (re.search(pattern, line) for line in list(millrace.err)) if m]
    wait_for(lambda: sum(r[0] for r in rows()) >= 4000, "all packets in the lines")
    found = rows()
    assert [sum(column) for column in zip(*found)][:2] == [4000, sent["bytes"]]
    for r in found:
        assert (r[0], r[1]) == (sum(r[2::2]), sum(r[3::2]))
    assert len(found) == len([line for line in millrace.err if "last second" in line])


def test_modulo_is_the_same_by_backends(bench):
    """hash: modulo goes by the order of `backends` as statsrelay does by the numbers of its shard_map."""
    backend = Collector(bench, n=3)
    bench.millrace(conf=config({"in": {"type": "tcp", "bind": "127.0.0.1:{port}", "to": "out"}},
                               {"out": statsite(backend.addresses, hash="modulo")}, workers=1))
    send(bench.port, socket.SOCK_STREAM, b"".join(f"{key}:1|c\n".encode() for key, _, _ in TABLE))
    backend.wait_lines(len(TABLE))
    for shard, port in enumerate(backend.ports):
        assert sorted(backend.lines(port)) == sorted(f"{k}:1|c".encode() for k, _, s in TABLE if s[3] == shard)
