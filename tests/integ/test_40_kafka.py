# SPDX-License-Identifier: MIT
"""Records to a real Apache Kafka, read back by kcat, by Java's own consumer and by millrace-kafka."""
import collections
import socket
import subprocess

import pytest
from conftest import BUILD, wait_for
from kafka_peers import Cluster, Mock, check_conf, conf, needs_kafka, numbers, topic, total, wait_delivered

pytestmark = needs_kafka


@pytest.fixture(scope="module")
def kafka():
    with Cluster() as cluster:
        yield cluster


def test_by_flags_to_a_mock(bench):
    mock = Mock(bench, "t:4")
    millrace = bench.millrace("--kafka", mock.bootstrap, "--topic", "t")
    bench.replay("--number", "--lines", 1000, "--pps", 2000)
    wait_delivered(millrace, 1000)
    r = subprocess.run([BUILD / "millrace-kafka", "read", "-b", mock.bootstrap, "-t", "t", "-e", "-f", "raw"], capture_output=True,
                       timeout=20, check=True)
    assert sorted(int(line.split(b":")[1][:-2]) for line in r.stdout.splitlines()) == list(range(1000))


@pytest.mark.parametrize("lines", [100000, pytest.param(1000000, marks=pytest.mark.soak)])
def test_lines_through_two_workers(bench, kafka, lines):
    name = topic(kafka, 4)
    millrace = bench.millrace(conf=conf(kafka, name))
    bench.replay("--number", "--lines", lines, "--sources", 16, "--pps", 2000, timeout=100)
    wait_delivered(millrace, lines, 60)
    assert sorted(numbers(kafka, name)) == list(range(lines))
    assert total(millrace, "delivered_records") == lines


def test_status_shows_messages_and_brokers(bench, kafka):
    name = topic(kafka, 4)
    millrace = bench.millrace(conf=conf(kafka, name))
    bench.replay("--number", "--lines", 20000, "--sources", 16, "--pps", 2000)
    wait_delivered(millrace, 20000)
    wait_for(lambda: sum(k["brokers_up"] for k in millrace.status()["kafka"]) == 2, "both workers to see their broker")
    (row,) = millrace.status()["kafka"]
    assert row["name"] == "raw" and 0 < row["delivered_messages"] < 2000
    assert row["offered_messages"] == row["delivered_messages"]
    text = millrace.ctl("status").stdout
    assert "kafka" in text and "1 up" in text, text


@pytest.mark.parametrize("partition", ["flow", "worker", "key", "random"])
def test_partitions(bench, kafka, partition):
    name = topic(kafka, 4)
    millrace = bench.millrace(conf=conf(kafka, name, f"format: lines; batch_bytes: 2KiB; partition: {partition}"))
    bench.replay("--number", "--lines", 20000, "--sources", 64, "--pps", 4000, "--keys", 100, "--bytes", 500)
    wait_delivered(millrace, 20000)
    partitions = collections.defaultdict(set)
    found = []
    for m in kafka.read(name):
        assert m.key is None and len(m.value) <= 2048
        for line in m.value.splitlines():
            partitions[line.split(b":")[0]].add(m.partition)
            found.append(int(line.split(b":")[1][:-2]))
    assert sorted(found) == list(range(20000))
    assert set.union(*partitions.values()) == {0, 1, 2, 3}
    if partition == "key":
        assert all(len(p) == 1 for p in partitions.values())


