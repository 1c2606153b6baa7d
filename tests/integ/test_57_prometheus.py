# SPDX-License-Identifier: MIT
"""/metrics as Prometheus' own programs see it: promtool finds no fault, and Prometheus itself scrapes it."""
import json
import shutil
import subprocess
import urllib.parse
import urllib.request

import pytest
from conftest import free_port, wait_for
from kafka_peers import Mock, conf, needs_kafka
from test_55_monitor import HTTP, address, ask

pytestmark = pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool (package prometheus)")


def check(text):
    """promtool's lint: metric and label names, units, HELP, TYPE, no sample twice. Its findings, none when all is well."""
    r = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=30)
    assert r.returncode in (0, 3), r.stderr
    return r.stdout + r.stderr


def test_promtool_knows_faults():
    assert "no help text" in check("# TYPE x counter\nx 1\n")
    assert check("# HELP x_total what\n# TYPE x_total counter\nx_total 1\n") == ""


def test_promtool(bench):
    """Every kind of input and output that makes rows of its own, and names that must be escaped."""
    sink, udp = bench.sink(ports=2), bench.sink(udp=True)
    odd = bench.path / 'a"b\\{c}'
    text = """
inputs:
  metrics: { type: udp, bind: "127.0.0.1:{port}", to: shards }
  stream: { type: tcp, bind: "127.0.0.1:{port}", to: shards }
  local: { type: unixgram, bind: '%s', to: shards }
outputs:
  shards: { type: statsite, backends: ["%s", "%s", "%s"] }
""" % (odd, *sink.addresses, *udp.addresses)
    millrace = bench.millrace(*HTTP, "--workers", "2", conf=text)
    bench.replay("--lines", 1000)
    text = ask(address(millrace), "/metrics")[2]
    assert check(text) == ""
    assert 'a\\"b\\\\{c}",worker="all"} 0' in text


@needs_kafka
def test_promtool_kafka(bench):
    mock = Mock(bench, "raw:4")
    millrace = bench.millrace(*HTTP, conf=conf(mock.bootstrap, "raw"))
    bench.replay("--lines", 1000)
    where = address(millrace)
    wait_for(lambda: "millrace_kafka_delivered_messages_total{" in ask(where, "/metrics")[2] and
             "millrace_broker_up{" in ask(where, "/metrics")[2], "Kafka in the metrics")
    text = ask(where, "/metrics")[2]
    assert check(text) == ""


def test_prometheus(bench):
    """The real one scrapes it: the target is up, no sample is refused, and a query gives the number that was sent."""
    sink = bench.sink(ports=3)
    millrace = bench.millrace(*HTTP, backends=sink.addresses)
    where, port = address(millrace), free_port()
    bench.replay("--lines", 12_000)
    sink.wait_lines(12_000)
    config = bench.path / "prometheus.yml"
    config.write_text(json.dumps({"global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
                                  "scrape_configs": [{"job_name": "millrace", "static_configs": [{"targets": [where]}]}]}))
    prometheus = bench.run("prometheus", f"--config.file={config}", f"--storage.tsdb.path={bench.path / 'tsdb'}",
                           f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn")

    def api(path, **words):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(words)}",
                                        timeout=5) as r:
                return json.load(r)["data"]
        except OSError:
            assert prometheus.p.poll() is None, prometheus.err
            return None

    def value(query):
        found = api("query", query=query)
        return float(found["result"][0]["value"][1]) if found and found["result"] else None
    wait_for(lambda: value('up{job="millrace"}') == 1, "Prometheus to scrape it", 30)
    wait_for(lambda: value("sum(millrace_backend_delivered_records_total)") == 12_000, "12,000 lines in Prometheus", 30)
    assert value("count(millrace_backend_up == 2)") == 3, "each backend, up in both workers"
    text = ask(where, "/metrics")[2]
    samples = sum(not line.startswith("#") for line in text.splitlines())
    assert value("scrape_samples_scraped") == value("scrape_samples_post_metric_relabeling") == samples
    targets = api("targets")["activeTargets"]
    assert [t["health"] for t in targets] == ["up"] and targets[0]["lastError"] == ""
    metadata = api("metadata", metric="millrace_input_received_lines_total")
    assert metadata["millrace_input_received_lines_total"][0] == {"type": "counter", "help": "Lines read.", "unit": ""}
