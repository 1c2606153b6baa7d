#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""One Kafka broker as a process, and what it needs: the jars, a JVM's command line, ports, waiting. See cluster.py."""

import contextlib
import fcntl
import hashlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import wire

HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.path.join(HERE, "..", "..", "build", "kafka")
FOLDER = "millrace-kafka-"


class ClusterError(Exception):
    pass


def jars():
    """The folder with Kafka's jars. Downloaded by Maven when pom.xml is new here (15 s), else at once."""
    with open(os.path.join(HERE, "pom.xml"), "rb") as f:
        name = "jars-" + hashlib.sha256(f.read()).hexdigest()[:12]
    os.makedirs(CACHE, exist_ok=True)
    cache = os.path.realpath(CACHE)
    folder = os.path.join(cache, name)
    with open(os.path.join(cache, "lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.isdir(folder):
            shutil.rmtree(folder + ".new", ignore_errors=True)
            done = subprocess.run(["mvn", "-B", "-q", "-f", os.path.join(HERE, "pom.xml"),
                                   "dependency:copy-dependencies", f"-DoutputDirectory={folder}.new"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, check=False)
            if done.returncode != 0:
                raise ClusterError(f"Maven could not bring Kafka's jars:\n{done.stdout[-4000:]}")
            os.rename(folder + ".new", folder)
    return folder


def java(*args, heap="256m"):
    """The command line of a JVM with Kafka's jars. C1 only: brokers and tools here live for seconds."""
    return ["java", f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", os.path.join(jars(), "*"), *args]


def wait_for(condition, what, timeout=30.0, pause=0.02):
    """Returns the first true value of condition(). OSError and WireError count as "not yet"."""
    end = time.monotonic() + timeout
    last = None
    while True:
        try:
            value = condition()
            if value:
                return value
        except (OSError, wire.WireError) as e:
            last = e
        if time.monotonic() > end:
            raise ClusterError(f"waited {timeout:g} s for {what}" + (f": {last}" if last else ""))
        time.sleep(pause)


def topic_parse(spec):
    """NAME[:PARTITIONS[:REPLICATION[:K=V,…]]] → (name, partitions, replication, {k: v})."""
    parts = spec.split(":", 3) + ["", "", ""]
    configs = dict(kv.split("=", 1) for kv in parts[3].split(",")) if parts[3] else {}
    return parts[0], int(parts[1] or 1), int(parts[2] or 1), configs


def free_ports(n):
    """Ports below the range that the kernel gives to clients: while a broker is down, none of those takes its port."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
        low = int(f.read().split()[0])
    ports = []
    with contextlib.ExitStack() as held:
        for port in random.SystemRandom().sample(range(max(1024, low - 16384), max(low, 4096)), 1000):
            s = held.enter_context(socket.socket())
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
            if len(ports) == n:
                return ports
    raise ClusterError("no free loopback port below the kernel's range for clients")


def sweep():
    """Removes what a killed test left: folders whose process is gone. Its brokers died with it."""
    for name in os.listdir(tempfile.gettempdir()):
        m = re.fullmatch(re.escape(FOLDER) + r"(\d+)-\w+", name)
        if m and not os.path.exists(f"/proc/{m[1]}"):
            shutil.rmtree(os.path.join(tempfile.gettempdir(), name), ignore_errors=True)


class Broker:
    """One node: broker and controller in one JVM, a process group of its own."""

    def __init__(self, cluster, number, port, controller_port):
        self.cluster, self.number = cluster, number
        self.address, self.controller = ("127.0.0.1", port), f"{number}@127.0.0.1:{controller_port}"
        self.properties = os.path.join(cluster.folder, f"broker-{number}.properties")
        self.log_folder = os.path.join(cluster.folder, f"data-{number}")
        self.log = os.path.join(cluster.folder, f"broker-{number}.log")
        self.process = None
        self.listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}"

    @property
    def pid(self):
        return self.process.pid if self.process else None

    def running(self):
        return self.process is not None and self.process.poll() is None

    def launch(self):
        with open(self.log, "ab") as log:
            # setpriv rather than a preexec_fn: tests have threads. The JVM is its exec, so the pid stays.
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--",
                 *java("kafka.Kafka", self.properties, heap=self.cluster.heap)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def check_alive(self):
        if not self.running():
            raise ClusterError(f"broker {self.number} ended with code {self.process and self.process.returncode}; "
                               f"its log:\n{self.log_tail()}")
        return True

    def log_tail(self, lines=30):
        with contextlib.suppress(OSError), open(self.log, encoding="utf-8", errors="replace") as f:
            return "".join(f.readlines()[-lines:])
        return ""

    def signal(self, number):
        if self.running():
            os.killpg(self.process.pid, number)

    def reap(self, timeout):
        if self.process is not None:
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                self.process.wait()
                raise ClusterError(f"broker {self.number} did not end within {timeout} s and was killed") from None
