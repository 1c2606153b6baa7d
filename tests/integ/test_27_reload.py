# SPDX-License-Identifier: MIT
"""Reload: each change of options and backends under load, nothing lost, nothing that need not change is touched; and what is
refused."""
import os
import signal
from pathlib import Path

import pytest
from conftest import free_port, wait_for
from faults import Counters, Sender, children, udp_drops, wait_ready, wait_settled
from peers import client
from reload_rig import Config, backends, master_counters, wait_counter

pytestmark = pytest.mark.usefixtures("apart")


def load(bench, *more):
    return Sender(bench, "--sources", 64, "--pps", 3000, "--bytes", 300, "--time", "60s", *more)


def under_load(bench):
    """(sink, configuration, millrace, sender, pids of the workers) of two backends to which lines go."""
    sink = bench.sink("--number", "--keys", 10000, ports=2)
    config = Config(bench, sink.addresses)
    millrace = config.start()
    sender = load(bench)
    sink.wait_lines(2000)
    return sink, config, millrace, sender, millrace.worker_pids()


def loses_nothing(millrace, sink, sender):
    """Ends the sender: all that it sent has arrived, once."""
    sent = sender.stop()
    counters = wait_settled(millrace, sent["datagrams"])
    report = sink.wait_lines(sent["lines"])
    assert (report["distinct"], report["doubles"], report["malformed"]) == (sent["lines"], 0, 0)
    assert (counters.dropped(), counters.lost_at_death(), counters.at_risk(), udp_drops(millrace.pid)) == (0, 0, 0, 0)
    assert counters.unbalanced() == []
    return counters


def test_nothing_has_changed(bench):
    sink = bench.sink()
    config = Config(bench, sink.addresses)
    millrace = config.start()
    before, pids = master_counters(millrace), millrace.worker_pids()
    first, lines = config.reload("# a comment\n" + config.text())
    assert (first, lines) == ("nothing has changed", [])
    after = master_counters(millrace)
    assert after["reloads"] == before["reloads"] + 1 and after["config_digest"] == before["config_digest"] > 0
    assert after["loaded_us"] == before["loaded_us"]
    assert millrace.worker_pids() == pids


def test_backends_come_go_and_change_their_weight(bench):
    """The one that stays keeps its connection; those that went deliver what they hold; the digest tells the files apart."""
    sink = bench.sink("--number", "--keys", 10000, ports=4)
    a, b, c, d = sink.addresses
    config = Config(bench, [a, b])
    millrace = config.start()
    digest = master_counters(millrace)["config_digest"]
    sender = load(bench)
    sink.wait_lines(2000)
    for new in ([a, b, c], [a, c, d], [a, f'{{ address: "{c}", weight: 3 }}', d], [a, b], [b, a, c, d], [a, b]):
        first, lines = config.reload(backends=new)
        assert first.endswith("applied by rolling the workers") and lines
        names = [x.split('"')[1] if x.startswith("{") else x for x in new]
        wait_for(lambda: set(backends(millrace)) == set(names), "the backends")
        millrace.check()
        here = sink.report()["lines"]
        sink.wait_lines(here + 500)
    assert master_counters(millrace)["config_digest"] == digest
    assert millrace.status()["config"] == f"{digest:012x}" in millrace.ctl("status").stdout
    counters = loses_nothing(millrace, sink, sender)
    assert counters.sum("backend", "connects", backend=a) == 2  # one of each worker, handed over ten times
    assert counters.sum("backend", "resent_records") == 0


def test_what_the_master_alone_has_is_applied_at_once(bench):
    sink, config, millrace, sender, pids = under_load(bench)
    first, lines = config.reload(top="drain_timeout: 3s\nstart_timeout: 9s\nper_second_stats: true\nlog_level: debug\n"
                                     "packet_table: 10s")
    assert first == "5 changes, applied at once", lines
    assert "drain_timeout: 5s -> 3s" in lines and "log_level: info -> debug" in lines
    millrace.wait_line(r"last second: \d+ packets")
    assert millrace.worker_pids() == pids
    loses_nothing(millrace, sink, sender)


def test_many_options_together(bench):
    """One roll brings them all, those of the master, too."""
    sink, config, millrace, sender, pids = under_load(bench)
    config.inputs = {"udp": '{ type: udp, bind: "127.0.0.1:{port}", to: [out], budget: 3, latency: off }',
                     "tcp": '{ type: tcp, bind: "127.0.0.1:{port}", to: [out], idle_timeout: 1h }'}
    first, lines = config.reload(
        output=", queue_limit: 1MiB, overflow: drop_oldest, max_datagram: 512, reconnect_min: 100ms, "
               "reconnect_max: 1s, user_timeout: 9s",
        top="drain_timeout: 3s\nstart_timeout: 9s\nper_second_stats: true\nlog_level: debug")
    assert first == "13 changes, applied by rolling the workers", lines
    assert "outputs.out.queue_limit: 64MiB -> 1MiB" in lines and "inputs.udp.latency: 20ms -> off" in lines
    millrace.wait_line(r"last second: \d+ packets")
    here = sink.report()["lines"]
    sink.wait_lines(here + 2000)
    assert set(millrace.worker_pids()) == set(pids) and not set(millrace.worker_pids().values()) & set(pids.values())
    loses_nothing(millrace, sink, sender)


