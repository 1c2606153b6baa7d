# SPDX-License-Identifier: MIT
"""The main job: every line that goes in comes out, once, at the backend of its key."""
import pytest


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_numbered_lines_arrive_exactly_once(bench, workers):
    sink = bench.sink("--number", ports=3)
    millrace = bench.millrace(backends=sink.addresses, workers=workers)
    sent = bench.replay("--number", "--lines", 200000, "--pps", 3000, "--sources", 16)
    report = sink.wait_lines(sent["lines"])
    assert sent["lines"] == 200000
    assert (report["distinct"], report["doubles"], report["malformed"]) == (200000, 0, 0)
    assert all(p["lines"] > 0 for p in report["ports"])
    millrace.check()