def test_flow_keeps_its_order(bench, kafka):
    name = topic(kafka, 3)
    millrace = bench.millrace(conf=conf(kafka, name, "format: datagram; headers: true"))
    bench.replay("--number", "--one", "--lines", 20000, "--sources", 32, "--pps", 5000)
    wait_delivered(millrace, 20000)
    last, where, n = {}, {}, 0
    for m in kafka.read(name):
        headers = dict(m.headers)
        sender, number = headers["sender"], int(m.value.split(b":")[1].split(b"|")[0])
        assert where.setdefault(sender, m.partition) == m.partition
        assert last.get(sender, -1) < number
        assert abs(int(headers["received_us"]) // 1000 - m.timestamp) <= 1
        last[sender] = number
        n += 1
    assert n == 20000 and len(last) == 32 and len(set(where.values())) == 3


def test_java_reads_keys_and_values(bench, kafka):
    name = topic(kafka)
    millrace = bench.millrace(conf=conf(kafka, name, "format: datagram; partition: key", workers=1))
    sent = [f"name{i}:{i}|c\nsecond{i}:1|ms".encode() for i in range(50)] + [bytes(range(256)), b"x" * 60000]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for datagram in sent:
            s.sendto(datagram, ("127.0.0.1", bench.port))
    wait_delivered(millrace, len(sent))
    found = kafka.java_read(name)
    assert [value for _, value in found] == sent
    assert [key for key, _ in found[:50]] == [f"name{i}".encode() for i in range(50)]


def test_tee_beside_statsite(bench, kafka):
    name = topic(kafka, 2)
    sink = bench.sink("--number", ports=3)
    backends = ", ".join(f'"{a}"' for a in sink.addresses)
    millrace = bench.millrace(conf=conf(kafka, name, to=", shards", outputs=f"  shards: {{ type: statsite, backends: [{backends}] }}"))
    bench.replay("--number", "--lines", 50000, "--sources", 16, "--pps", 2000)
    assert sink.wait_lines(50000)["distinct"] == 50000
    wait_for(lambda: total(millrace, "delivered_records") == 100000, "both outputs to deliver")
    assert sorted(numbers(kafka, name)) == list(range(50000))


def test_streams_give_lines(bench, kafka):
    name = topic(kafka)
    millrace = bench.millrace(conf=conf(kafka, name, inputs="tcp"))
    bench.replay("--number", "--lines", 5000, "--tcp")
    wait_delivered(millrace, 5000)
    assert numbers(kafka, name) == list(range(5000))


def test_large_message_and_its_neighbours(bench, kafka):
    name = topic(kafka, 1, ":max.message.bytes=2000")
    millrace = bench.millrace(conf=conf(kafka, name, "format: datagram", "compression.codec: none, linger.ms: 0", workers=1))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for i, size in enumerate([100, 5000, 100]):
            s.sendto(b"%d:" % i + b"x" * size, ("127.0.0.1", bench.port))
            wait_for(lambda i=i: total(millrace, "delivered_records") + total(millrace, "failed_records") == i + 1, "a report")
    assert [m.value[:2] for m in kafka.read(name)] == [b"0:", b"2:"]
    (row,) = millrace.status()["kafka"]
    assert row["failed_too_large_records"] == 1 and row["failed_messages"] == 1


def test_topic_does_not_exist(bench, kafka):
    millrace = bench.millrace(conf=conf(kafka, "nowhere", properties="topic.metadata.propagation.max.ms: 500"))
    millrace.expected_errors = ["topic nowhere: .*Unknown topic"]
    bench.replay("--number", "--lines", 1000, "--pps", 1000)
    wait_for(lambda: total(millrace, "failed_records") == 1000, "all to be counted")
    assert sum(k["failed_unknown_topic_records"] for k in millrace.status()["kafka"]) == 1000
    assert sum("topic nowhere" in line and "ERROR" in line for line in millrace.err) <= 2, "once for each worker"
    kafka.create_topics("nowhere")
    wait_for(lambda: sum(k["partitions"] for k in millrace.status()["kafka"]) == 2, "both workers to see the topic")
    bench.replay("--number", "--lines", 1000, "--pps", 1000)
    wait_delivered(millrace, 1000)


PROPERTY_LINE = 'properties: { bootstrap.servers: "k:9092", '


@pytest.mark.parametrize("options, properties, expected", [
    ("format: lines", "nope: 1", r'raw.properties.nope: No such configuration property: "nope"'),
    ("format: lines", "linger.ms: abc", "raw.properties.linger.ms: Invalid value"),
    ("format: lines", "acks: 1, enable.idempotence: true", "raw.properties.acks: `acks` must be set to `all`"),
    ("format: lines", "retries: 0, enable.idempotence: true", "raw.properties.retries: "),
    ("format: lines", "security.protocol: ssl, ssl.key.location: /nope/key.pem", 'ssl.key.location: "/nope/key.pem" cannot be read'),
    ("format: lines", "security.protocol: sasl_plaintext, sasl.mechanisms: FOO", "sasl.mechanisms: Unsupported SASL mechanism: FOO"),
    ("format: lines", "transactional.id: x", "transactional.id: transactions are not used"),
    ("format: packet", "", "packet needs packets"),
    ("format: nope", "", "one of datagram, lines, packet, pcap"),
    ("format: lines; queue_limit: 1MiB", "", "queue_limit: does not belong to type kafka"),
])
def test_errors_of_the_check(bench, options, properties, expected):
    text = conf("k:9092", "t", options, properties)
    code, errors = check_conf(bench, text)
    assert code == 1 and expected in errors, errors
    line = next(n for n, row in enumerate(text.splitlines(), 1) if expected.split(" ")[0].split(".")[-1].strip(":") in row
                or "properties:" in row and properties or options.split(";")[-1].strip() in row and not properties)
    assert f"FILE:{line}:" in errors


def test_idempotence_yields(bench):
    code, errors = check_conf(bench, conf("k:9092", "t", properties="acks: 1"))
    assert code == 0, errors
    mock = Mock(bench, "t:1")
    millrace = bench.millrace(conf=conf(mock, "t", properties="acks: 1"))
    millrace.wait_line("without idempotence, which acks excludes")
    bench.replay("--number", "--lines", 100)
    wait_delivered(millrace, 100)


def test_datagrams_of_a_stream_are_refused(bench):
    code, errors = check_conf(bench, conf("k:9092", "t", "format: datagram", inputs="tcp"))
    assert code == 1 and "is a stream; allowed is lines" in errors


def test_passwords_stay_out_of_the_log(bench):
    mock = Mock(bench, "t:1")
    millrace = bench.millrace(conf=conf(mock, "t", properties="sasl.username: me, sasl.password: verysecret"))
    millrace.terminate()
    assert "verysecret" not in "\n".join(millrace.err + millrace.out)
