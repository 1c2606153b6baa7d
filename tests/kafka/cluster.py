#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""A real Apache Kafka for the tests: 1 or 3 KRaft brokers on loopback ports that it picks, in a temporary folder.

    with Cluster(brokers=3, topics=["t:4:3"]) as kafka:
        ... kafka.bootstrap ... kafka.kill(2) ... kafka.restart(2) ... kafka.end_offsets("t") ...

A topic is written NAME[:PARTITIONS[:REPLICATION[:KEY=VALUE[,KEY=VALUE…]]]]. Brokers are numbered from 1.
On the command line: `cluster.py run --brokers 3 --topic t:4:3`, see --help.

Everything waits for a condition and fails with the broker's log when it does not come. Brokers die with the thread
that started them (PR_SET_PDEATHSIG), the folder goes with close(), at the latest at the next start of a cluster."""

import argparse
import atexit
import base64
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import readers  # noqa: E402
import wire  # noqa: E402
from broker import FOLDER, Broker, ClusterError, free_ports, jars, java, sweep, topic_parse, wait_for  # noqa: E402


class Cluster:
    """brokers: 1 or 3. topics: specs as above, made at start. auto_create: whether a client may create a topic by
    naming it. configs: more lines for server.properties. Starts with start() or `with`."""

    def __init__(self, brokers=1, topics=(), auto_create=False, configs=None, heap="256m", keep=False):
        if brokers not in (1, 3):
            raise ValueError("a cluster has 1 or 3 brokers")
        self.count, self.topics, self.heap, self.keep = brokers, list(topics), heap, keep
        self.auto_create, self.configs = auto_create, dict(configs or {})
        self.folder, self.brokers = None, {}

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self, timeout=60.0):
        jars()
        sweep()
        self.folder = tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-")
        atexit.register(self.close)
        try:
            ports = free_ports(2 * self.count)
            self.brokers = {n: Broker(self, n, ports[2 * n - 2], ports[2 * n - 1]) for n in range(1, self.count + 1)}
            self.format()
            for b in self.brokers.values():
                b.launch()
            for n in self.brokers:
                self.wait(n, timeout)
            if self.topics:
                self.create_topics(*self.topics)
        except BaseException:
            self.close()
            raise
        return self

    def format(self):
        """Formats node 1 with Kafka's tool and gives the others copies: a second JVM start would say the same."""
        for b in self.brokers.values():
            lines = {
                "process.roles": "broker,controller", "node.id": b.number, "log.dirs": b.log_folder,
                "listeners": b.listeners, "advertised.listeners": b.listeners.split(",", 1)[0],
                "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "controller.quorum.voters": ",".join(o.controller for o in self.brokers.values()),
                "auto.create.topics.enable": str(self.auto_create).lower(),
                "default.replication.factor": self.count, "offsets.topic.replication.factor": self.count,
                "offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1,
                "transaction.state.log.replication.factor": self.count,
                "share.coordinator.state.topic.num.partitions": 1,
                "share.coordinator.state.topic.replication.factor": self.count,
                "group.initial.rebalance.delay.ms": 0, "num.network.threads": 2, "num.io.threads": 4,
                "log.cleaner.dedupe.buffer.size": 2 << 20, "log.initial.task.delay.ms": 500,
                "log.retention.check.interval.ms": 1000, "log.segment.delete.delay.ms": 500,
                # A dead broker's session must end before others lead, and before it may come back itself (measured:
                # restart after kill -9 takes this long). A single broker that is stopped for longer fences itself.
                "broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500,
                **self.configs}
            with open(b.properties, "w", encoding="utf-8") as f:
                f.writelines(f"{k}={v}\n" for k, v in lines.items())
        first = self.brokers[1]
        cluster_id = base64.urlsafe_b64encode(b"M" + os.urandom(15)).decode().rstrip("=")
        done = subprocess.run(java("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", first.properties),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        if done.returncode != 0:
            raise ClusterError(f"StorageTool format failed:\n{done.stdout}")
        for b in list(self.brokers.values())[1:]:
            shutil.copytree(first.log_folder, b.log_folder)
            name = os.path.join(b.log_folder, "meta.properties")
            with open(name, encoding="ascii") as f:
                meta = f.read()
            directory = base64.urlsafe_b64encode(b"M" + os.urandom(15)).decode().rstrip("=")
            meta = re.sub(r"(?m)^node\.id=.*", f"node.id={b.number}", meta)
            meta = re.sub(r"(?m)^directory\.id=.*", f"directory.id={directory}", meta)
            with open(name, "w", encoding="ascii") as f:
                f.write(meta)

    def wait(self, number, timeout=60.0):
        """Until broker `number` answers a metadata request and says itself that it is a member."""
        b = self.brokers[number]
        wait_for(lambda: b.check_alive() and number in wire.metadata(b.address, [], 2.0)["brokers"],
                 f"broker {number} to answer", timeout)

    def close(self):
        """Kills all brokers and removes the folder. More than once is fine."""
        atexit.unregister(self.close)
        for b in self.brokers.values():
            b.signal(signal.SIGKILL)
        for b in self.brokers.values():
            b.reap(10)
        self.brokers = {}
        if self.folder and not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder = None

    # -- brokers by number -----------------------------------------------------------------------------------------

    def stop(self, number, timeout=30.0):
        """SIGTERM: an orderly shutdown that hands leadership over first. Returns when the process is gone."""
        self.brokers[number].signal(signal.SIGTERM)
        self.brokers[number].reap(timeout)

    def kill(self, number):
        """kill -9. Returns when the process is gone."""
        self.brokers[number].signal(signal.SIGKILL)
        self.brokers[number].reap(10)

    def pause(self, number):
        """SIGSTOP: the port stays open, nothing answers."""
        self.brokers[number].signal(signal.SIGSTOP)

    def resume(self, number):
        self.brokers[number].signal(signal.SIGCONT)

    def launch(self, number):
        """Starts a broker that was stopped or killed and returns at once: for all of three, which need each other."""
        if not self.brokers[number].running():
            self.brokers[number].launch()

    def restart(self, number, timeout=60.0):
        """Starts a broker that was stopped or killed, on its old port with its old log, and waits until it answers."""
        self.launch(number)
        self.wait(number, timeout)

    def pid(self, number):
        return self.brokers[number].pid

    # -- questions -------------------------------------------------------------------------------------------------

    @property
    def bootstrap(self):
        return ",".join(f"{b.address[0]}:{b.address[1]}" for b in self.brokers.values())

    def ask(self, question, *args, **kwargs):
        """wire's function of the first broker that answers."""
        last = None
        for b in self.brokers.values():
            if b.running():
                try:
                    return question(b.address, *args, **kwargs)
                except (OSError, wire.WireError) as e:
                    last = e
        raise last or ClusterError("no broker is running")

    def metadata(self, topics=None):
        return self.ask(wire.metadata, topics)

    def create_topics(self, *specs, timeout=30.0):
        """Creates them and waits until each partition has a leader. Replication 3 gets min.insync.replicas=2 unless
        the spec says otherwise, so that what was acknowledged with acks=all survives any one broker."""
        topics = [topic_parse(s) for s in specs]
        for _, _, replication, configs in topics:
            if replication >= 3:
                configs.setdefault("min.insync.replicas", 2)
        for name, (code, message) in self.ask(wire.create_topics, topics).items():
            if code != 0:
                raise wire.WireError(f"create topic {name}", code, message)
        self.wait_topics({name: partitions for name, partitions, _, _ in topics}, timeout)

    def wait_topics(self, partitions, timeout=30.0, insync=None):
        """Until every running broker knows a leader, and `insync` replicas in sync, of all partitions of {topic: n}."""
        def known(b):
            topics = wire.metadata(b.address, list(partitions))["topics"]
            return all(len(topics[t]["partitions"]) == n and all(
                p["leader"] >= 0 and len(p["isr"]) >= (insync or 1) for p in topics[t]["partitions"].values())
                for t, n in partitions.items())
        for b in self.brokers.values():
            if b.running():
                wait_for(lambda b=b: b.check_alive() and known(b), f"a leader of {', '.join(partitions)}", timeout)

    def delete_topics(self, *names):
        for name, code in self.ask(wire.delete_topics, names).items():
            if code != 0:
                raise wire.WireError(f"delete topic {name}", code)

    def partitions(self, topic):
        found = self.metadata([topic])["topics"][topic]
        if found["error"] != 0:
            raise wire.WireError(f"topic {topic}", found["error"])
        return found["partitions"]

    def offsets(self, topic, when=-1):
        """{partition: offset}; when: -1 the end, -2 the first that retention left."""
        meta = self.metadata([topic])
        offsets = {}
        for number, p in meta["topics"][topic]["partitions"].items():
            if p["leader"] not in meta["brokers"]:
                raise wire.WireError(f"partition {number} of {topic} has no leader")
            code, offset = wire.list_offsets(meta["brokers"][p["leader"]], topic, [number], when)[number]
            if code != 0:
                raise wire.WireError(f"offset of {topic}[{number}]", code)
            offsets[number] = offset
        return offsets

    def end_offsets(self, topic):
        return self.offsets(topic, -1)

    def count_messages(self, topic):
        first, end = self.offsets(topic, -2), self.offsets(topic, -1)
        return sum(end[p] - first[p] for p in end)

    def read(self, topic, **kwargs):
        """kcat's view of the topic: readers.kcat_read."""
        return readers.kcat_read(self.bootstrap, topic, **kwargs)

    def java_read(self, topic, count=None, timeout=30.0):
        """The Java console consumer's view: list of (key, value). count defaults to all that is there."""
        return readers.java_read(java, self.bootstrap, topic, self.count_messages(topic) if count is None else count,
                                 timeout)

    def java_end_offsets(self, topic):
        return readers.java_end_offsets(java, self.bootstrap, topic)


# -- command line ------------------------------------------------------------------------------------------------------

def command(kafka, line):
    """One line of `run`'s standard input; returns the answer."""
    verb, *args = line.split()
    if verb in ("stop", "kill", "pause", "resume", "restart", "launch", "wait", "pid"):
        if len(args) != 1 or not args[0].isdigit() or int(args[0]) not in kafka.brokers:
            return f"error: {verb} takes the number of a broker, 1 to {len(kafka.brokers)}"
        answer = getattr(kafka, verb)(int(args[0]))
        return f"ok {answer}" if verb == "pid" else "ok"
    if verb == "topic":
        kafka.create_topics(*args)
        return "ok"
    if verb == "offsets" and len(args) == 1:
        return "ok " + " ".join(f"{p}:{o}" for p, o in sorted(kafka.end_offsets(args[0]).items()))
    return "error: one of stop, kill, pause, resume, restart, launch, wait, pid N; topic SPEC…; offsets TOPIC; quit"


def run(args):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    kafka = Cluster(args.brokers, args.topic, args.auto_create, dict(c.split("=", 1) for c in args.config), args.heap)
    with kafka:
        print(f"bootstrap.servers={kafka.bootstrap}", flush=True)
        for line in sys.stdin:
            if line.strip() == "quit":
                break
            if line.strip():
                try:
                    answer = command(kafka, line)
                except (ClusterError, wire.WireError, OSError, ValueError) as e:
                    answer = "error: " + " ".join(str(e).split())
                print(answer, flush=True)


def main():
    parser = argparse.ArgumentParser(description="A real Apache Kafka on the loopback, for tests.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("jars", help="bring Kafka's jars if they are not there yet, print their folder")
    p = commands.add_parser("run", help="start brokers, print bootstrap.servers=…, run until SIGTERM, 'quit' or the end"
                            " of standard input; commands there: stop|kill|pause|resume|restart|launch|wait|pid N,"
                            " topic SPEC…, offsets TOPIC, each answered by 'ok …' or 'error: …'")
    p.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    p.add_argument("--topic", action="append", default=[], metavar="NAME[:PARTITIONS[:REPLICATION[:KEY=VALUE,…]]]")
    p.add_argument("--auto-create", action="store_true", help="let clients create topics by naming them")
    p.add_argument("--config", action="append", default=[], metavar="KEY=VALUE", help="a line for server.properties")
    p.add_argument("--heap", default="256m", help="each broker's heap (256m)")
    for name, text in (("read", "print a topic as kcat sees it"), ("java-read", "as Java's console consumer sees it")):
        p = commands.add_parser(name, help=text)
        p.add_argument("bootstrap")
        p.add_argument("topic")
        if name == "java-read":
            p.add_argument("count", type=int)
    args = parser.parse_args()
    try:
        if args.command == "jars":
            print(jars())
        elif args.command == "run":
            run(args)
        elif args.command == "read":
            for m in readers.kcat_read(args.bootstrap, args.topic):
                print(m.partition, m.offset, m.key, m.value, m.headers)
        else:
            for key, value in readers.java_read(java, args.bootstrap, args.topic, args.count):
                print(key, value)
    except (ClusterError, wire.WireError, readers.ReadError) as e:
        sys.exit(f"cluster.py: {e}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