def test_idle_timeout_applies_to_open_connections(bench):
    sink = bench.sink()
    config = Config(bench, sink.addresses, workers=1)
    config.start()
    with client(bench, "tcp") as s:
        config.reload(inputs={**config.inputs, "tcp": '{ type: tcp, bind: "127.0.0.1:{port}", to: [out], idle_timeout: 100ms }'})
        s.settimeout(10)
        assert s.recv(1) == b""


def test_queue_limit_and_overflow_under_a_stalled_backend(bench):
    """A queue that was too small is made larger while it is full: what was held back by `block` goes on."""
    sink = bench.sink("--number", "--stall")
    config = Config(bench, sink.addresses, workers=1, output=", queue_limit: 128KiB, overflow: block")
    millrace = config.start()
    sender = load(bench)
    wait_for(lambda: Counters(millrace).sum("input", "holds") > 0, "the input to be held")
    first, _ = config.reload(output=", queue_limit: 64MiB, overflow: block")
    assert first.endswith("applied by rolling the workers")
    wait_for(lambda: Counters(millrace).sum("input", "held") == 0, "the input to go on")
    sink.ask("stall off")
    loses_nothing(millrace, sink, sender)


def test_a_removed_backend_that_is_away(bench):
    """It cannot deliver: what it holds goes to those who have its keys now, in the account of both."""
    sink = bench.sink("--number", "--keys", 10000)
    away = f"127.0.0.1:{free_port()}"
    config = Config(bench, [away, *sink.addresses])
    millrace = config.start()
    bench.replay("--number", "--lines", 2000, "--sources", 8)
    held = wait_for(lambda: backends(millrace)[away]["queued_records"], "lines for it")
    sink.wait_lines(2000 - held)
    config.reload(backends=sink.addresses)
    report = sink.wait_lines(2000)
    assert (report["distinct"], report["doubles"]) == (2000, 0)
    counters = wait_settled(millrace)
    assert counters.dropped() == 0
    assert counters.sum("backend", "passed_records") == counters.sum("backend", "taken_over_records") >= held
    assert counters.unbalanced() == []


def test_a_removed_backend_that_comes_back_at_once(bench):
    """Its block of counters has one writer: it goes on as it was."""
    sink = bench.sink("--number", "--stall", ports=2)
    a, b = sink.addresses
    config = Config(bench, [a, b])
    millrace = config.start()
    lines = bench.replay("--number", "--lines", 20000, "--sources", 8)["lines"]
    for new in ([a], [a, b], [b], [a, b]):
        config.reload(backends=new)
        millrace.check()
    sink.ask("stall off")
    report = sink.wait_lines(lines)
    assert (report["distinct"], report["doubles"]) == (lines, 0)


def test_modulo_shards_move(bench):
    sink = bench.sink("--number", "--keys", 10000, ports=3)
    a, b, c = sink.addresses
    config = Config(bench, [a, b], output=", hash: modulo")
    millrace = config.start()
    sender = load(bench)
    for new in ([a, b, c], [c, b, a], [a, a, b], [b, c]):
        first, lines = config.reload(backends=new)
        assert first.endswith("applied by rolling the workers") and lines
        here = sink.report()["lines"]
        sink.wait_lines(here + 500)
    loses_nothing(millrace, sink, sender)


ERRORS = [
    ("workers: many\n", "workers"),
    ("nonsense: 1\n", "nonsense"),
    ("outputs: {}\n", "outputs"),
    ("inputs: [\n", ""),
    ("", "is empty"),
]


@pytest.mark.parametrize("text, word", ERRORS, ids=[w or "yaml" for _, w in ERRORS])
def test_a_broken_file_changes_nothing(bench, text, word):
    sink = bench.sink("--number")
    config = Config(bench, sink.addresses)
    millrace = config.start()
    before, pids = master_counters(millrace), millrace.worker_pids()
    first, *lines = config.refuse(text)
    assert "Nothing has changed" in first
    assert any("millrace.yaml" in line and word in line for line in lines), lines
    after = master_counters(millrace)
    assert (after["reload_failures"], after["reload_failed"], after["reloads"]) == (before["reload_failures"] + 1, 1, 0)
    assert after["config_digest"] == before["config_digest"] and millrace.worker_pids() == pids
    config.reload()
    assert master_counters(millrace)["reload_failed"] == 0


def test_what_is_no_file_does_not_hold_the_master_up(bench):
    """A FIFO that nobody writes into: the answer comes at once."""
    sink = bench.sink("--number")
    config = Config(bench, sink.addresses)
    millrace = config.start()
    file = bench.path / "millrace.yaml"
    file.unlink()
    os.mkfifo(file)
    millrace.expected_errors.append("reload: ")
    r = millrace.ctl("reload", check=False)
    assert r.returncode == 1 and "is no file" in r.stderr
    config.reload()


