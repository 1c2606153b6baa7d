#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""millrace-kafka and cluster.py against each other: test_tools.py [path of millrace-kafka]. First the mock, which needs
nothing, then a real Kafka of three brokers, skipped without java and mvn."""

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import readers  # noqa: E402
from cluster import Cluster, ClusterError, wait_for, wire  # noqa: E402

TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "millrace-kafka")
NS, US = 0xa1b23c4d, 0xa1b2c3d4
FRAME = bytes(range(64))


def produce(bootstrap, topic, messages, *more):
    """(key, value) pairs by kcat, any bytes; more are options of kcat."""
    data = b"<|m|>".join((key + b"<|k|>" if key else b"") + value for key, value in messages)
    keys = ["-K", "<|k|>"] if messages[0][0] else []
    subprocess.run(["kcat", "-P", "-b", bootstrap, "-t", topic, "-D", "<|m|>", *keys, *more], input=data, check=True,
                   stderr=subprocess.PIPE, timeout=60)


def read(bootstrap, topic, *options, timeout=60):
    """(exit code, standard output, standard error) of `millrace-kafka read`."""
    done = subprocess.run([TOOL, "read", "-b", bootstrap, "-t", topic, *options], capture_output=True, timeout=timeout,
                          check=False)
    return done.returncode, done.stdout, done.stderr.decode()


def pcap(records, magic=NS, link=1, order="<"):
    """A pcap file of (sec, fraction, original length, bytes)."""
    return struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, link) + b"".join(
        struct.pack(order + "IIII", s, f, len(d), n) + d for s, f, n, d in records)


def packets(stream):
    """The inverse of pcap(), for what the tool writes; raises when it is no whole pcap file with nanoseconds."""
    magic, major, minor, _, _, _, link = struct.unpack_from("=IHHiIII", stream)
    assert (magic, major, minor) == (NS, 2, 4), stream[:24]
    found, at = [], 24
    while at < len(stream):
        s, f, size, n = struct.unpack_from("=IIII", stream, at)
        assert at + 16 + size <= len(stream)
        found.append((s, f, n, stream[at + 16:at + 16 + size]))
        at += 16 + size
    return link, found


class Mock(unittest.TestCase):
    def setUp(self):
        self.mock = subprocess.Popen([TOOL, "mock", "--brokers", "3", "--topic", "t:4", "--topic", "p:1",
                                      "--control-stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.end)
        name, self.bootstrap = self.mock.stdout.readline().strip().split("=", 1)
        self.assertEqual(name, "bootstrap.servers")

    def end(self):
        self.mock.stdin.close()
        self.assertEqual(self.mock.wait(10), 0)
        self.mock.stdout.close()

    def say(self, line):
        self.mock.stdin.write(line + "\n")
        self.mock.stdin.flush()
        return self.mock.stdout.readline().strip()

    def test_1_lines_raw_count_offset(self):
        produce(self.bootstrap, "t", [(b"key", b"one"), (b"key", b"two\n"), (b"key", b"three")], "-p", "2")
        self.assertEqual(read(self.bootstrap, "t", "-e"), (0, b"one\ntwo\nthree\n", ""))
        self.assertEqual(read(self.bootstrap, "t", "-e", "-f", "raw")[1], b"onetwo\nthree")
        self.assertEqual(read(self.bootstrap, "t", "-n", "2")[1], b"one\ntwo\n")
        self.assertEqual(read(self.bootstrap, "t", "-e", "-p", "2", "-o", "1")[1], b"two\nthree\n")
        self.assertEqual(read(self.bootstrap, "t", "-e", "-o", "end"), (0, b"", ""))
        code, out, said = read(self.bootstrap, "t", "-e", "-p", "2", "-o", "9")
        self.assertEqual((code, out), (1, b""))
        self.assertIn("partition 2", said)

    def test_2_binary_and_headers(self):
        value = bytes(range(256)) * 3
        produce(self.bootstrap, "p", [(b"\0\xff\nk", value)], "-H", "from=10.0.0.1:99", "-H", "list=1,2")
        (m,) = readers.kcat_read(self.bootstrap, "p")
        self.assertEqual((m.key, m.value), (b"\0\xff\nk", value))
        self.assertEqual(m.headers, [("from", b"10.0.0.1:99"), ("list", b"1,2")])

    def test_3_recordsand_files_in_one_stream(self):
        produce(self.bootstrap, "p", [(struct.pack(">Q", 1700000000999999), FRAME)])
        produce(self.bootstrap, "p", [(None, pcap([(1, 999999999, 1500, FRAME), (2, 0, 64, FRAME)]))])
        produce(self.bootstrap, "p", [(None, pcap([(3, 7, 64, FRAME)], US, order=">"))])
        code, out, said = read(self.bootstrap, "p", "-e")
        self.assertEqual((code, said), (0, ""))
        self.assertEqual(packets(out), (1, [(1700000000, 999999000, 64, FRAME), (1, 999999999, 1500, FRAME),
                                            (2, 0, 64, FRAME), (3, 7000, 64, FRAME)]))

    def test_4_what_is_no_packet_is_counted(self):
        whole = pcap([(5, 5, 64, FRAME), (6, 6, 64, FRAME)])
        for value in (b"a:1|c", whole[:-1], pcap([(1, 1, 64, FRAME)], link=101), whole[:24], whole[:23],
                      pcap([(1, 1000000000, 64, FRAME)]), pcap([(1, 1, 64, FRAME)])[:32] + b"\xff" * 100):
            produce(self.bootstrap, "p", [(None, value)])
        produce(self.bootstrap, "p", [(struct.pack(">Q", 2 ** 63), FRAME)])
        code, out, said = read(self.bootstrap, "p", "-e", "-f", "pcap")
        self.assertEqual((code, packets(out)), (1, (1, [(5, 5, 64, FRAME)])))
        self.assertIn("1 packets from 8 messages; left out: 3 messages that are no packets, 1 with another link type; "
                      "3 broken pcap files", said)
        self.assertEqual(packets(read(self.bootstrap, "p", "-e", "-f", "pcap", "-o", "end")[1]), (1, []))

    def test_5_noise_does_no_harm(self):
        noise = random.Random(5)
        base = pcap([(i, i, 64, FRAME) for i in range(4)])
        for _ in range(20):
            value = bytearray(base)
            for _ in range(noise.randrange(1, 6)):
                value[noise.randrange(24, len(value))] = noise.randrange(256)
            produce(self.bootstrap, "p", [(None, bytes(value[:noise.randrange(24, len(value))]))])
        code, out, _ = read(self.bootstrap, "p", "-e", "-f", "pcap")
        self.assertIn(code, (0, 1))
        packets(out)

    def test_6_commands(self):
        for line in ("topic u:3", "errors Produce 3 NOT_ENOUGH_REPLICAS _TRANSPORT", "clear Produce", "down 2", "up 2",
                     "down all", "up all", "rtt all 5", "rtt 1 0", "topic-error t UNKNOWN_TOPIC_OR_PART",
                     "topic-error t NO_ERROR", "leader t 0 none", "leader t 0 2"):
            self.assertEqual(self.say(line), "ok", line)
        for line in ("", "bogus", "topic u:3", "topic a/b:1", "topic x:0", "errors 0 1", "errors 0 1 WHAT", "down 4",
                     "rtt 1 -1", "leader t 99 1", "x " * 100, "y" * 9000, "quit now"):
            self.assertRegex(self.say(line), "^error: .+", line[:20])

    def test_7_injected_errors_arrive(self):
        self.assertEqual(self.say("errors Produce 2 NOT_ENOUGH_REPLICAS _TRANSPORT"), "ok")
        produce(self.bootstrap, "t", [(None, b"retried")], "-p", "0")
        self.assertEqual(read(self.bootstrap, "t", "-e")[1], b"retried\n")
        self.assertEqual(self.say("errors Produce 1 MSG_SIZE_TOO_LARGE"), "ok")
        with self.assertRaises(subprocess.CalledProcessError) as failed:
            produce(self.bootstrap, "t", [(None, b"x")], "-p", "0")
        self.assertIn(b"Message size too large", failed.exception.stderr)

    def test_8_reader_of_the_reader_leaves(self):
        produce(self.bootstrap, "t", [(None, b"x" * 1000)] * 1000)
        for options in ((), ("-o", "end")):
            with subprocess.Popen([TOOL, "read", "-b", self.bootstrap, "-t", "t", *options], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE) as p:
                if not options:
                    p.stdout.read(10)
                p.stdout.close()
                self.assertEqual((p.wait(20), p.stderr.read()), (0, b""))

    def test_9_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            produce(self.bootstrap, "p", [(None, b"x")])
            with subprocess.Popen([TOOL, "read", "-b", self.bootstrap, "-t", "p"], stdout=subprocess.PIPE) as p:
                self.assertEqual(p.stdout.read(2), b"x\n")
                p.send_signal(number)
                self.assertEqual(p.wait(10), 0)
            with subprocess.Popen([TOOL, "mock"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as p:
                p.stdout.readline()
                p.send_signal(number)
                self.assertEqual(p.wait(10), 0)


@unittest.skipUnless(shutil.which("java") and shutil.which("mvn"), "no java and mvn: no real Kafka")
class RealKafka(unittest.TestCase):
    def test_kill_and_back(self):
        with Cluster(3, ["t:2:3", "small:1:1:max.message.bytes=1000"]) as kafka:
            self.assertEqual(read(kafka.bootstrap, "none", "-e")[0], 1)
            self.assertNotIn("none", kafka.metadata()["topics"])
            produce(kafka.bootstrap, "t", [(b"\0k1", b"v1\xff"), (b"\0k2", b"v2\n")], "-p", "1", "-X", "acks=all")
            leader = kafka.partitions("t")[1]["leader"]
            kafka.kill(leader)
            wait_for(lambda: kafka.partitions("t")[1]["leader"] not in (-1, leader), "a new leader")
            produce(kafka.bootstrap, "t", [(b"\0k3", b"v3")], "-p", "1", "-X", "acks=all")
            kafka.restart(leader)
            kafka.wait_topics({"t": 2}, insync=3)
            self.assertEqual(kafka.end_offsets("t"), {0: 0, 1: 3})
            self.assertEqual(kafka.java_end_offsets("t"), {0: 0, 1: 3})
            self.assertEqual(read(kafka.bootstrap, "t", "-e", "-f", "lines"), (0, b"v1\xff\nv2\nv3\n", ""))
            seen = [(b"\0k1", b"v1\xff"), (b"\0k2", b"v2\n"), (b"\0k3", b"v3")]
            self.assertEqual([(m.key, m.value) for m in kafka.read("t")], seen)
            self.assertEqual(kafka.java_read("t"), seen)
            kafka.pause(1)
            kafka.resume(1)
            kafka.stop(2)
            self.assertRaises(ClusterError, kafka.wait, 2)
            kafka.restart(2)
            self.assertRaises(wire.WireError, kafka.create_topics, "t:1:1")
            with self.assertRaises(subprocess.CalledProcessError) as failed:
                produce(kafka.bootstrap, "small", [(None, os.urandom(2000))])
            self.assertIn(b"too large", failed.exception.stderr)
            folder, pids = kafka.folder, [kafka.pid(n) for n in kafka.brokers]
        self.assertFalse(os.path.exists(folder) or any(os.path.exists(f"/proc/{p}") for p in pids))


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-") and os.path.exists(sys.argv[1]):
        TOOL = os.path.abspath(sys.argv.pop(1))
    run = unittest.main(exit=False, verbosity=2).result
    bad = len(run.failures) + len(run.errors)
    print(f"{run.testsRun - bad - len(run.skipped)} passed, {bad} failed, {len(run.skipped)} skipped")
    sys.exit(bad != 0)
