# SPDX-License-Identifier: MIT
"""What the Kafka tests share: a real cluster for all tests of a module, topics of their own, what arrived."""
import itertools
import json
import re
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, wait_for

sys.path.insert(0, str(ROOT / "tests" / "kafka"))
from cluster import Cluster  # noqa: E402

HAS_KAFKA = "kafka" not in subprocess.run([BUILD / "millrace", "--listen", "udp://127.0.0.1:1", "--kafka", "127.0.0.1:1", "--topic",
                                           "t", "--dump"], capture_output=True, text=True).stderr.lower()
needs_kafka = pytest.mark.skipif(not HAS_KAFKA, reason="this millrace was built without Kafka (KAFKA=0)")
counter = itertools.count()


def topic(kafka, partitions=1, more=""):
    """A new topic of the running cluster."""
    name = f"t{next(counter)}"
    kafka.create_topics(f"{name}:{partitions}:{kafka.count}{more}")
    return name


def conf(kafka, name, options="format: lines", properties="", workers=2, inputs="udp", outputs="", to="", top=""):
    servers = kafka if isinstance(kafka, str) else kafka.bootstrap
    return f"""
workers: {workers}
control: {{control}}
{top}
inputs: {{ in: {{ type: {inputs}, bind: "127.0.0.1:{{port}}", to: [raw{to}] }} }}
outputs:
  raw:
    type: kafka
    topic: {name}
    {options.replace("; ", chr(10) + "    ")}
    properties: {{ bootstrap.servers: "{servers}"{", " if properties else ""}{properties} }}
{outputs}
"""


def numbers(kafka, name, **how):
    """The NUMBER of each line in the topic ("m.k001234:NUMBER|c"), message by message as kcat reads them."""
    found = []
    for m in kafka.read(name, **how):
        for line in m.value.splitlines():
            match = re.fullmatch(rb"m\.k\d+:(\d+)\|c", line)
            assert match, line
            found.append(int(match.group(1)))
    return found


def total(millrace, name, key="backends"):
    return sum(row[name] for row in millrace.status()[key])


def wait_delivered(millrace, n, timeout=30.0):
    return wait_for(lambda: total(millrace, "delivered_records") >= n, f"{n} records to be delivered", timeout)


class Mock:
    """millrace-kafka mock; .bootstrap, and .ask() for its commands."""

    def __init__(self, bench, *topics, brokers=1):
        words = [BUILD / "millrace-kafka", "mock", "--control-stdin", "--brokers", str(brokers)]
        for t in topics:
            words += ["--topic", t]
        self.process = bench.run(*words, stdin=subprocess.PIPE)
        self.bootstrap = self.process.wait_line(r"bootstrap\.servers=(\S+)", stream="out").group(1)

    def ask(self, command):
        before = len(self.process.out)
        self.process.p.stdin.write(command + "\n")
        self.process.p.stdin.flush()
        wait_for(lambda: len(self.process.out) > before, f"the mock's answer to {command}")
        answer = self.process.out[before]
        assert answer.startswith("ok"), answer
        return answer


def check_conf(bench, text, *flags):
    """millrace -t: (exit code, errors)."""
    file = bench.path / "check.yaml"
    file.write_text(text.replace("{port}", "18125").replace("{control}", str(bench.path / "c.sock")))
    r = subprocess.run([BUILD / "millrace", "-t", "-c", file, *flags], capture_output=True, text=True, timeout=20)
    return r.returncode, r.stderr.replace(str(file), "FILE")


def load(bench, seconds, pps, size, sources=8):
    return bench.replay("--number", "--one", "--time", f"{seconds}s", "--pps", pps, "--sources", sources, timeout=seconds + 30)


__all__ = ["Cluster", "Mock", "check_conf", "conf", "json", "load", "needs_kafka", "numbers", "topic", "total", "wait_delivered"]
