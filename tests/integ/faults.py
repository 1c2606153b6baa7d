# SPDX-License-Identifier: MIT
"""What the fault tests share: sums over the counters, the ledger computed a second time, senders, sockets' drops."""
import contextlib
import json
import os
import re
import signal
import socket
from pathlib import Path

from conftest import BUILD, ROOT, child_pids, wait_for

LABELS = ("worker", "input", "output", "backend", "endpoint", "slot")


def ledger_sides():
    """(scope, counter) → its side of an equation, as counter.def says: "LINES_IN", "RECORDS_OUT" …"""
    rows = re.findall(r"^COUNTER\((\w+), (\w+), \w+, (\w+),", (ROOT / "include/tbl/counter.def").read_text(), re.M)
    return {(scope.lower(), name): side for scope, name, side in rows if side not in ("NONE", "BETWEEN")}


class Counters:
    """Every counter at one moment."""

    def __init__(self, millrace):
        self.rows = millrace.stats()["counters"]

    def sum(self, scope, name, **labels):
        found = [r["value"] for r in self.rows if r["scope"] == scope and r["name"] == name and
                 all(r.get(k) == v for k, v in labels.items())]
        assert found, f"no counter {scope} {name} {labels}"
        return sum(found)

    def waiting(self, **labels):
        """Records that a worker still holds."""
        return (self.sum("backend", "queued_records", **labels) + self.sum("backend", "in_flight_records", **labels) +
                self.sum("output", "held_records", **labels))

    def lost_at_death(self):
        """Lines, in all three places where a worker may hold them."""
        return (self.sum("input", "lost_at_death_lines") + self.sum("output", "lost_at_death_records") +
                self.sum("backend", "lost_at_death_records"))

    def at_risk(self):
        return self.sum("backend", "at_risk_records")

    def resent(self):
        return self.sum("backend", "resent_records")

    def dropped(self):
        return sum(self.sum("backend", f"dropped_{why}_records") for why in ("queue_full", "memory", "too_long", "shutdown"))

    def kernel_drops(self):
        return self.sum("endpoint", "dropped_datagrams")

    def unbalanced(self, without=()):
        """The ledger, computed here from the rows: (block, what went in, what came out) for each equation that does not
        hold when the counters `without` are left out of it."""
        sides = ledger_sides()
        sums = {}
        for r in self.rows:
            side = sides.get((r["scope"], r["name"]))
            if side is None or r["name"] in without:
                continue
            unit, way = side.rsplit("_", 1)
            block = (r["scope"], unit) + tuple(r.get(k) for k in LABELS)
            pair = sums.setdefault(block, [0, 0])
            pair[way == "OUT"] += r["value"]
        return [(block, *pair) for block, pair in sums.items() if pair[0] != pair[1]]


def wait_settled(millrace, datagrams=None, timeout=20.0):
    """Until all workers hold nothing (and so many datagrams were read); the counters then."""
    def settled():
        c = Counters(millrace)
        if datagrams is not None and c.sum("input", "received_datagrams") + c.kernel_drops() < datagrams:
            return None
        return c if c.waiting() == 0 else None
    return wait_for(settled, "the queues to empty", timeout)


class Sender:
    """millrace-replay in the background; numbered lines unless told otherwise."""

    def __init__(self, bench, *options, target=None, number=True):
        words = [BUILD / "millrace-replay", "--json", "-q", *(["--number"] if number else []), *options,
                 target or f"127.0.0.1:{bench.port}"]
        self.process = bench.run(*words)

    @property
    def runs(self):
        return self.process.p.poll() is None

    def stop(self, timeout=60.0):
        """Ends it (at once when it still sends); its summary."""
        if self.runs:
            self.process.send_signal(signal.SIGTERM)
        return self.finish(timeout)

    def finish(self, timeout=60.0):
        self.process.wait(timeout)
        text = "\n".join(self.process.out)
        assert "{" in text, "\n".join(self.process.err)
        return json.loads(text[text.index("{"):].splitlines()[0])


