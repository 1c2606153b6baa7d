# SPDX-License-Identifier: MIT
"""The alerts for Prometheus: promtool reads them, they fire when they must, and every metric in them is a counter of the table."""
import re
import subprocess

import pytest
import yaml

from conftest import ROOT

ALERTS = ROOT / "etc/millrace.alerts.yml"


def rules():
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def metrics():
    """Names that /metrics has, by the rule of src/report/prometheus.c: millrace_SCOPE_ROW, _seconds for _us, _total if it only grows."""
    names = set()
    for scope, row, kind in re.findall(r"^COUNTER\((\w+), (\w+), (\w+),", (ROOT / "include/tbl/counter.def").read_text(), re.M):
        seconds = re.sub("_us$", "_seconds", row)
        names.add(f"millrace_{scope.lower()}_{seconds}" + ("" if kind in ("GAUGE", "STATE") else "_total"))
    return names


@pytest.mark.parametrize("words", [("check", "rules", ALERTS), ("test", "rules", ROOT / "tests/data/alerts.yml")], ids=["check", "test"])
def test_promtool(words):
    r = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r.stdout + r.stderr


def test_every_metric_exists():
    used = {name for rule in rules() for name in re.findall(r"\bmillrace_\w+", rule["expr"])}
    assert len(used) > 20
    assert used <= metrics(), used - metrics()


def test_every_alert_says_what_to_do():
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert rule["annotations"]["summary"] and rule["annotations"]["description"], rule["alert"]
