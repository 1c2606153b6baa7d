# SPDX-License-Identifier: MIT
"""Called as `fastcapa`: the line that Fastcapa's authors tested with, with a virtual device in place of the card."""
import json
import os
import re
import signal
import subprocess

import pytest
from conftest import BUILD, wait_for
from dpdk_peers import huge, line_frames, needs_dpdk, needs_root, tcpreplay, veth, write_pcap  # noqa: F401
from kafka_peers import Cluster, needs_kafka

pytestmark = [needs_dpdk, needs_kafka]
FASTCAPA = BUILD / "fastcapa"


def run(*words):
    return subprocess.run([FASTCAPA, *map(str, words)], capture_output=True, text=True, timeout=30)


def last_table(lines):
    """{"nic": {"in": …, "queued": …, "out": …, "drops": …}, …} of the last table."""
    rows = {}
    for line in lines:
        m = re.fullmatch(r"\[(nic|rx|tx|kaf)\]\s+(\d+)\s+(\d+|-)\s+(\d+|-)\s+(\d+|-)", line)
        if m:
            rows[m.group(1)] = dict(zip(("in", "queued", "out", "drops"), (0 if v == "-" else int(v) for v in m.groups()[1:])))
    return rows


@needs_root
def test_the_line_that_its_authors_tested_with(veth, huge, bench, tmp_path):  # noqa: F811
    file, ini, stats = tmp_path / "lines.pcap", tmp_path / "fastcapa.conf", tmp_path / "stats.json"
    write_pcap(file, line_frames(60000, flows=1000, size=300))
    with Cluster(topics=["pcap256:256"]) as kafka:
        ini.write_text(f"[kafka-global]\nmetadata.broker.list = {kafka.bootstrap}\nstatistics.interval.ms = 1000\n[kafka-topic]\n")
        fastcapa = bench.run(FASTCAPA, "-l", "0,1", "--vdev", "net_af_packet0,iface=mr1,qpairs=2", "--huge-dir", huge,
                             "--", "-t", "pcap256", "-c", ini, "-r", "512", "-q", "2", "-x", "32768", "-s", stats)
        fastcapa.wait_line(r"millrace is serving with 2 workers", 20)
        fastcapa.wait_line(r"fastcapa: -x: has no meaning any more")
        sent = tcpreplay(veth[0], file, "--pps", 10000)
        assert sent == 60000
        wait_for(lambda: last_table(fastcapa.out).get("kaf", {}).get("out", 0) >= sent, "a table with all packets", 30)
        # log rotation: the file is moved away, USR1 makes a new one
        stats.rename(tmp_path / "stats.1")
        fastcapa.send_signal(signal.SIGUSR1)
        wait_for(lambda: stats.exists() and stats.stat().st_size > 0, "a new statistics file", 10)
        fastcapa.send_signal(signal.SIGTERM)
        assert fastcapa.wait(20) == 0
        table = last_table(fastcapa.out)
        assert table["nic"]["in"] == sent, table
        assert sum(kafka.java_end_offsets("pcap256").values()) == sent, "\n".join(fastcapa.out[-5:] + fastcapa.err)
    assert table["nic"] == {"in": sent, "queued": 0, "out": 0, "drops": 0}
    for name in ("rx", "tx", "kaf"):
        assert table[name] == {"in": sent, "queued": 0, "out": sent, "drops": 0}, table
    lines = [json.loads(line) for f in (tmp_path / "stats.1", stats) for line in f.read_text().splitlines()]
    assert {line["conn_id"] for line in lines} == {"0", "1"}
    assert all(line["conn_name"] == line["stats"]["name"] and "brokers" in line["stats"] for line in lines)


def test_refused(tmp_path):
    ini = tmp_path / "f.conf"
    ini.write_text("[kafka-global]\nmetadata.broker.list = 127.0.0.1:9\n")
    for words, says in (
            (("--", "-p", "0", "-c", ini), '-p: "0" is not allowed'),
            (("--", "-b", "1025", "-c", ini), '-b: "1025" is not allowed'),
            (("--", "-t", "a b", "-c", ini), '-t: "a b" is not allowed'),
            (("--no-huge", "-m", "64", "--vdev", "net_ring0", "--", "-p", "2", "-c", ini), "there is no port 1; DPDK has net_ring0"),
            (("--no-huge", "-m", "64", "--", "-c", ini), "there is no port 0"),
            (("--",), "-c is missing"),
    ):
        r = run(*words)
        assert r.returncode == 1 and says in r.stderr, r.stderr
        assert not r.stdout


def test_help_and_dump(tmp_path):
    ini = tmp_path / "f.conf"
    ini.write_text("[kafka-global]\nmetadata.broker.list = 127.0.0.1:9\n[kafka-topic]\nrequest.required.acks = 1\n")
    r = run("--", "-h")
    assert r.returncode == 0 and "-q" in r.stdout
    r = run("-l", "0", "--", "-c", ini, "-q", "3", "--dump")
    assert r.returncode == 0, r.stderr
    yaml = tmp_path / "millrace.yaml"
    yaml.write_text(r.stdout)
    r = subprocess.run([BUILD / "millrace", "-t", "-c", yaml], capture_output=True, text=True, timeout=30)
    assert r.returncode == 0, r.stderr


def test_statistics_that_cannot_be_written(bench, tmp_path):
    """One line in the log, and packets go on."""
    ini = tmp_path / "f.conf"
    ini.write_text("[kafka-global]\nmetadata.broker.list = 127.0.0.1:9\n")
    fastcapa = bench.run(FASTCAPA, "--no-huge", "-m", "128", "--vdev", "net_ring0", "--", "-c", ini, "-s", tmp_path / "no" / "such")
    fastcapa.wait_line(r"statistics_file .*: cannot be opened: No such file or directory")
    fastcapa.wait_line(r"millrace is serving")
    os.kill(fastcapa.pid, signal.SIGQUIT)
    fastcapa.wait(20)


__all__ = ["pytest"]