def test_what_only_a_library_refuses(bench):
    """A filter that libpcap does not understand, a producer that librdkafka does not make: the answer has its line."""
    sink = bench.sink("--number")
    config = Config(bench, sink.addresses)
    millrace = config.start()
    text = config.text().replace("to: [out] }", "to: [out, raw] }").replace("outputs: { out", """outputs: {
  raw: { type: kafka, topic: t, properties: { bootstrap.servers: "127.0.0.1:1", acks: 1, enable.idempotence: true } }, out""")
    first, *lines = config.refuse(text)
    assert "Nothing has changed" in first and any("outputs.raw" in line for line in lines), lines
    assert [o["name"] for o in millrace.status()["outputs"]] == ["out"]


def test_hup_logs_what_changed_and_what_is_wrong(bench):
    sink = bench.sink(ports=2)
    config = Config(bench, sink.addresses[:1])
    millrace = config.start()
    config.backends = sink.addresses
    config.write()
    millrace.send_signal(signal.SIGHUP)
    millrace.wait_line(r"INFO master: reload: 1 change, applied by rolling the workers")
    millrace.wait_line(rf"reload: outputs.out.backends: {sink.addresses[1]} added")
    config.write("workers: many\n")
    millrace.send_signal(signal.SIGHUP)
    millrace.expected_errors.append("reload: ")
    millrace.wait_line(r"ERROR master: reload: .*millrace.yaml:1: workers: ")
    wait_counter(millrace, "reload_failed", 1)


def is_worker(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("millrace/")
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("again", range(4))
def test_the_end_comes_while_a_successor_starts(bench, again):
    """It holds nothing: it is stopped, that is no death and no loss, and who serves ends as always."""
    sink = bench.sink("--number", "--keys", 10000)
    config = Config(bench, sink.addresses, workers=4)
    millrace = config.start()
    sender = load(bench)
    sink.wait_lines(1000)
    config.backends = [f'{{ address: "{sink.addresses[0]}", weight: {2 + again} }}']
    config.write()
    millrace.send_signal(signal.SIGHUP)
    wait_for(lambda: sum(is_worker(pid) for pid in children(millrace.pid)) >= 5, "a successor", every=0)  # it is ready soon
    millrace.send_signal(signal.SIGTERM)
    sender.stop()
    millrace.expected_errors.append("the reload is given up")
    assert millrace.wait() == 0
    assert not [line for line in millrace.err if "signal 9" in line or "could not start" in line], millrace.err


def test_many_hups_and_questions_at_once(bench):
    """One reload at a time; the last file is in effect in the end."""
    sink = bench.sink("--number", "--keys", 10000, ports=3)
    config = Config(bench, sink.addresses[:1])
    millrace = config.start()
    sender = load(bench)
    for i in range(60):
        config.backends = sink.addresses[:1 + i % 3]
        config.write()
        millrace.send_signal(signal.SIGHUP)
        if i % 10 == 0:
            millrace.ctl("reload", check=False)
    config.backends = sink.addresses
    config.write()
    wait_for(lambda: millrace.ctl("reload", check=False).returncode == 0, "the last of them")  # "a reload is under way"
    assert set(backends(millrace)) == set(sink.addresses)
    loses_nothing(millrace, sink, sender)


def test_flags_cannot_be_reloaded_and_are_kept_on_top(bench):
    sink = bench.sink("--number")
    millrace = bench.millrace(backends=sink.addresses)
    r = millrace.ctl("reload", check=False)
    assert r.returncode == 1 and "flags only" in r.stderr
    millrace.expected_errors.append("reload: ")


def test_a_flag_stays_on_top_of_the_file(bench):
    sink = bench.sink("--number")
    config = Config(bench, sink.addresses)
    millrace = bench.millrace("--workers", 1, conf=config.text())
    config.millrace = millrace
    assert config.reload(workers=4) == ("nothing has changed", [])
    assert len(wait_ready(millrace)) == 1


def test_a_killed_worker_starts_with_the_present_configuration(bench):
    sink = bench.sink("--number", "--keys", 10000, ports=2)
    config = Config(bench, sink.addresses[:1])
    millrace = config.start()
    config.reload(backends=sink.addresses[1:])
    pids = wait_ready(millrace)
    os.kill(pids[0], signal.SIGKILL)
    wait_for(lambda: millrace.worker_pids().get(0) not in (None, pids[0]), "its successor")
    wait_ready(millrace)
    sender = load(bench)
    sink.wait_lines(1000)
    sent = sender.stop()
    sink.wait_lines(sent["lines"])
    wait_settled(millrace)
    assert backends(millrace)[sink.addresses[1]]["delivered_records"] == sent["lines"]
    assert sink.report()["distinct"] == sent["lines"]
