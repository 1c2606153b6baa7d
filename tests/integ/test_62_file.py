# SPDX-License-Identifier: MIT
"""type: file: pcap and pcapng files, micro- and nanoseconds, either byte order, standard input, directories, damage."""
import os
import struct
import subprocess

import pytest
from conftest import BUILD, wait_for
from faults import Counters
from kafka_peers import Mock, needs_kafka
from packets import arrived, flow_frames, read_pcap, udp_frame, write_pcap

pytestmark = needs_kafka


def conf(servers, path, fmt="pcap", workers=2, partition="random"):
    return f"""
workers: {workers}
control: {{control}}
inputs: {{ f: {{ type: file, path: {path}, to: [out] }} }}
outputs: {{ out: {{ type: kafka, topic: t, format: {fmt}, partition: {partition}, properties: {{ bootstrap.servers: "{servers}" }} }} }}
"""


def run(bench, mock, path, expected=0, errors=(), **how):
    millrace = bench.millrace(conf=conf(mock.bootstrap, path, **how), wait=False)
    millrace.expected_exit, millrace.expected_errors = expected, list(errors)
    assert millrace.wait(30) == expected, "\n".join(millrace.err)
    return read_pcap(arrived(mock.bootstrap, "t")), millrace


def other_pcap(path, frames, order, magic, per_second):
    with open(path, "wb") as f:
        f.write(struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, 1))
        for i, frame in enumerate(frames):
            f.write(struct.pack(order + "IIII", 1_700_000_000, i * (per_second // 1000), len(frame), len(frame)) + frame)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("magic, per_second", [(0xa1b2c3d4, 10**6), (0xa1b23c4d, 10**9)])
@pytest.mark.parametrize("fmt", ["pcap", "packet"])
def test_dialects(bench, order, magic, per_second, fmt):
    mock = Mock(bench, "t:1")
    frames = flow_frames(500)
    other_pcap(bench.path / "a.pcap", frames, order, magic, per_second)
    found, _ = run(bench, mock, bench.path / "a.pcap", fmt=fmt)
    assert [f for _, _, f in found] == frames
    assert [t for t, _, _ in found] == [1_700_000_000 * 10**9 + i * 10**6 for i in range(500)]


def test_pcapng(bench):
    mock = Mock(bench, "t:1")
    frames = flow_frames(500)
    write_pcap(bench.path / "a.pcap", frames)
    subprocess.run(["editcap", "-F", "pcapng", "a.pcap", "a.pcapng"], check=True, cwd=bench.path)
    found, _ = run(bench, mock, bench.path / "a.pcapng")
    assert [f for _, _, f in found] == frames


def test_standard_input(bench):
    mock = Mock(bench, "t:1")
    frames = flow_frames(20000)
    write_pcap(bench.path / "a.pcap", frames)
    file = bench.path / "m.yaml"
    file.write_text(conf(mock.bootstrap, '"-"').replace("{control}", str(bench.path / "c.sock")))
    with open(bench.path / "a.pcap", "rb") as f, subprocess.Popen(["cat"], stdin=f, stdout=subprocess.PIPE) as cat:
        r = subprocess.run([BUILD / "millrace", "-c", file], stdin=cat.stdout, capture_output=True, text=True, timeout=30)
    assert r.returncode == 0, r.stderr
    assert [f for _, _, f in read_pcap(arrived(mock.bootstrap, "t"))] == frames


def test_directory_in_time_order(bench):
    mock = Mock(bench, "t:1")
    folder = bench.path / "d"
    folder.mkdir()
    frames = flow_frames(300)
    for name, part, at in (("z", 0, 1), ("a", 1, 2), ("m", 2, 3)):
        write_pcap(folder / name, frames[part * 100:(part + 1) * 100], time_ns=at * 10**18)
    found, _ = run(bench, mock, folder)
    assert [f for _, _, f in found] == frames


def test_link_types_never_mix(bench):
    mock = Mock(bench, "t:1", "u:1")
    write_pcap(bench.path / "a.pcap", flow_frames(50))
    write_pcap(bench.path / "b.pcap", [f[14:] for f in flow_frames(50)], link_type=101)
    paths = f"[{bench.path}/a.pcap, {bench.path}/b.pcap, {bench.path}/a.pcap]"
    millrace = bench.millrace(conf=conf(mock.bootstrap, paths), wait=False)
    assert millrace.wait(30) == 0
    r = subprocess.run(["kcat", "-C", "-q", "-b", mock.bootstrap, "-t", "t", "-e", "-f", "%S\n%s"], capture_output=True, timeout=20)
    data, kinds = r.stdout, []
    while data:
        size, data = data.split(b"\n", 1)
        message, data = data[:int(size)], data[int(size):]
        kinds.append((struct.unpack_from("<I", message, 20)[0], len(read_pcap(message))))
    assert sum(n for _, n in kinds) == 150 and sum(n for link, n in kinds if link == 101) == 50


def test_other_link_type_as_packets_is_counted(bench):
    mock = Mock(bench, "t:1")
    write_pcap(bench.path / "b.pcap", [f[14:] for f in flow_frames(50)], link_type=101)
    found, millrace = run(bench, mock, bench.path / "b.pcap", expected=3, fmt="packet")
    assert found == [] and "link type 101" in "\n".join(millrace.err)
    assert "50 dropped" in "\n".join(millrace.err)
    millrace.wait_line('output "out": of the dropped records 50 had a link type other than Ethernet')


def test_what_no_broker_took_did_not_die(bench):
    """What was held back when it ended is dropped; lost at death is for workers that were killed."""
    frames = write_pcap(bench.path / "a.pcap", flow_frames(20000))
    millrace = bench.millrace(conf=conf("127.0.0.1:9", frames, fmt="packet").replace(
        "format:", "memory_limit: 1MiB, format:").replace("workers:", "drain_timeout: 500ms\nworkers:"))
    millrace.expected_exit = 3
    assert millrace.terminate() == 3
    millrace.wait_line(r'output "out": (\d+) offered = 0 delivered \+ 0 unconfirmed \+ 0 failed \+ \1 dropped \+ 0 lost at death')


@pytest.mark.parametrize("damage", ["cut", "no file of this kind"])
def test_damaged_file_is_said_and_the_next_is_read(bench, damage):
    mock = Mock(bench, "t:1")
    frames = flow_frames(100)
    write_pcap(bench.path / "a.pcap", frames)
    whole = (bench.path / "a.pcap").read_bytes()
    (bench.path / "bad.pcap").write_bytes(whole[:-30] if damage == "cut" else b"hello, world, this is text" * 10)
    found, millrace = run(bench, mock, f"[{bench.path}/bad.pcap, {bench.path}/a.pcap]", expected=3, errors=["bad.pcap: .*left out"])
    assert [f for _, _, f in found] == (frames[:-1] if damage == "cut" else []) + frames
    assert sum("bad.pcap" in line and "ERROR" in line for line in millrace.err) == 1


def beside(bench, path, output):
    """The file, and an input that never ends: so that one can ask for counters after the file's end."""
    return f"""
workers: 1
user: root
control: {{control}}
inputs:
  f: {{ type: file, path: {path}, to: [out] }}
  u: {{ type: udp, bind: "127.0.0.1:{{port}}", to: [lines] }}
outputs:
  out: {output}
  lines: {{ type: statsite, backends: ["127.0.0.1:9:udp"] }}
"""


def test_packets_without_a_sound_payload(bench):
    """Each has the counter of its reason."""
    whole = udp_frame(b"a:1|c\n" * 20)
    head = bytearray(whole)
    head[14] = 0x44  # a header of 16 bytes: there is none
    frames = [whole, (whole[:60], len(whole)), (whole[:60], len(whole)), bytes(head)]
    write_pcap(bench.path / "a.pcap", frames)
    write_pcap(bench.path / "b.pcap", [whole] * 5, link_type=147)  # a user's own
    (bench.path / "c.pcap").write_bytes((bench.path / "a.pcap").read_bytes()[:-10])
    sink = bench.sink()
    millrace = bench.millrace(conf=beside(bench, f"[{bench.path}/a.pcap, {bench.path}/b.pcap, {bench.path}/c.pcap]",
                                          f'{{ type: statsite, backends: ["{sink.addresses[0]}"] }}'))
    millrace.expected_errors.append("c.pcap: .*left out")
    wait_for(lambda: Counters(millrace).sum("input", "finished_files", input="f") == 2, "two files to be read")
    wait_for(lambda: Counters(millrace).sum("input", "damaged_files", input="f") == 1, "the third to be given up")
    counters = Counters(millrace)
    found = {name: counters.sum("input", name, input="f") for name in (
        "received_packets", "to_outputs_packets", "decoded_packets", "payload_packets", "dropped_truncated_packets",
        "dropped_bad_header_packets", "unknown_link_packets")}
    assert found == {"received_packets": 12, "to_outputs_packets": 12, "decoded_packets": 12, "payload_packets": 2,
                     "dropped_truncated_packets": 4, "dropped_bad_header_packets": 1, "unknown_link_packets": 5}
    sink.wait_lines(40)
    millrace.check()


def test_the_counter_of_another_link_type(bench):
    mock = Mock(bench, "t:1")
    write_pcap(bench.path / "b.pcap", [f[14:] for f in flow_frames(50)], link_type=101)
    millrace = bench.millrace(conf=beside(bench, f"{bench.path}/b.pcap", (
        f'{{ type: kafka, topic: t, format: packet, properties: {{ bootstrap.servers: "{mock.bootstrap}" }} }}')))
    wait_for(lambda: Counters(millrace).sum("backend", "dropped_link_type_records", output="out") == 50, "all to be counted")
    assert Counters(millrace).unbalanced() == []
    assert "dropped_link_type_records" in millrace.ctl("drops").stdout
    millrace.check()


def test_payloads_to_statsite(bench):
    sink = bench.sink("--number")
    write_pcap(bench.path / "a.pcap", [udp_frame(b"m.k%06d:%d|c\n" % (i, i), ident=i) for i in range(2000)])
    millrace = bench.millrace(conf=f"""
workers: 2
control: {{control}}
inputs: {{ f: {{ type: file, path: {bench.path}/a.pcap, to: [out] }} }}
outputs: {{ out: {{ type: statsite, backends: ["{sink.addresses[0]}"] }} }}
""", wait=False)
    assert millrace.wait(30) == 0
    assert sink.wait_lines(2000)["distinct"] == 2000


def test_missing_file(bench):
    file = bench.path / "m.yaml"
    file.write_text(conf("127.0.0.1:1", "/nope/a.pcap").replace("{control}", str(bench.path / "c.sock")))
    r = subprocess.run([BUILD / "millrace", "-t", "-c", file], capture_output=True, text=True, timeout=20)
    assert r.returncode == 1 and 'path: "/nope/a.pcap" cannot be read: No such file' in r.stderr


def test_successor_goes_on_behind_what_was_read(bench):
    mock = Mock(bench, "t:1")
    n = 100000
    write_pcap(bench.path / "a.pcap", flow_frames(n))
    millrace = bench.millrace(conf=conf(mock.bootstrap, bench.path / "a.pcap", fmt="packet"))
    os.kill(millrace.worker_pids()[0], 9)
    millrace.expected_exit = millrace.wait(60)
    frames = [f for _, _, f in read_pcap(arrived(mock.bootstrap, "t"))]
    assert len(set(frames)) == len(frames) > 0, "a packet arrived twice"
    lost = sum(int(line.split("lost at most ")[1].split()[0]) for line in millrace.err if "lost at most" in line)
    assert n - len(frames) <= lost
    assert millrace.expected_exit == (3 if lost > 0 else 0)  # it may be killed before it has read anything


def test_standard_input_twice(bench):
    file = bench.path / "m.yaml"
    file.write_text(conf("127.0.0.1:9", '["-", "-"]').replace("{control}", str(bench.path / "c.sock")))
    r = subprocess.run([BUILD / "millrace", "-t", "-c", file], capture_output=True, text=True, timeout=30)
    assert r.returncode == 1 and 'inputs.f.path: "-", standard input, is read already' in r.stderr


def test_folder_without_files(bench):
    (bench.path / "d").mkdir()
    mock = Mock(bench, "t:1")
    found, millrace = run(bench, mock, bench.path / "d")
    assert found == []
    millrace.wait_line('input "f": there is no file in .*/d')
