# SPDX-License-Identifier: MIT
"""Which backend gets a key: rendezvous, weights, what moves; and who feeds whom."""
import re
import subprocess
from collections import Counter

import pytest

from conftest import BUILD, wait_for
from peers import Collector, config, counters, one_input, send_stream, shard_table, statsite, wait_counters

KEYS = [f"host{i % 97}.metric{i}" for i in range(20000)]


def conf_file(bench, name, backends, **options):
    file = bench.path / name
    file.write_text(config({"in": {"type": "udp", "bind": "127.0.0.1:8125", "to": "out"}}, {"out": statsite(backends, **options)}))
    return file


def ctl(*words, keys=KEYS):
    r = subprocess.run([BUILD / "millracectl", *map(str, words)], input="".join(f"{k}\n" for k in keys), capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r.stderr
    return r.stdout


def owners(file, keys=KEYS):
    """The backend of each key, by `millracectl hash`."""
    rows = [re.fullmatch(r"key=(\S+) statsd=(\S+) statsd_shard=(\d+)", line) for line in ctl("hash", "-c", file, keys=keys).splitlines()]
    assert [r.group(1) for r in rows] == list(keys)
    return [r.group(2) for r in rows]


def moved(old, new, *options, keys=KEYS):
    """(moved, all) of diff-map's first line."""
    first = ctl("diff-map", old, new, *options, keys=keys).splitlines()[0]
    return tuple(int(x) for x in re.fullmatch(r"(\d+) of (\d+) keys move \([\d.]+ %\)", first).groups())


def test_lines_go_where_hash_says(bench):
    backend = Collector(bench, n=5)
    bench.millrace(conf=one_input(bench, "tcp", backend.addresses, workers=2))
    keys = KEYS[:5000] + [k for k, _, _ in shard_table()]
    wanted = dict(zip(keys, owners(bench.path / "millrace.yaml", keys)))
    send_stream(bench, "tcp", *("".join(f"{k}:1|c\n" for k in keys[i::4]).encode() for i in range(4)))
    backend.wait_lines(len(keys))
    for address, port in zip(backend.addresses, backend.ports):
        assert sorted(backend.lines(port)) == sorted(f"{k}:1|c".encode() for k in keys if wanted[k] == address)


def test_rendezvous_does_not_depend_on_the_order(bench):
    names = [f"10.0.0.{i}:9000" for i in range(1, 8)]
    a, b = conf_file(bench, "a.yaml", names), conf_file(bench, "b.yaml", names[::-1])
    assert owners(a) == owners(b)
    assert moved(a, b) == (0, len(KEYS))


def test_weights_are_shares(bench):
    """Within the design's bound for each share, and the noise of a sample of keys (four times its deviation)."""
    weights = {"10.0.0.1:9": 1, "10.0.0.2:9": 2, "10.0.0.3:9": 5, "10.0.0.4:9": 0}
    file = conf_file(bench, "w.yaml", [{"address": a, "weight": w} for a, w in weights.items()])
    got = Counter(owners(file))
    assert got["10.0.0.4:9"] == 0
    for address, weight in weights.items():
        p = weight / 8
        if p:
            bound = 5 * ((1 - p) / (65536 * p)) ** .5 + 4 * ((1 - p) / (len(KEYS) * p)) ** .5
            assert abs(got[address] / len(KEYS) / p - 1) < bound, (address, got)


def test_weights_in_the_real_program(bench):
    backend = Collector(bench, n=2)
    bench.millrace(conf=one_input(bench, "tcp", [{"address": backend.addresses[0], "weight": 3}, backend.addresses[1]]))
    send_stream(bench, "tcp", "".join(f"{k}:1|c\n" for k in KEYS).encode())
    backend.wait_lines(len(KEYS))
    assert abs(len(backend.lines(backend.ports[0])) / len(KEYS) - 0.75) < 0.03


@pytest.mark.parametrize("n", [2, 5, 20])
def test_one_more_moves_its_share(bench, n):
    """N to N + 1 and back: at most 1/N + 1 %, only to or from the one; modulo moves nearly all."""
    names = [f"10.0.0.{i}:9000" for i in range(1, n + 2)]
    small, large = conf_file(bench, "s.yaml", names[:n]), conf_file(bench, "l.yaml", names)
    before, after = owners(small), owners(large)
    assert {b for a, b in zip(before, after) if a != b} == {names[n]}
    for old, new in ((small, large), (large, small)):
        count, of = moved(old, new)
        assert of == len(KEYS) and count == sum(a != b for a, b in zip(before, after))
        assert 0 < count / of < 1 / n + 0.01
    small, large = conf_file(bench, "sm.yaml", names[:n], hash="modulo"), conf_file(bench, "lm.yaml", names, hash="modulo")
    count, of = moved(small, large)
    assert count / of > 0.6


def test_diff_map_with_made_up_keys_and_names(bench):
    """--keys N needs no input; a backend that keeps its name keeps its keys when its address changes; several outputs."""
    a = conf_file(bench, "a.yaml", [{"address": f"10.0.0.{i}:9", "name": f"n{i}"} for i in range(4)])
    b = conf_file(bench, "b.yaml", [{"address": f"10.9.9.{i}:9", "name": f"n{i}"} for i in range(4)])
    assert moved(a, b, "--keys", 5000, keys=[]) == (0, 5000)
    two = bench.path / "two.yaml"
    two.write_text(config({"in": {"type": "udp", "bind": "127.0.0.1:8125", "to": ["out", "other"]}},
                          {"out": statsite(["10.0.0.1:9"]), "other": statsite(["10.0.0.2:9"])}))
    r = subprocess.run([BUILD / "millracectl", "diff-map", a, two], input="", capture_output=True, text=True)
    assert r.returncode == 2 and "--output" in r.stderr
    text = ctl("diff-map", a, two, "--output", "out", "--keys", 1000, keys=[])
    assert text.startswith("1000 of 1000 keys move (100.00 %)\n") and "10.0.0.1:9" in text


@pytest.mark.parametrize("overflow", ["auto", "block"])
def test_two_outputs_of_one_input(bench, overflow):
    """Each gets every line; the input counts a line once."""
    one, two = Collector(bench, n=2), Collector(bench, udp=True)
    millrace = bench.millrace(conf=config({"in": {"type": "tcp", "bind": "127.0.0.1:{port}", "to": ["one", "two"]}}, {
        "one": statsite(one.addresses, overflow=overflow), "two": statsite(two.addresses, overflow=overflow)}, workers=2))
    lines = [f"{k}:1|c".encode() for k in KEYS[:3000]]
    send_stream(bench, "tcp", b"\n".join(lines))
    assert sorted(one.wait_lines(3000)) == sorted(two.wait_lines(3000)) == sorted(lines)
    assert counters(millrace)["to_outputs_lines"] == 3000
    assert {o["name"]: o["offered_records"] for o in millrace.status()["outputs"]} == {"one": 3000, "two": 3000}


def test_two_inputs_to_one_output(bench):
    """Also of different protocols and with validation only on one."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=config({
        "statsd": {"type": "tcp", "bind": "127.0.0.1:{port}", "to": "out"},
        "carbon": {"type": "unix", "bind": str(bench.path / "in.sock"), "to": "out", "protocol": "carbon", "validate": False}},
        {"out": statsite(backend.addresses)}, workers=2))
    send_stream(bench, "tcp", b"a:1|c\nbad\n")
    send_stream(bench, "unix", b"a b\nbad\n")
    assert sorted(backend.wait_lines(2)) == [b"a b", b"a:1|c"]
    for name in ("statsd", "carbon"):
        wait_counters(millrace, name, received_lines=2, invalid_lines=1, to_outputs_lines=1)
    wait_for(lambda: millrace.status()["outputs"][0]["offered_records"] == 2, "the output's account")


def test_crosswise(bench):
    """Two inputs, three outputs, one shared."""
    backends = [Collector(bench) for _ in range(3)]
    millrace = bench.millrace(conf=config({
        "a": {"type": "tcp", "bind": "127.0.0.1:{port}", "to": ["x", "shared"]},
        "b": {"type": "unix", "bind": str(bench.path / "in.sock"), "to": ["shared", "y"]}},
        {name: statsite(b.addresses) for name, b in zip(("x", "shared", "y"), backends)}, workers=2))
    send_stream(bench, "tcp", b"a:1|c\n")
    send_stream(bench, "unix", b"b:1|c\n")
    assert backends[0].wait_lines(1) == [b"a:1|c"]
    assert sorted(backends[1].wait_lines(2)) == [b"a:1|c", b"b:1|c"]
    assert backends[2].wait_lines(1) == [b"b:1|c"]
    assert {i["name"]: i["to"] for i in millrace.status()["inputs"]} == {"a": ["x", "shared"], "b": ["shared", "y"]}
