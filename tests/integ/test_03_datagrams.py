# SPDX-License-Identifier: MIT
"""Datagrams at their edges: nothing in them, no newline at the end, as long as they can be, longer than the buffer."""
import pytest

from peers import DATAGRAMS, Collector, one_input, send_datagrams, statsite, config, wait_counters

LONGEST = 65507  # bytes that UDP over IPv4 can carry, and the longest line


@pytest.mark.parametrize("transport", DATAGRAMS)
def test_a_datagram_of_length_zero_is_counted_and_harmless(bench, transport):
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, transport, backend.addresses))
    send_datagrams(bench, transport, b"a:1|c", b"", b"", b"b:1|c\n", b"", b"\n", b"c:1|c")
    assert backend.wait_lines(3) == [b"a:1|c", b"b:1|c", b"c:1|c"]
    c = wait_counters(millrace, received_datagrams=7)
    assert (c["empty_datagrams"], c["empty_lines"], c["received_lines"], c["invalid_lines"]) == (3, 1, 4, 0)


@pytest.mark.parametrize("transport", DATAGRAMS)
def test_only_datagrams_of_length_zero(bench, transport):
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, transport, backend.addresses), )
    send_datagrams(bench, transport, *[b""] * 200)
    c = wait_counters(millrace, received_datagrams=200, empty_datagrams=200)
    assert (c["received_lines"], c["to_outputs_datagrams"]) == (0, 0)


@pytest.mark.parametrize("transport", DATAGRAMS)
@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
def test_a_line_as_long_as_a_datagram(bench, transport, ending):
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, transport, backend.addresses))
    line = b"k" * (LONGEST - len(ending) - 4) + b":1|c"
    send_datagrams(bench, transport, b"a:1|c", line + ending, b"b:1|c")
    assert backend.wait_lines(3) == [b"a:1|c", line, b"b:1|c"]
    c = wait_counters(millrace, received_lines=3)
    assert (c["received_bytes"], c["truncated_datagrams"]) == (LONGEST + 10, 0)


def test_a_datagram_full_of_the_shortest_lines(bench):
    """16,376 lines in one datagram, so many that the batch of lines is filled many times."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "udp", backend.addresses, validate=False))
    send_datagrams(bench, "udp", b"a:1\n" * (LONGEST // 4), b"\n" * LONGEST)
    assert backend.wait_lines(LONGEST // 4) == [b"a:1"] * (LONGEST // 4)
    c = wait_counters(millrace, received_datagrams=2, empty_lines=LONGEST)
    assert c["received_lines"] == LONGEST // 4 + LONGEST


def test_a_datagram_longer_than_the_buffer_is_a_counted_truncation(bench):
    """Only unix sockets carry such: whole lines before the cut arrive, the cut one is dropped and counted."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "unixgram", backend.addresses))
    send_datagrams(bench, "unixgram", b"a:1|c\nb:1|c\n" + b"k" * 70000 + b":1|c", b"k" * 90000 + b":1|c\n", b"c:1|c")
    assert backend.wait_lines(3) == [b"a:1|c", b"b:1|c", b"c:1|c"]
    c = wait_counters(millrace, received_datagrams=3)
    assert (c["truncated_datagrams"], c["dropped_truncated_lines"], c["received_lines"]) == (2, 2, 5)


def test_a_unix_datagram_of_exactly_the_buffer(bench):
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "unixgram", backend.addresses))
    text = b"a:1|c\n" * 10922
    assert len(text) == 65532
    send_datagrams(bench, "unixgram", text + b"\n" * 4, b"k" * 65532 + b":1|c", b"k" * 65533 + b":1|c", b"z:1|c")
    c = wait_counters(millrace, received_datagrams=4)
    assert (c["truncated_datagrams"], c["empty_lines"], c["received_lines"]) == (1, 4, 10929)
    assert backend.wait_lines(10924)[-2:] == [b"k" * 65532 + b":1|c", b"z:1|c"]


def test_the_longest_line_to_a_udp_backend(bench):
    """It leaves as one datagram, without the newline that would make it too long for one."""
    backend = Collector(bench, udp=True)
    bench.millrace(conf=one_input(bench, "udp", backend.addresses))
    line = b"k" * (LONGEST - 4) + b":1|c"
    send_datagrams(bench, "udp", b"a:1|c", line, b"b:1|c")
    assert backend.wait_lines(3) == [b"a:1|c", line, b"b:1|c"]


def test_two_addresses_of_one_input(bench):
    backend = Collector(bench)
    paths = [str(bench.path / name) for name in ("one.sock", "two.sock")]
    millrace = bench.millrace(conf=config({"in": {"type": "unixgram", "bind": paths, "to": "out"}},
                                          {"out": statsite(backend.addresses)}, workers=2))
    import socket
    for i, path in enumerate(paths):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.connect(path)
            s.send(b"a.%d:1|c" % i)
    assert sorted(backend.wait_lines(2)) == [b"a.0:1|c", b"a.1:1|c"]
    wait_counters(millrace, received_datagrams=2)
