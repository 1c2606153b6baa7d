# SPDX-License-Identifier: MIT
"""Frames as they were, through each virtual device, into the real broker: net_pcap with frames of every size and tag, net_ring
fed by another process, net_af_packet with tags that the kernel takes out."""
import collections
import shutil
import subprocess

import pytest
from conftest import BUILD, wait_for
from dpdk_peers import (conf, counter, huge, line_frames, needs_dpdk, needs_root, settled, tcpreplay, udp_frame, veth,  # noqa: F401
                        write_pcap)
from kafka_peers import Cluster, needs_kafka, topic

pytestmark = [needs_dpdk, needs_kafka]
NO_HUGE = ["--no-huge", "-m 512"]


@pytest.fixture(scope="module")
def kafka():
    with Cluster() as c:
        yield c


@pytest.fixture
def prefix(tmp_path):
    """A --file-prefix whose files, which DPDK leaves behind, go with the test (before `bench` in a test's list)."""
    name = tmp_path.name[:40]
    yield name
    shutil.rmtree(f"/var/run/dpdk/{name}", ignore_errors=True)


def kafka_out(bootstrap, name, options=""):
    return (f"\n  out: {{ type: kafka, topic: {name}, format: packet{options}, "
            f'properties: {{ bootstrap.servers: "{bootstrap}" }} }}')


def all_kinds():
    """Every length that matters, tags, what is not IP, jumbo, and what fits into no single buffer."""
    yield from (udp_frame(bytes([n % 256]) * n, flow=n) for n in list(range(0, 300)) + [1458, 1472, 1473, 8930, 8958])
    yield from (udp_frame(b"v%d" % n, flow=n, tags=[(0x8100, n)]) for n in (1, 100, 4094))
    yield udp_frame(b"qinq", tags=[(0x88a8, 7), (0x8100, 8)])
    yield b"\xff" * 6 + b"\x02\0\0\0\0\x05" + b"\x08\x06" + bytes(46)
    yield from (bytes([n]) * n for n in (14, 20, 33, 60))
    yield from (udp_frame(bytes([n % 256]) * n, flow=n) for n in (16300, 16384, 20000, 60000))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_net_pcap_frames_as_they_were(kafka, bench, tmp_path, workers):
    name, files, frames = topic(kafka, 4), [], []
    for w in range(workers):
        file = tmp_path / f"q{w}.pcap"
        mine = [f + b"%d" % w for f in all_kinds()]
        write_pcap(file, mine)
        frames += mine
        files.append(f"rx_pcap={file}")
    millrace = bench.millrace(conf=conf(NO_HUGE, workers, port="net_pcap0," + ",".join(files),
                                        outputs=kafka_out(kafka.bootstrap, name)))
    wait_for(lambda: counter(millrace, "delivered_records") >= len(frames), f"{len(frames)} frames to be delivered", 20)
    messages = list(kafka.read(name))
    assert collections.Counter(m.value for m in messages) == collections.Counter(frames)
    assert all(len(m.key) == 8 for m in messages)
    import time
    now = time.time()
    assert all(abs(int.from_bytes(m.key, "big") / 1e6 - now) < 60 for m in messages)  # the time of the burst
    assert counter(millrace, "truncated_packets") == 0
    millrace.check()


@needs_root
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_net_ring(kafka, huge, prefix, bench, tmp_path, workers):  # noqa: F811
    name, file = topic(kafka, 4), tmp_path / "lines.pcap"
    frames = list(line_frames(20000))
    write_pcap(file, frames)
    shared = [f"--file-prefix={prefix}", f"--huge-dir={huge}"]
    millrace = bench.millrace(conf=conf([*shared, "-m 256", "--huge-unlink=never"], workers, port="net_ring0",
                                        outputs=kafka_out(kafka.bootstrap, name)))
    sender = BUILD / "tests" / "dpdk_ring_sender"
    r = subprocess.run([sender, "-l", "0", "--proc-type=secondary", "--no-pci", *shared, "--", "net_ring0", str(workers), file],
                       capture_output=True, text=True, timeout=60)
    assert r.returncode == 0 and "sent 20000, 0 not given back" in r.stdout, r.stdout + r.stderr
    assert settled(millrace, len(frames)) == (len(frames), 0)
    assert all(counter(millrace, "received_packets", worker=w) == len(frames) // workers for w in range(workers))
    wait_for(lambda: counter(millrace, "delivered_records") >= len(frames), "all frames to be delivered", 20)
    assert collections.Counter(m.value for m in kafka.read(name)) == collections.Counter(frames)
    millrace.check()


@needs_root
def test_net_af_packet_frames_as_they_were(veth, tmp_path, bench):  # noqa: F811
    """Jumbo frames and tags: what the kernel takes out of a frame stands in it again. Its own cluster: the test's network."""
    file = tmp_path / "kinds.pcap"
    frames = [f for f in all_kinds() if 14 <= len(f) <= 9214 and f[12:14] != b"\x88\xa8"]
    write_pcap(file, frames)
    with Cluster() as kafka:
        name = topic(kafka, 4)
        millrace = bench.millrace(conf=conf(NO_HUGE, 2, outputs=kafka_out(kafka.bootstrap, name)))
        sent = tcpreplay(veth[0], file, "--pps", 2000)
        received, dropped = settled(millrace, sent)
        assert (received, dropped) == (sent, 0)
        wait_for(lambda: counter(millrace, "delivered_records") >= received, "all frames to be delivered", 20)
        got = collections.Counter(m.value for m in kafka.read(name))
        assert got == collections.Counter(frames)
        millrace.check()
        assert millrace.terminate() == 0
