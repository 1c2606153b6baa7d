# SPDX-License-Identifier: MIT
"""Bad configurations: every error as file:line: key: what and what is allowed; exit 1; nothing started."""
import os
import re
import socket
import tempfile
from pathlib import Path

import pytest

from conftest import BUILD, ROOT, free_port
from peers import DATA, NOBODY, Collector, config, needs_root, statsite
from test_08_flags import run

# kafka_absent.yaml is wrong only where Kafka is not built in, kafka.yaml is wrong in other ways there
HAS_KAFKA = b"librdkafka.so" in (BUILD / "millrace").read_bytes() if (BUILD / "millrace").exists() else False
FILES = [p for p in sorted((DATA / "conf" / "errors").glob("*.yaml")) if p.stem != ("kafka_absent" if HAS_KAFKA else "kafka")]
GOOD = sorted((DATA / "conf" / "good").glob("*.yaml"))


TOP_KEYS = ", ".join(re.findall(r"^(?:OPTION\(TOP, \w+|PART\(TOP), (\w+),", (ROOT / "include" / "tbl" / "option.def").read_text(), re.M))


def wanted(path):
    """The lines behind "#=" with the file's name before them; @TOP stands for the keys of the top level."""
    text = path.read_text(errors="surrogateescape").replace("@TOP", TOP_KEYS)
    return [f"{path}:{m}" for m in re.findall(r"^#=(.*)$", text, re.M)]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
@pytest.mark.parametrize("flags", [["-t", "-c"], ["-c"], ["-t"], ["--check-config", "--config"]], ids=" ".join)
def test_every_error_of_the_samples(path, flags):
    r = run(*flags, path)
    assert r.returncode == 1
    assert r.stderr.splitlines() == wanted(path)
    assert r.stdout == ""


@pytest.mark.parametrize("path", GOOD, ids=lambda p: p.stem)
def test_good_samples(path):
    r = run("-t", "-c", path)
    assert r.returncode == 0, r.stderr
    assert r.stderr.splitlines() == wanted(path)
    assert r.stdout == f"{path}: the configuration is good\n"


def test_checking_starts_nothing(bench):
    """-t of a file whose port another program has is good, and leaves the port alone."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        file, control = bench.path / "c.yaml", bench.path / "control.sock"
        file.write_text(config({"in": {"type": "udp", "bind": f"127.0.0.1:{s.getsockname()[1]}", "to": "out"}},
                               {"out": statsite(["127.0.0.1:1"])}, control=str(control)))
        assert run("-t", "-c", file).returncode == 0
        assert not control.exists()


def test_a_hundred_errors_in_one_file(bench):
    file = bench.path / "hundred.yaml"
    lines = ["inputs:", "  in:", "    type: udp", "    bind: 127.0.0.1:8125", "    to: out"]
    lines += [f"    wrong{i}: 1" for i in range(40)]
    lines += ["outputs:", "  out:", "    type: statsite", "    shard_map:"]
    lines += [f"      {i}: 127.0.0.1:{70000 + i}" for i in range(30)]
    lines += [f"      k{i}: 127.0.0.1:1" for i in range(30)]
    file.write_text("\n".join(lines) + "\n")
    r = run("-t", "-c", file)
    assert r.returncode == 1
    errors = r.stderr.splitlines()
    assert len(errors) == 100
    numbers = [int(re.match(rf"{re.escape(str(file))}:(\d+): [\w.]+: .", e).group(1)) for e in errors]
    assert numbers == list(range(6, 46)) + list(range(50, 110))
    assert all("allowed" in e or "known here are" in e for e in errors)


def test_a_fresh_start_with_errors_binds_nothing(bench):
    """The good input beside the bad one is not bound either."""
    port = free_port()
    file = bench.path / "c.yaml"
    file.write_text(config({"good": {"type": "tcp", "bind": f"127.0.0.1:{port}", "to": "out"},
                            "bad": {"type": "udp", "bind": "127.0.0.1:8125", "to": "uot"}}, {"out": statsite(["127.0.0.1:1"])}))
    millrace = bench.millrace("-c", file, wait=False, listen=(), backends=())
    millrace.expected_exit = 1
    assert millrace.wait() == 1
    line = next(i for i, text in enumerate(file.read_text().splitlines(), 1) if "uot" in text)
    assert millrace.err == [f'{file}:{line}: inputs.bad.to: "uot" is no output; did you mean out?']
    with socket.socket() as s:
        s.bind(("127.0.0.1", port))


@pytest.mark.parametrize("text,says", [
    ("", "is empty"),
    ("\0\0\0", ":1:"),
    ("inputs: [", "is not YAML"),
    ("\xff\xfe\x00bad", ":"),
    ("a: b: c\n", ":1:"),
    ("inputs:\n\tin: 1\n", ":2:"),
    ("{" * 1000, "nested"),
    ("%YAML 9.9\n---\n{}", ":1:"),
], ids=range(8))
def test_files_that_are_no_configuration(bench, text, says):
    file = bench.path / "c.yaml"
    file.write_bytes(text.encode("latin-1"))
    r = run("-t", "-c", file)
    assert r.returncode == 1 and r.stderr.startswith(str(file)) and says in r.stderr, r.stderr
    assert "Sanitizer" not in r.stderr


@pytest.mark.parametrize("flags", [["-c"], ["-t", "-c"], ["-t"]], ids=" ".join)
def test_what_is_no_file(bench, flags):
    for path, says in ((bench.path, "Is a directory"), (bench.path / "missing.yaml",
                       "No such file"), (bench.path / "c" / "d", "No such file")):
        r = run(*flags, path)
        assert r.returncode == 1
        assert r.stderr.count("\n") == 1 and str(path) in r.stderr and says in r.stderr and "give a readable" in r.stderr


@needs_root
def test_an_unreadable_file():
    """Read by another user: one sentence with the file and the reason."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        file = Path(folder) / "secret.yaml"
        file.write_text("inputs: {}\n")
        file.chmod(0o600)
        for flags in (["-c"], ["-t", "-c"]):
            r = run(*flags, file, user=NOBODY, group=NOBODY, extra_groups=[])
            assert (r.returncode, r.stdout) == (1, "")
            assert r.stderr.count("\n") == 1 and str(file) in r.stderr and "Permission denied" in r.stderr


def test_warnings_stop_nothing(bench):
    """What -t warns of is in the log of a start, too, and it serves."""
    backend = Collector(bench, n=2)
    millrace = bench.millrace(conf=config({"in": {"type": "udp", "bind": "127.0.0.1:{port}", "to": "out"}},
                                          {"out": statsite(backend.addresses, overflow="block")}))
    assert any("block lets one stalled backend hold back the other 1" in line for line in millrace.err)
