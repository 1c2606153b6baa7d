# SPDX-License-Identifier: MIT
"""Packets that hold several datagrams (UDP_SEGMENT, GRO) are counted, not cut into lines that nobody sent. Needs root."""
import socket

import pytest
from packets import ip, needs_pcap, rows, wait_read, wire
from peers import Collector, config, statsite

pytestmark = [needs_pcap, pytest.mark.needs_root]
SOL_UDP, UDP_SEGMENT = 17, 103


def test_payloads_without_a_newline_between_them(bench, wire):
    backend = Collector(bench)
    for name in (wire.near, wire.far):
        ip("link", "set", name, "mtu", 1500)
    ip("addr", "add", "10.9.0.1/24", "dev", wire.near)
    ip("neigh", "add", "10.9.0.2", "lladdr", "02:00:00:00:00:02", "dev", wire.near)
    millrace = bench.millrace(conf=config(
        {"in": {"type": "capture", "interface": wire.far, "driver": "pcap", "filter": "udp port 8125", "to": "out"}},
        {"out": statsite(backend.addresses)}, workers=1))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(("10.9.0.2", 8125))
        s.send(b"before:1|c")
        line = b"k" * 990 + b"%d:1|c"
        s.setsockopt(SOL_UDP, UDP_SEGMENT, len(line) - 1)
        s.send(b"".join(line % i for i in range(5)))
        s.setsockopt(SOL_UDP, UDP_SEGMENT, 0)
        s.send(b"after:1|c")
    wait_read(millrace, 3)
    assert backend.wait_lines(2) == [b"before:1|c", b"after:1|c"]
    r = rows(millrace)
    assert (r["dropped_merged_packets"], r["payload_packets"], r["received_lines"]) == (1, 2, 2)
    assert "dropped_merged_packets" in millrace.ctl("drops").stdout
