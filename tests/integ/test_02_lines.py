# SPDX-License-Identifier: MIT
"""Every row of statsd-lines.tsv through the real program, over each transport, with validate on and off."""
from collections import Counter

import pytest

from peers import DATAGRAMS, STREAMS, TRANSPORTS, Collector, as_forwarded, line_table, one_input, send_datagrams, send_stream, \
    wait_counters

TABLE = line_table()


def expected(rows, validate, stream):
    """Lines that are forwarded, and how many are invalid, empty, commands."""
    verdicts = [(r[0], r[1] if validate else r[2]) for r in rows]
    forwarded = [as_forwarded(line) for line, v in verdicts if v == "F"]
    commands = sum(stream and line == b"status" for line, _ in verdicts)
    invalid = sum(v == "I" for _, v in verdicts) - commands
    return forwarded, invalid, sum(v == "E" for _, v in verdicts), commands


def test_the_table_is_whole():
    assert Counter(r[1] for r in TABLE) == {"F": 39, "I": 28, "E": 2}
    assert Counter(r[2] for r in TABLE) == {"F": 63, "I": 4, "E": 2}


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_all_rows_in_one_go(bench, transport, validate):
    """One datagram, or one connection, with all rows: a bad line costs only itself."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, transport, backend.addresses, validate=validate))
    text = b"".join(r[0] + b"\n" for r in TABLE)
    (send_stream if transport in STREAMS else send_datagrams)(bench, transport, text)
    forwarded, invalid, empty, commands = expected(TABLE, validate, transport in STREAMS)
    assert backend.wait_lines(len(forwarded)) == forwarded
    c = wait_counters(millrace, received_lines=len(TABLE))
    assert (c["to_outputs_lines"], c["invalid_lines"], c["empty_lines"], c["command_lines"]) == \
        (len(forwarded), invalid, empty, commands)
    assert c["received_bytes"] == len(text)
    assert backend.texts() == [b"".join(line + b"\n" for line in forwarded)]


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_each_row_alone(bench, transport, validate):
    """Each row as a datagram or connection of its own, with its newline and without: the last line needs none."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, transport, backend.addresses, validate=validate))
    rows = [r for r in TABLE for _ in range(2)]
    texts = [r[0] + end for r in TABLE for end in (b"\n", b"")]
    forwarded, invalid, empty, commands = expected(rows, validate, transport in STREAMS)
    nothing = texts.count(b"")  # the empty row without its newline is no line at all
    (send_stream if transport in STREAMS else send_datagrams)(bench, transport, *texts)
    assert sorted(backend.wait_lines(len(forwarded))) == sorted(forwarded)
    c = wait_counters(millrace, received_lines=len(rows) - nothing)
    assert (c["to_outputs_lines"], c["invalid_lines"], c["empty_lines"], c["command_lines"]) == \
        (len(forwarded), invalid, empty - nothing, commands)
    if transport in DATAGRAMS:
        assert (c["received_datagrams"], c["empty_datagrams"]) == (len(texts), nothing)
        assert c["to_outputs_datagrams"] == len(texts) - nothing
    else:
        wait_counters(millrace, accepted_connections=len(texts), open_connections=0)


@pytest.mark.parametrize("validate", [True, False])
def test_a_bad_line_costs_only_itself(bench, validate):
    """Each row between two good lines in one datagram: both neighbours arrive."""
    backend = Collector(bench)
    bench.millrace(conf=one_input(bench, "udp", backend.addresses, validate=validate))
    send_datagrams(bench, "udp", *(b"left.%d:1|c\n%s\nright.%d:1|c" % (i, r[0], i) for i, r in enumerate(TABLE)))
    wanted = []
    for i, r in enumerate(TABLE):
        middle = [as_forwarded(r[0])] if (r[1] if validate else r[2]) == "F" else []
        wanted += [b"left.%d:1|c" % i, *middle, b"right.%d:1|c" % i]
    assert backend.wait_lines(len(wanted)) == wanted
