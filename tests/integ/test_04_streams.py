# SPDX-License-Identifier: MIT
"""Lines on streams: how they end, how they are cut into reads, and what is longer than a line may be."""
import os
import signal
import struct

import pytest

from conftest import wait_for

from peers import STREAMS, Collector, as_forwarded, client, counters, line_table, one_input, send_stream, \
    wait_counters, wait_read

LONGEST = 65507
LENGTHS = [LONGEST - 1, LONGEST, LONGEST + 1, LONGEST + 2, LONGEST * 2, LONGEST * 2 + 2, 200000]


@pytest.mark.parametrize("transport", STREAMS)
def test_the_last_line_without_newline_counts_at_eof(bench, transport):
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, transport, backend.addresses))
    send_stream(bench, transport, b"a:1|c\nb:1|c", b"c:1|c\r", b"d:1|c\n\r", b"", b"bad", b"\n")
    assert sorted(backend.wait_lines(4)) == [b"a:1|c", b"b:1|c", b"c:1|c", b"d:1|c"]
    c = wait_counters(millrace, accepted_connections=6, open_connections=0)
    assert (c["received_lines"], c["empty_lines"], c["invalid_lines"]) == (7, 2, 1)


@pytest.mark.parametrize("transport", STREAMS)
def test_a_connection_is_never_closed_for_a_bad_line(bench, transport):
    backend = Collector(bench)
    bench.millrace(conf=one_input(bench, transport, backend.addresses))
    with client(bench, transport) as s:
        for i in range(50):
            s.sendall(b"\0\xff rubbish %d\n" % i + b"k" * (70000 if i % 10 == 0 else 10) + b"\na.%d:1|c\n" % i)
        assert backend.wait_lines(50) == [b"a.%d:1|c" % i for i in range(50)]
        s.setblocking(False)
        with pytest.raises(BlockingIOError):
            s.recv(1)


def cases():
    """Each length, with and without CR, ended by newline and by EOF: text of a connection, lines wanted, too long ones."""
    for n in LENGTHS:
        for cr in (b"", b"\r"):
            for ended in (True, False):
                line = b"%06d" % n + b"k" * (n - 10) + b":1|c"
                text = b"before:1|c\n" + line + cr + (b"\nafter:1|c\n" if ended else b"")
                good = [line] if n <= LONGEST else []
                yield text, [b"before:1|c", *good] + [b"after:1|c"] * ended, len(good) == 0


@pytest.mark.parametrize("transport,piece", [ ("tcp", None), ("tcp", LONGEST + 1), ("unix", None),
                         ("unix", 4096), ("unix", LONGEST), ("unix", LONGEST + 1), ("unix", LONGEST + 2)])
def test_long_lines(bench, transport, piece):
    """A line of 65,507 bytes arrives; a longer one is counted and skipped whole; its neighbours arrive."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, transport, backend.addresses, output={"overflow": "block"}))
    wanted, too_long = [], 0
    for text, lines, is_too_long in cases():
        wanted += lines
        too_long += is_too_long
        with client(bench, transport) as s:
            for at in range(0, len(text), piece or len(text)):
                s.sendall(text[at:at + (piece or len(text))])
                if piece:
                    wait_read(s)
    assert sorted(backend.wait_lines(len(wanted))) == sorted(wanted)
    c = wait_counters(millrace, accepted_connections=len(LENGTHS) * 4, open_connections=0)
    assert (c["dropped_too_long_lines"], c["to_outputs_lines"]) == (too_long, len(wanted))
    assert c["received_lines"] == too_long + len(wanted)
    assert (c["invalid_lines"], c["unfinished_lines"], c["dropped_truncated_lines"]) == (0, 0, 0)


def test_too_long_by_single_bytes(bench):
    """The longest line and its CR fill what is kept; one byte more decides."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "unix", backend.addresses))
    line = b"k" * (LONGEST - 4) + b":1|c"
    tails = [b"\r\n", b"\n", b"x\n", b"\rx\n", b"\r\r\n", b"xx\n"]
    with client(bench, "unix") as s:
        for tail in tails:
            s.sendall(line)
            for i in range(len(tail)):
                wait_read(s)
                s.sendall(tail[i:i + 1])
            s.sendall(b"next:1|c\n")
    wanted = [line, b"next:1|c"] * 2 + [b"next:1|c"] * 4
    assert backend.wait_lines(len(wanted)) == wanted
    assert wait_counters(millrace, open_connections=0)["dropped_too_long_lines"] == 4