def send_datagrams(bench, texts, sources=1, port=None):
    """Each text one datagram, from so many ports in turn; returns when the kernel has taken them all."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(sources)]
    try:
        for i, text in enumerate(texts):
            sockets[i % sources].sendto(text.encode(), ("127.0.0.1", port or bench.port))
    finally:
        for s in sockets:
            s.close()


def numbered(first, n, keys=10000):
    """Lines first … first + n - 1 as millrace-replay --number makes them, each with its newline."""
    return [f"m.k{i * 2654435761 % keys:06d}:{i}|c\n" for i in range(first, first + n)]


def udp_sockets(pid):
    """inode → (receive queue bytes, drops) of the UDP sockets that the process holds."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            m = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:  # closed meanwhile, or the process has ended
            continue
        if m:
            inodes.add(int(m.group(1)))
    found = {}
    for line in Path(f"/proc/{pid}/net/udp").read_text().splitlines()[1:]:
        f = line.split()
        if int(f[9]) in inodes:
            found[int(f[9])] = (int(f[4].split(":")[1], 16), int(f[12]))
    return found


def udp_drops(pid):
    return sum(drops for _, drops in udp_sockets(pid).values())


def udp_snmp(pid):
    """The host's (or the process' network namespace's) UDP counters, by the names of /proc/net/snmp."""
    names, values = [line.split()[1:] for line in Path(f"/proc/{pid}/net/snmp").read_text().splitlines()
                     if line.startswith("Udp:")]
    return dict(zip(names, map(int, values)))


def is_alive(pid):
    """Runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid):
    """The workers; the monitor is none."""
    return [p for p in child_pids(pid) if not is_monitor(p)]


def child_names(millrace):
    """comm of each child, sorted; of one that has ended and was not waited for "Z name"."""
    names = []
    for pid in child_pids(millrace.pid):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        name = stat[stat.index("(") + 1:stat.rindex(")")]
        state = stat[stat.rindex(")") + 2]
        names.append(f"Z {name}" if state == "Z" else name)
    return sorted(names)


def is_monitor(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "millrace/mon"
    except (FileNotFoundError, ProcessLookupError):
        return False


def monitor_pid(millrace):
    """From the kernel: the child that is called so."""
    return wait_for(lambda: next(filter(is_monitor, child_pids(millrace.pid)), None), "a monitor")


def kill_if_there(pid):
    """kill -9 of who may have ended meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def signal_all(pids, sig):
    for pid in pids:
        os.kill(pid, sig)


def wait_stopped(pids):
    """SIGSTOP takes effect a moment after kill(2) returned."""
    for pid in pids:
        wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T", f"{pid} to stop")


def read_out(sink):
    """The report when the peers have closed and the sink has read all that they sent."""
    return wait_for(lambda: (lambda r: r if r["open"] == 0 and r["unread_bytes"] == 0 else None)(sink.report()),
                    "the sink to read the rest")


def wait_ready(millrace, slots=None, timeout=20.0):
    """Until these slots (all) have a worker that serves; slot → pid."""
    def ready():
        workers = {w["slot"]: w for w in millrace.status()["workers"] if slots is None or w["slot"] in slots}
        return {s: w["pid"] for s, w in workers.items()} if all(w["state"] == "ready" for w in workers.values()) else None
    return wait_for(ready, "the workers to be ready", timeout)


def quit_with_unread(millrace, send):
    """The only worker stands still while send() sends and a QUIT comes, then it goes on to the end; send()'s value and the log.
    On a machine that is so busy that the worker is killed at its deadline, what it had not read is counted all the same."""
    pid = wait_ready(millrace)[0]
    os.kill(pid, signal.SIGSTOP)
    wait_stopped([pid])
    sent = send()
    millrace.expected_exit = 3
    millrace.expected_errors.append("did not leave in time")
    millrace.send_signal(signal.SIGQUIT)
    millrace.wait_line("draining: ")
    millrace.status()  # it has told its worker
    os.kill(pid, signal.SIGCONT)
    assert millrace.wait() == 3
    return sent, "\n".join(millrace.err)


def wait_up(millrace, n, state="up", timeout=20.0):
    """Until n backends have this state in all workers."""
    wait_for(lambda: sum(b["state"] == state for b in millrace.status()["backends"]) >= n, f"{n} backends {state}", timeout)


OBITUARY = (r"worker {slot} \(pid {pid}\) killed by signal 9 .*; lost at most (\d+) lines "
            r"\((\d+) read and not yet handed over, (\d+) queued or not acknowledged\)")


def kill_worker(millrace, slot, pid):
    """kill -9; the obituary's (all, in hand, queued)."""
    os.kill(pid, signal.SIGKILL)
    m = millrace.wait_line(OBITUARY.format(slot=slot, pid=pid))
    return tuple(map(int, m.groups()))
