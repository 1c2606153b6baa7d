# SPDX-License-Identifier: MIT
"""The figure that Fastcapa's authors gave: 211,000 packets a second of 650 bytes to a real Apache Kafka, without loss: 10 s here,
60 s in make soak, ten minutes in make bench-seed. Needs root: a network namespace of its own."""
import os

import pytest
from faults import Counters
from kafka_peers import Cluster, needs_kafka, topic
from packets import conf, flow_frames, needs_pcap, rows, wait_read, wire, write_pcap

pytestmark = [needs_kafka, needs_pcap, pytest.mark.needs_root]
PPS, BYTES = 211000, 650
SECONDS = os.environ.get("SEED_SECONDS")


@pytest.mark.parametrize("seconds", [int(SECONDS)] if SECONDS else [10, pytest.param(60, marks=pytest.mark.soak)])
def test_seed_figure(wire, bench, seconds):
    workers = os.environ.get("SEED_WORKERS", "2")
    with Cluster(heap="1g") as kafka:
        name = topic(kafka, 4, ":retention.bytes=268435456,segment.bytes=67108864")  # 1 GiB of disk for the four
        file = write_pcap(bench.path / "seed.pcap", flow_frames(10000, 1000, BYTES))
        millrace = bench.millrace(conf=conf(kafka.bootstrap, name, workers=workers, inputs="ring_size: 256MiB,",
                                            top="drain_timeout: 20s"))
        wire.replay(file, "--pps", 20000)  # connections, partitions, memory
        wait_read(millrace, 10000)
        sent = wire.replay(file, "--pps", PPS, "--loop", PPS * seconds // 10000, timeout=seconds * 3 + 60)
        wait_read(millrace, 10000 + sent, 120)
        c = Counters(millrace)
        lost = c.sum("endpoint", "dropped_ring_packets") + c.sum("endpoint", "dropped_missed_packets") + c.dropped()
        rate = wire.rate
        print(f"sent {sent} packets of {BYTES} bytes at {rate:.0f}/s, {rate * BYTES * 8 / 1e9:.2f} Gbit/s; lost {lost}")
        assert sum(kafka.end_offsets(name).values()) == 10000 + sent - lost
        assert rows(millrace)["received_packets"] == 10000 + sent - c.sum("endpoint", "dropped_ring_packets")
        if rate < PPS * 0.95:
            pytest.skip(f"the sender managed only {rate:.0f} packets/s beside the broker on {os.cpu_count()} CPUs; lost {lost}")
        assert lost == 0