@pytest.mark.parametrize("transport", STREAMS)
def test_chunks_cut_at_every_byte(bench, transport):
    """The text in two writes, cut before each of its bytes in turn; then byte for byte."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, transport, backend.addresses))
    rows = [r for r in line_table() if r[0] != b"status"]
    rows = rows if transport == "unix" else rows[:3]
    text = b"\n".join(r[0] for r in rows)
    wanted = [as_forwarded(r[0]) for r in rows if r[1] == "F"]
    for cut in range(1, len(text)):
        with client(bench, transport) as s:
            s.sendall(text[:cut])
            wait_read(s)
            s.sendall(text[cut:])
    with client(bench, transport) as s:
        for i in range(len(text)):
            s.sendall(text[i:i + 1])
            wait_read(s)
    times = len(text)
    assert sorted(backend.wait_lines(len(wanted) * times)) == sorted(wanted * times)
    c = wait_counters(millrace, accepted_connections=times, open_connections=0)
    assert c["received_lines"] == len(rows) * times
    assert c["invalid_lines"] == sum(r[1] == "I" for r in rows) * times


@pytest.mark.parametrize("transport", STREAMS)
def test_a_stream_of_many_lines_in_order(bench, transport):
    """100,000 lines of all lengths up to 300 bytes on one connection, in order, whatever the reads were."""
    backend = Collector(bench)
    bench.millrace(conf=one_input(bench, transport, backend.addresses, output={"overflow": "block"}))
    wanted = [b"%d." % i + b"k" * (i % 290) + b":1|c" for i in range(100000)]
    send_stream(bench, transport, b"".join(line + b"\n" for line in wanted))
    assert backend.wait_lines(len(wanted)) == wanted


def framed(*messages):
    """As DogStatsD's clients write them to a unix stream."""
    return b"".join(struct.pack("<I", len(m)) + m for m in messages)


MESSAGES = [b"a:1|c\nb:2|ms", b"_e{5,4}:title|text\n", b"", b"_sc|up|0", b"k" * 9000 + b":1|c", b"c:1|c|#env:prod"]
MESSAGE_LINES = [line for m in MESSAGES for line in m.split(b"\n") if line]


@pytest.mark.parametrize("framing", ["auto", "dogstatsd"])
@pytest.mark.parametrize("piece", [1, 2, 3, 5, 100000])
def test_messages_behind_their_lengths(bench, framing, piece):
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "unix", backend.addresses, framing=framing))
    text = framed(*MESSAGES) if piece > 3 else framed(*(m for m in MESSAGES if len(m) < 100))
    wanted = MESSAGE_LINES if piece > 3 else [line for line in MESSAGE_LINES if len(line) < 100]
    with client(bench, "unix") as s:
        for at in range(0, len(text), piece):
            s.sendall(text[at:at + piece])
            if piece < 100:
                wait_read(s)
        assert backend.wait_lines(len(wanted)) == wanted  # before the stream ends
        c = wait_counters(millrace, received_lines=len(wanted))
        assert (c["invalid_lines"], c["empty_lines"]) == (0, 0)
        if framing == "auto":  # the same input, another connection: plain lines
            send_stream(bench, "unix", b"x:1|c\ny:1|c\n", b"z:1|c")
            assert sorted(backend.wait_lines(len(wanted) + 3)[-3:]) == [b"x:1|c", b"y:1|c", b"z:1|c"]


def test_a_message_that_ends_too_early_and_a_length_that_is_none(bench):
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "unix", backend.addresses))
    send_stream(bench, "unix", framed(b"a:1|c")[:-1], framed(b"b:1|c") + b"\0\0\0\x7fc:1|c\n", b"\x05\0", framed(b"d:1|c") + b"\x05\0\0")
    assert sorted(backend.wait_lines(3)) == [b"b:1|c", b"c:1|c", b"d:1|c"]
    c = wait_counters(millrace, accepted_connections=4, open_connections=0)
    assert (c["dropped_truncated_lines"], c["invalid_lines"]) == (1, 2)


def test_a_message_goes_on_in_another_worker(bench):
    """The worker leaves in the middle of a length and of a message: its successor knows where it was."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "unix", backend.addresses))
    text = framed(b"before:1|c", b"first:1|c\nsecond:1|c") * 2
    with client(bench, "unix") as a, client(bench, "unix") as b, client(bench, "unix") as c:
        ends = [(a, 2), (b, 17), (c, 30)]
        for s, at in ends:
            s.sendall(text[:at])
            wait_read(s)
        wait_counters(millrace, accepted_connections=3)
        old = millrace.worker_pids()[0]
        os.kill(old, signal.SIGTERM)
        wait_for(lambda: millrace.worker_pids().get(0, old) != old, "the successor")
        for s, at in ends:
            s.sendall(text[at:])
        lines = [b"before:1|c", b"first:1|c", b"second:1|c"] * 2 * len(ends)
        assert sorted(backend.wait_lines(len(lines))) == sorted(lines)
        assert counters(millrace)["invalid_lines"] == 0
