# SPDX-License-Identifier: MIT
"""What a start with DPDK refuses, each with one sentence, and that nothing stays behind."""
import os
import subprocess

import pytest
from conftest import BUILD
from dpdk_peers import conf, needs_dpdk, needs_root, veth  # noqa: F401

pytestmark = [needs_dpdk]
NO_HUGE = ["--no-huge", "-m 256"]
OUT = '\n  out: { type: statsite, backends: ["127.0.0.1:9"] }'


def refused(bench, text):
    """The errors of a start that must fail."""
    file = bench.path / "refused.yaml"
    file.write_text(text.replace("{control}", str(bench.path / "c.sock")))
    r = subprocess.run([BUILD / "millrace", "-c", file], capture_output=True, text=True, timeout=30)
    assert r.returncode == 1, r.stderr
    errors = [line.split(" ERROR master: ", 1)[1] for line in r.stderr.splitlines() if " ERROR " in line]
    assert len(errors) == 1, r.stderr
    return errors[0]


def left_behind():
    """Run-time folders of masters that are gone; those of other tests' masters, which run beside this, are not meant."""
    folder = "/var/run/dpdk"
    pids = {d: d.removeprefix("millrace") for d in os.listdir(folder) if d.startswith("millrace")} if os.path.exists(folder) else {}
    return {d for d, pid in pids.items() if not os.path.exists(f"/proc/{pid}")}


@pytest.mark.parametrize("eal, workers, port, says", [
    (NO_HUGE + ["--vdev=net_ring0"], 1, "net_ring5", "no port net_ring5"),
    (NO_HUGE + ["--vdev=net_ring0"], 1, "7", "there is no port 7; DPDK has net_ring0"),
    (NO_HUGE + ["--vdev=net_ring0"], 17, "net_ring0", "at most 16 receive queues, and there are 17 workers"),
    (NO_HUGE, 2, "net_ring0,nodeaction=x", "there is no port net_ring0; DPDK could not make it ("),
    (NO_HUGE, 1, "0000:fe:1f.7", "there is no port 0000:fe:1f.7; DPDK has none: bind the device"),
    (["--no-huge", "--in-memory"], 1, "net_ring0", "takes --no-huge or --in-memory, not both"),
    (["--no-huge", "--proc-type=secondary"], 1, "net_ring0", "cannot be a secondary process"),
    (["--no-huge", "--frobnicate"], 1, "net_ring0", "DPDK does not start"),
    (["--no-huge", "-m 16"], 2, "net_ring0", "no memory for"),
    (NO_HUGE, 1, "net_af_packet0,iface=mr-none", "No such device"),
])
def test_one_sentence(bench, eal, workers, port, says):
    before = left_behind()
    text = refused(bench, conf(eal, workers, port=port, outputs=OUT))
    assert text.startswith('Input "tap": ')
    assert says in text, text
    assert left_behind() <= before


@needs_root
def test_more_queues_than_workers(veth, bench):  # noqa: F811
    text = refused(bench, conf(NO_HUGE, 2, port="net_af_packet0,iface=mr1,qpairs=4", outputs=OUT))
    assert "over 4 queues, and with 2 workers some would never be read; set workers: 4" in text


def test_devices_of_two_drivers(bench):
    """One sentence, at the check: what the options of an input mean depends on who reads it."""
    file = bench.path / "mixed.yaml"
    file.write_text('inputs: { tap: { type: capture, interface: [lo, "0000:fe:1f.7"], to: out } }\noutputs:' + OUT)
    r = subprocess.run([BUILD / "millrace", "-t", "-c", file], capture_output=True, text=True, timeout=30)
    assert r.returncode == 1, r.stderr
    assert 'inputs.tap.interface: "lo" and "0000:fe:1f.7" are not read by the same driver' in r.stderr


def test_wrong_filter(bench):
    text = conf(NO_HUGE, 1, port="net_ring0", options='filter: "udp and and"', outputs=OUT)
    file = bench.path / "t.yaml"
    file.write_text(text.replace("{control}", str(bench.path / "c.sock")))
    r = subprocess.run([BUILD / "millrace", "-t", "-c", file], capture_output=True, text=True, timeout=30)
    assert r.returncode == 1
    assert 'filter "udp and and" is not understood' in r.stderr, r.stderr
