# SPDX-License-Identifier: MIT
"""What the reload tests share: a configuration that is written anew for each reload, and what a reload answered."""
import os

from conftest import BUILD, Millrace, Process, free_port, wait_for
from faults import Sender, udp_drops, wait_settled


class Config:
    """The file of a running millrace, from a few values. Written by write(); reload() asks for it and reads the answer."""

    def __init__(self, bench, backends, workers=2, output="", inputs=None, top=""):
        self.bench, self.millrace = bench, None
        self.backends, self.workers, self.output, self.top = list(backends), workers, output, top
        self.inputs = inputs or {"udp": '{ type: udp, bind: "127.0.0.1:{port}", to: [out] }',
                                 "tcp": '{ type: tcp, bind: "127.0.0.1:{port}", to: [out] }'}

    def text(self):
        backends = ", ".join(b if b.startswith("{") else f'"{b}"' for b in self.backends)
        inputs = "\n".join(f"  {name}: {text}" for name, text in self.inputs.items())
        return (f"workers: {self.workers}\ncontrol: {{control}}\n{self.top}\ninputs:\n{inputs}\n"
                f"outputs: {{ out: {{ type: statsite, backends: [{backends}]{self.output} }} }}\n")

    def start(self, **kw):
        self.millrace = self.bench.millrace(conf=self.text(), **kw)
        return self.millrace

    def write(self, text=None):
        text = text if text is not None else self.text()
        file = self.bench.path / "millrace.yaml.new"  # as editors do: never half a file
        file.write_text(text.replace("{port}", str(self.bench.port)).replace("{control}", str(self.bench.path / "control.sock")))
        file.rename(self.bench.path / "millrace.yaml")

    def reload(self, text=None, **changes):
        """Changes attributes, writes the file, reloads it; (first line, [a line each])."""
        for name, value in changes.items():
            setattr(self, name, value)
        self.write(text)
        r = self.millrace.ctl("reload", check=False)
        assert r.returncode == 0, r.stdout + r.stderr
        first, *lines = r.stdout.splitlines()
        return first, lines

    def refuse(self, text=None):
        """A file that is refused; the lines of the answer."""
        self.write(text)
        r = self.millrace.ctl("reload", check=False)
        assert r.returncode == 1, r.stdout + r.stderr
        self.millrace.expected_errors.append("reload: ")
        return r.stderr.splitlines()


class Load:
    """UDP from 64 ports and TCP on 8 connections that stay open, both numbered, until stop()."""

    def __init__(self, bench, sink, pps=2000):
        self.bench, self.sink = bench, sink
        common = ("--pps", pps, "--bytes", 300, "--time", "120s")
        self.senders = [Sender(bench, "--sources", 64, *common),
                        Sender(bench, "--tcp", "--sources", 8, "--number-from", 10_000_000, *common)]
        sink.wait_lines(1000)

    def go_on(self, lines=1000):
        """Until so many more lines have arrived."""
        here = self.sink.report()["lines"]
        self.sink.wait_lines(here + lines)

    def ends_exactly(self, millrace):
        sent = [s.stop() for s in self.senders]
        lines = sum(s["lines"] for s in sent)
        report = self.sink.wait_lines(lines, key="distinct")
        counters = wait_settled(millrace)
        assert (report["distinct"], report["malformed"], report["doubles"]) == (lines, 0, 0)
        assert counters.sum("input", "received_lines") == lines
        assert (counters.dropped(), counters.lost_at_death(), counters.kernel_drops(), udp_drops(millrace.pid)) == (0, 0, 0, 0)
        assert counters.sum("input", "dropped_stream_bytes") == counters.sum("input", "dropped_shutdown_lines") == 0
        assert counters.unbalanced() == []
        millrace.check()
        return counters


class Upgraded(Millrace):
    """A millrace behind a link to its binary, which a test points elsewhere. An upgrade executes it in the same process."""

    def __init__(self, bench, text, env=None):
        """`env`: what its environment has beyond ours."""
        self.binary = bench.path / "millrace"
        self.point_at(BUILD / "millrace")
        bench.port = bench.port or free_port()
        self.bench, self.control = bench, bench.path / "control.sock"
        (bench.path / "millrace.yaml").write_text(
            text.replace("{port}", str(bench.port)).replace("{control}", str(self.control)))
        self.expected_exit, self.expected_errors = 0, []
        Process.__init__(self, [self.binary, "-c", bench.path / "millrace.yaml"], bench.path, env={**os.environ, **(env or {})})
        self.wait_line(r"millrace is serving with \d+ worker")

    def point_at(self, program):
        link = self.binary.with_suffix(".new")
        link.symlink_to(program)
        link.rename(self.binary)

    @property
    def master(self):
        return self.status()["pid"]

    def upgrade(self):
        """By the control socket; the workers are the new program's when it answers, the process is the same."""
        workers = set(self.worker_pids().values())
        r = self.ctl("upgrade", check=False)
        assert r.returncode == 0, r.stdout + r.stderr + "\n".join(self.err[-20:])
        assert self.master == self.pid and self.p.poll() is None
        wait_for(lambda: not workers & set(self.worker_pids().values()), "the workers before to end")
        return self.pid

    def refuse_upgrade(self):
        """An upgrade that changes nothing; its lines."""
        workers = self.worker_pids()
        r = self.ctl("upgrade", check=False)
        assert r.returncode == 1 and "Nothing has changed" in r.stderr, r.stdout + r.stderr
        assert self.master == self.pid and self.worker_pids() == workers
        self.expected_errors.append("upgrade: ")
        return r.stderr.splitlines()


def master_counters(millrace):
    return {r["name"]: r["value"] for r in millrace.stats()["counters"] if r["scope"] == "master"}


def backends(millrace):
    """HOST:PORT → its row of status; of those in use."""
    return {b["name"]: b for b in millrace.status()["backends"]}


def worker_rows(millrace):
    return {w["slot"]: w for w in millrace.status()["workers"]}


def wait_counter(millrace, name, value):
    wait_for(lambda: master_counters(millrace)[name] == value, f"{name} {value}")

