# SPDX-License-Identifier: MIT
"""millracectl invalid: which lines were not forwarded, who sent them, and why."""
import re

import pytest

from conftest import wait_for
from peers import TRANSPORTS, Collector, client, line_table, one_input, send_datagrams, send_stream, wait_counters

REASONS = {
    b"nocolon": "there is no name with a separator behind it",
    b":1|c": "there is no name with a separator behind it",
    b"a\tb:1|c": "its name holds a control byte",
    b"a:1": "a type is missing: no '|' behind a value",
    b"a:1|G": "its type is not known",
    b"a:1x|c": "a value is no finite decimal number",
    b"a:1|c:nan|ms": "a value is no finite decimal number",
    b"u:|s": "the member of a set is empty",
    b"a:1|c|@2": "a sample rate is not above 0 and at most 1",
    b"_e{5,5}:title|text": "an event whose lengths are not those of its title and text, or without a title",
    b"_sc|svc|9": "a service check without a name, or whose status is not 0, 1, 2 or 3",
}


def shown(millrace):
    """Worker, sender or None, line, reason of each."""
    text = millrace.ctl("invalid").stdout
    assert "\0" not in text and "\x1b" not in text
    rows = [re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ input "in" worker (\d+) (?:from (\S+): )?"(.*)"(.*?): (.*)', line)
            for line in text.splitlines()]
    assert all(rows) or text == "no invalid line came yet\n", text
    return [r.groups() for r in rows if r]


@pytest.mark.parametrize("line", REASONS)
def test_each_reason(bench, line):
    backend = Collector(bench)
    millrace = bench.millrace("--log-level", "debug", conf=one_input(bench, "udp", backend.addresses))
    assert shown(millrace) == []
    send_datagrams(bench, "udp", b"good:1|c\n" + line + b"\nbetter:1|c")
    wait_counters(millrace, invalid_lines=1)
    [(worker, _, text, _, reason)] = shown(millrace)
    assert (worker, text, reason) == ("0", line.decode().replace("\t", "\\t"), REASONS[line])
    millrace.wait_line(r'DEBUG .*input "in": invalid line "' + re.escape(text) + '": ' + re.escape(reason))


def test_every_invalid_row_of_the_table_has_a_reason(bench):
    backend = Collector(bench)
    invalid = [r[0] for r in line_table() if r[1] == "I"]
    for at in range(0, len(invalid), 4):
        millrace = bench.millrace(conf=one_input(bench, "udp", backend.addresses))
        send_datagrams(bench, "udp", b"\n".join(invalid[at:at + 4]))
        wait_counters(millrace, invalid_lines=len(invalid[at:at + 4]))
        rows = shown(millrace)
        assert len(rows) == len(invalid[at:at + 4])
        assert all(r[4] != "not known" for r in rows), rows
        millrace.terminate()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_sender_is_named(bench, transport):
    """Of a datagram from the second on: nobody asks the kernel before there is something invalid."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, transport, backend.addresses))
    if transport in ("tcp", "udp"):
        with client(bench, transport) as s:
            s.sendall(b"bad\n")
            wait_counters(millrace, invalid_lines=1)
            s.sendall(b"worse\n")
            wait_counters(millrace, invalid_lines=2)
            sender = "%s:%d" % s.getsockname()
        assert [r[1] for r in shown(millrace)] == [sender if transport == "tcp" else None, sender]
    else:
        (send_stream if transport == "unix" else send_datagrams)(bench, transport, b"bad\n", b"worse\n")
        wait_counters(millrace, invalid_lines=2)
        assert [r[1] for r in shown(millrace)] == [None, None]


def test_a_flood_costs_little_and_hostile_bytes_are_escaped(bench):
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "udp", backend.addresses, workers=2))
    hostile = bytes(range(1, 256)).replace(b"\n", b"") * 20
    for _ in range(100):
        send_datagrams(bench, "udp", hostile + b"\n\x1b[2J\t\0bad\n" * 100)
    wait_counters(millrace, invalid_lines=100 * 101)
    rows = shown(millrace)
    assert 1 <= len(rows) <= 32
    assert any(f"… ({len(hostile)} bytes)" in r[3] for r in rows)
    wait_for(lambda: millrace.p.poll() is None, "it to live")
