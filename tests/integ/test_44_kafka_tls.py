# SPDX-License-Identifier: MIT
"""Kafka behind TLS and SASL: the master reads key and certificates, the workers log in with them, also those that come
later; who cannot log in says why, once, and what it holds is counted."""
import os
import signal
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, wait_for
from faults import wait_ready
from kafka_peers import conf, needs_kafka, numbers, topic, total, wait_delivered

sys.path.insert(0, str(ROOT / "tests" / "kafka"))
from tls import PASSWORD, USER, TlsCluster, make_ca, make_certificate  # noqa: E402

pytestmark = needs_kafka
LIBRDKAFKA = subprocess.run([BUILD / "millrace", "--version"], capture_output=True, text=True).stdout
OLD = any(f"kafka: {v}" in LIBRDKAFKA for v in ("0.", "1.", "2.0.", "2.1.", "2.2.", "2.3.", "2.4.", "2.5.", "2.6.0"))


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    make_ca(folder, "stranger")
    make_certificate(folder, "unknown", ca="stranger")
    cluster = TlsCluster(folder)  # makes the CA
    make_certificate(folder, "hidden", password="pass word")
    with cluster:
        cluster.add_scram()
        yield cluster


def by_certificate(kafka, who="client", ca="ca", more=""):
    return (f'bootstrap.servers: "{kafka.ssl}", security.protocol: ssl, ssl.ca.location: {kafka.file(ca)}.pem, '
            f"ssl.certificate.location: {kafka.file(who)}.pem, ssl.key.location: {kafka.file(who)}.key{more}")


def by_password(kafka, mechanism, password=PASSWORD):
    return (f'bootstrap.servers: "{kafka.sasl_ssl}", security.protocol: sasl_ssl, ssl.ca.location: {kafka.file("ca")}.pem, '
            f'sasl.mechanisms: {mechanism}, sasl.username: {USER}, sasl.password: "{password}"')


def secured(kafka, name, properties, **more):
    """The test's properties in place of the plain bootstrap.servers."""
    return conf("PLAIN", name, properties="", **more).replace('bootstrap.servers: "PLAIN"', properties)


def test_certificates_reach_workers_that_come_later(bench, kafka):
    name = topic(kafka, 4)
    millrace = bench.millrace(conf=secured(kafka, name, by_certificate(kafka)))
    bench.replay("--number", "--lines", 10000, "--sources", 16, "--pps", 2000)
    wait_delivered(millrace, 10000)
    files = [kafka.file(f) for f in ("client.key", "client.pem", "ca.pem")]
    for file in files:  # only what the master read at the start counts
        os.rename(file, file + ".away")
    try:
        for pid in millrace.worker_pids().values():
            os.kill(pid, signal.SIGKILL)
            millrace.wait_line(rf"pid {pid}\) killed by signal 9")
        wait_ready(millrace)
        bench.replay("--number", "--number-from", 10000, "--lines", 10000, "--sources", 16, "--pps", 2000)
        wait_delivered(millrace, 20000)
    finally:
        for file in files:
            os.rename(file + ".away", file)
    assert sorted(numbers(kafka, name)) == list(range(20000))


def test_the_reader_takes_the_same_properties(bench, kafka):
    name = topic(kafka, 1)
    millrace = bench.millrace(conf=secured(kafka, name, by_certificate(kafka)))
    bench.replay("--number", "--lines", 100)
    wait_delivered(millrace, 100)
    options = []
    for pair in by_certificate(kafka).split(", ")[1:]:
        options += ["-X", pair.replace(": ", "=")]
    r = subprocess.run([BUILD / "millrace-kafka", "read", "-b", kafka.ssl, "-t", name, "-e", "-f", "raw", *options],
                       capture_output=True, text=True, timeout=30, check=True)
    assert len(r.stdout.splitlines()) == 100


@pytest.mark.parametrize("how", ["hidden key", "PLAIN", "OAUTHBEARER",
                                 pytest.param("SCRAM-SHA-512", marks=pytest.mark.skipif(OLD, reason="librdkafka before 2.6.1"))])
def test_other_ways_to_log_in(bench, kafka, how):
    name = topic(kafka, 2)
    properties = {"hidden key": by_certificate(kafka, "hidden", more=', ssl.key.password: "pass word"'),
                  "OAUTHBEARER": by_password(kafka, how) + ", enable.sasl.oauthbearer.unsecure.jwt: true, "
                                                           "sasl.oauthbearer.config: principal=millrace"}
    millrace = bench.millrace(conf=secured(kafka, name, properties.get(how) or by_password(kafka, how)))
    bench.replay("--number", "--lines", 1000, "--sources", 16)
    wait_delivered(millrace, 1000)
    assert sorted(numbers(kafka, name)) == list(range(1000))
    millrace.terminate()
    assert PASSWORD not in "\n".join(millrace.err) and "pass word" not in "\n".join(millrace.err)


@pytest.mark.parametrize("how, why", [
    ("wrong password", "Authentication failed"),
    ("broker of another CA", "certificate verify failed"),
    ("client of another CA", "certificate unknown|unknown ca|Disconnected|broker.* refused"),
])
def test_who_cannot_log_in(bench, kafka, how, why):
    name = topic(kafka)
    properties = {"wrong password": by_password(kafka, "PLAIN", "not this"),
                  "broker of another CA": by_certificate(kafka, ca="stranger"),
                  "client of another CA": by_certificate(kafka, who="unknown")}[how]
    millrace = bench.millrace(conf=secured(kafka, name, properties, workers=1, top="drain_timeout: 1s"))
    millrace.expected_exit = 3
    bench.replay("--number", "--lines", 100)
    millrace.wait_line(why, 20)
    millrace.wait_line("no broker can be reached", 20)
    wait_for(lambda: total(millrace, "queued_records") == 100, "the lines to wait")
    millrace.check()
    millrace.terminate()
    assert any("100 offered = 0 delivered + 0 unconfirmed + 0 failed + 100 dropped" in line for line in millrace.err)
    assert sum("no broker can be reached" in line for line in millrace.err) == 1
    assert "not this" not in "\n".join(millrace.err)
