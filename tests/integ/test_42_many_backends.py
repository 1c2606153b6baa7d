# SPDX-License-Identifier: MIT
"""A thousand backends: start, relay, ledger, one of them away, drain."""
import pytest
from conftest import wait_for
from faults import Counters, wait_settled

N = 1000


@pytest.mark.parametrize("hash", ["rendezvous", "modulo"])
def test_thousand_backends(bench, hash):
    sink = bench.sink("--number", "--keys", 100000, "--rcvbuf", "16KiB", ports=N)
    backends = ", ".join(f'"{a}"' for a in sink.addresses)
    millrace = bench.millrace(wait=False, conf=f"""
workers: 2
inputs: {{ udp: {{ type: udp, bind: "127.0.0.1:{{port}}", to: [out] }} }}
outputs: {{ out: {{ type: statsite, hash: {hash}, backends: [{backends}] }} }}
""")
    millrace.wait_line(r"millrace is serving with 2 workers", 60)
    wait_for(lambda: Counters(millrace).sum("backend", "up") == 2 * N, "all to be up", 30)
    sent = bench.replay("--number", "--keys", 100000, "--lines", 300000, "--sources", 64, "--pps", 1000)
    report = sink.wait_lines(sent["lines"])
    assert (report["distinct"], report["doubles"], report["malformed"]) == (sent["lines"], 0, 0)
    assert all(p["lines"] > 0 for p in report["ports"])
    counters = wait_settled(millrace)
    assert counters.unbalanced() == []
    for p in report["ports"][::100]:
        assert counters.sum("backend", "delivered_records", backend=p["address"]) == p["lines"]
    millrace.check()
    away = sink.ports[0]
    sink.ask(f"refuse on {away}")
    more = bench.replay("--number", "--keys", 100000, "--number-from", sent["lines"], "--lines", 100000, "--sources", 64,
                        "--pps", 1000)
    sink.ask(f"refuse off {away}")
    millrace.send_signal(15)
    assert millrace.wait() == 0
    report = sink.report()
    assert (report["distinct"], report["doubles"]) == (sent["lines"] + more["lines"], 0)
