# SPDX-License-Identifier: MIT
"""A worker reads the network, so a worker may be somebody else's. What it can write is overwritten, then it dies: the
master and the siblings live, the service goes on, and the account says that its numbers are not to be believed."""
import ctypes
import json
import os
import random
import re
import signal
import socket
import struct
import urllib.request
from pathlib import Path

import pytest
from conftest import BUILD, free_port, wait_for
from faults import Counters, numbered, send_datagrams, wait_ready, wait_settled
from peers import needs_root

pytestmark = [pytest.mark.usefixtures("apart"), needs_root]

PORTS = 64
WORD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (....) \S+ \S+ \S+\s*(.*)$")


def mappings(pid):
    """(begin, end, rights, name) of all that lies in files."""
    found = (WORD.match(line) for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    return [(int(m[1], 16), int(m[2], 16), m[3], m[4].removesuffix(" (deleted)")) for m in found if m]


def shared_writable(pid):
    return sorted(name for _, _, rights, name in mappings(pid) if "w" in rights and "s" in rights)


def overwrite(pid, parts):
    """Writes (name, offset, bytes) into the process's mappings."""
    where = {name: begin for begin, _, rights, name in mappings(pid) if "w" in rights and "s" in rights}
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as mem:
        for name, offset, data in parts:
            mem.seek(where[name] + offset)
            mem.write(data)


def page(slot):
    return f"/memfd:millrace-page-{slot}.0"


def batches(slot):
    return f"/memfd:millrace-receive-{slot}.0"


# the head of a page: the sequence, then used[]; of a batch: mmsghdr[64], iovec[64], sockaddr_storage[64], base, used, done
MMSGHDR, IOVEC, STORAGE = 64, 16, 128
USED = 64 * (MMSGHDR + IOVEC + STORAGE) + 8


def lie(slot, size):
    return {
        "all_ones": [(page(slot), 0, b"\xff" * size)],
        "used": [(page(slot), 8, struct.pack("<I", 0xffffffff) * 16)],
        "used_one_more": [(page(slot), 8, struct.pack("<6I", 2, 65, 65, 10065, 65, 1025))],
        "odd_and_torn": [(page(slot), 0, struct.pack("<Q", 0xfffffffffffffff1)), (page(slot), 1 << 16, b"\x55" * (size // 2))],  # both halves
        "nowhere": [(batches(slot), 56, struct.pack("<I", 100)), (batches(slot), 64 * MMSGHDR, struct.pack("<QQ", 0xdead0000, 65536)),
                    (batches(slot), USED, struct.pack("<II", 64, 0))],
        "batch_ones": [(batches(slot), 0, b"\xff" * (1 << 20))],
        "batch_used": [(batches(slot), USED, struct.pack("<I", 0xffffffff))],
    }


def noise(slot, seed):
    r = random.Random(seed)
    parts = [(page(slot), r.randrange(0, 4096), r.randbytes(200)), (page(slot), 0xc000 + r.randrange(0, 20000), r.randbytes(4096)),
             (batches(slot), r.randrange(0, USED), r.randbytes(4096))]
    return parts + [(page(slot), 0, r.randbytes(1 << 20))]


class Relay:
    def __init__(self, bench, workers=2):
        self.bench, self.next = bench, 0
        self.sink = bench.sink("--number", ports=2)
        self.millrace = bench.millrace(backends=self.sink.addresses, workers=workers, listen=("udp", "tcp"))
        self.millrace.expected_errors = ["numbers are not to be believed", "does not balance"]

    def serve(self, n=2 * PORTS):
        """Each line comes once, whoever died before."""
        send_datagrams(self.bench, numbered(self.next, n), sources=PORTS)
        self.next += n
        report = self.sink.wait_lines(self.next)
        assert (report["distinct"], report["doubles"], report["malformed"]) == (self.next, 0, 0)

    def overwrite_and_kill(self, slot, parts):
        pid = wait_ready(self.millrace, [slot])[slot]
        wait_settled(self.millrace)
        os.kill(pid, signal.SIGSTOP)
        overwrite(pid, parts)
        os.kill(pid, signal.SIGKILL)
        self.millrace.wait_line(rf"worker {slot} \(pid {pid}\) killed by signal 9")


@pytest.mark.parametrize("name", lie(0, 1))
def test_a_worker_that_wrote_nonsense(bench, name):
    relay = Relay(bench)
    relay.serve()
    (_, sibling), = wait_ready(relay.millrace, [1]).items()
    before = wait_settled(relay.millrace)
    size = next(end - begin for begin, end, rights, n in mappings(wait_ready(relay.millrace, [0])[0]) if n == page(0) and "w" in rights)
    relay.overwrite_and_kill(0, lie(0, size)[name])
    relay.millrace.wait_line(r"ERROR master: worker 0's numbers are not to be believed")
    relay.serve()
    relay.millrace.check()
    after = wait_settled(relay.millrace)
    assert wait_ready(relay.millrace, [1])[1] == sibling
    assert after.sum("slot", "unbelievable_ends", slot=0) == 1
    assert after.sum("slot", "unbelievable_ends", slot=1) == 0
    for counter in ("received_lines", "received_datagrams"):  # of the last second at most something is missing
        lost = 2 * relay.next // 2 - after.sum("input", counter)
        assert before.sum("input", counter, worker=0) >= lost >= 0, counter
    assert "what it lost then is not known" in relay.millrace.ctl("drops").stdout
    relay.millrace.terminate()
    relay.millrace.wait_line("worker 0's numbers were not to be believed when it ended")


def test_at_random(bench):
    relay = Relay(bench, workers=4)
    for seed in range(8):  # each slot twice: the third time it would wait
        relay.serve()
        relay.overwrite_and_kill(seed % 4, noise(seed % 4, seed))
        relay.millrace.wait_line(rf"worker {seed % 4}'s numbers are not to be believed")
    relay.serve()
    relay.millrace.check()


LINK_MESSAGE = struct.Struct("<IIIIQ264s1024s")
LINK_VERSION, LINK_TYPES, LINK_DONE, LINK_PEERS, LINK_TERM = 1, 16, 6, 7, 13


def link_of(pid):
    """A copy of the worker's end of its link: the first of its sequenced packet sockets."""
    pidfd_getfd, libc = 438, ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    try:
        for fd in sorted(map(int, os.listdir(f"/proc/{pid}/fd"))):
            copy = libc.syscall(pidfd_getfd, process, fd, 0)
            if copy != -1 and os.path.basename(os.readlink(f"/proc/self/fd/{copy}")).startswith("socket:"):
                s = socket.socket(fileno=copy)
                if (s.family, s.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET):
                    return s
                s.close()
            elif copy != -1:
                os.close(copy)
    finally:
        os.close(process)
    raise AssertionError("no link")


def nonsense(r):
    """A message, mostly of a shape that is known, and sometimes a descriptor with it."""
    if r.random() < 0.1:
        return r.randbytes(r.choice([0, 1, 4, 100, LINK_MESSAGE.size - 1, LINK_MESSAGE.size, 4000])), r.random() < 0.5
    kind = r.choice([LINK_DONE, LINK_PEERS, LINK_TERM, r.randrange(LINK_TYPES), r.getrandbits(32)])
    slot = r.choice([0, 1, 64, r.getrandbits(32)])
    name = r.choice([b"udp_1", b"x" * 264, r.randbytes(264), b"%s%n" * 60])
    text = r.choice([b"1.2.3.4:1,[::1]:65535", b",:" * 512, r.randbytes(1024), b"127.0.0.1 or 1=1:9"])
    return LINK_MESSAGE.pack(LINK_VERSION, kind, slot, 0, r.getrandbits(64), name, text), r.random() < 0.2


def test_a_worker_that_says_nonsense(bench):
    """What a worker may say is heard, what no worker says is its end; the master and the siblings live."""
    relay = Relay(bench, workers=4)
    relay.millrace.expected_errors += ["says what no worker says", "cannot work:"]
    r, said = random.Random(1), 0
    sibling = wait_ready(relay.millrace)[3]
    for slot in range(3):
        pid = wait_ready(relay.millrace, [slot])[slot]
        with link_of(pid) as link:
            for _ in range(400):
                text, has_fd = nonsense(r)
                try:
                    socket.send_fds(link, [text], [link.fileno()] if has_fd else [], socket.MSG_NOSIGNAL)
                    said += 1
                except OSError:
                    break  # it was killed
        relay.millrace.wait_line(rf"worker {slot} (says what no worker says|\(pid {pid}\))")
    assert said > 3
    relay.serve()
    relay.millrace.check()
    assert wait_ready(relay.millrace, [3])[3] == sibling


def test_what_a_child_may_write(bench):
    """Its own page and batches, also after a reload that adds workers and after a death; the monitor its page; the master
    all of them; and whoever is no master cannot open what it reads for writing."""
    relay = Relay(bench, workers=3)
    os.kill(wait_ready(relay.millrace, [1])[1], signal.SIGKILL)
    pids = relay.millrace.wait_line(r"worker 1 .*killed by signal 9") and wait_ready(relay.millrace)
    for slot, pid in pids.items():
        own = [name for name in shared_writable(pid) if name != "/memfd:millrace-queues"]  # which no sibling maps
        assert own == [page(slot), batches(slot)]
        readable = {name for _, _, rights, name in mappings(pid) if rights.endswith("s")}
        assert {page(i) for i in range(3)} <= readable and "/memfd:millrace-counters" in readable
        assert not {batches(i) for i in range(3) if i != slot} & readable
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            assert "millrace-page" not in os.readlink(fd) and "millrace-receive" not in os.readlink(fd)
    monitor = int(next(r["value"] for r in Counters(relay.millrace).rows if r["scope"] == "monitor" and r["name"] == "pid"))
    if monitor:
        assert shared_writable(monitor) == ["/memfd:millrace-page-monitor"]
    for name in ("counters", "page-monitor", "page-0.0", "page-2.1", "receive-0.0", "receive-2.1"):
        assert f"/memfd:millrace-{name}" in shared_writable(relay.millrace.pid)


def test_the_master_is_not_to_be_looked_into(bench):
    relay = Relay(bench)
    assert os.stat(f"/proc/{relay.millrace.pid}/mem").st_uid == 0
    as_user = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "cat", f"/proc/{relay.millrace.pid}/maps"]
    assert bench.run(*as_user).wait() != 0


def test_readers_follow_when_a_reload_adds_workers(bench):
    """The monitor asks for the files that it lacks, and so does a millracectl that has been looking since before."""
    port, sink = free_port(), bench.sink("--number")
    conf = f"""
workers: {{workers}}
http: 127.0.0.1:{port}
inputs: {{{{ udp: {{{{ type: udp, bind: "127.0.0.1:{{{{port}}}}", to: [out] }}}} }}}}
outputs: {{{{ out: {{{{ type: statsite, backends: ["{sink.addresses[0]}"] }}}} }}}}
"""
    millrace = bench.millrace(conf=conf.format(workers=1))
    top = bench.run(BUILD / "millracectl", "-s", millrace.control, "top", "--count", "60")
    wait_for(lambda: page(0) in {name for *_, name in mappings(top.pid)}, "top to have the pages")
    file = bench.path / "millrace.yaml"
    file.write_text(conf.format(workers=3).replace("{port}", str(bench.port)))
    millrace.ctl("reload")

    def workers():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/status", timeout=5) as answer:
            return [w["state"] for w in json.load(answer)["workers"]]
    wait_for(lambda: workers() == ["ready"] * 3, "the monitor to see three workers")
    pid = int(next(r["value"] for r in Counters(millrace).rows if r["scope"] == "monitor" and r["name"] == "pid"))
    assert {page(i) for i in range(3)} <= {name for _, _, rights, name in mappings(pid) if rights == "r--s"}
    wait_for(lambda: {page(i) for i in range(3)} <= {name for *_, name in mappings(top.pid)}, "top to have all pages")
