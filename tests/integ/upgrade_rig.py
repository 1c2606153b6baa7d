# SPDX-License-Identifier: MIT
"""What the tests of upgrades share: a millrace behind a link, and new programs that fail in one of its phases."""
import os
import subprocess
from pathlib import Path

from conftest import BUILD, wait_for
from faults import child_names
from reload_rig import Config, Upgraded

SOURCE = Path(__file__).with_name("upgrade_fault.c")


def start(bench, backends, **kw):
    config = Config(bench, backends, **kw)
    config.millrace = millrace = bench._keep(Upgraded(bench, config.text()))
    return config, millrace


def compiled(bench, name, *flags):
    file = bench.path / name
    if not file.exists():
        subprocess.run([os.environ.get("CC", "cc"), *flags, "-o", file, SOURCE], check=True)
    return file


def set_fault(bench, phase, how, path="-", real=BUILD / "millrace"):
    """The program that stands behind the link from now on fails so."""
    (bench.path / "millrace.fault").write_text(f"{phase} {how} {path} {real}\n")
    return compiled(bench, "faulty")


def script(bench, text="exit 1"):
    file = bench.path / "script"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def unexecutable(bench):
    file = bench.path / "unexecutable"
    file.write_bytes(b"\x7fELF")
    file.chmod(0o644)
    return file


# name → (makes the program, words of the answer)
FAULTS = {
    "no exec permission": (unexecutable, "Permission denied"),
    "a script": (script, "it is a script"),
    "not there": (lambda bench: bench.path / "nothing", "No such file"),
    "fails": (lambda bench: set_fault(bench, "rehearse", "exit"), "would not come up"),
    "is killed": (lambda bench: set_fault(bench, "rehearse", "kill"), "would not come up"),
}


def refuse(bench, millrace, name):
    """An upgrade to that program changes nothing, and says why."""
    make, words = FAULTS[name]
    millrace.point_at(make(bench))
    answer = "\n".join(millrace.refuse_upgrade())
    millrace.point_at(BUILD / "millrace")
    assert words in answer, answer


def wait_children(millrace, n=2):
    """One worker for each slot, one monitor, nobody else."""
    expected = [f"millrace/{i}" for i in range(n)] + ["millrace/mon"]
    wait_for(lambda: child_names(millrace) == sorted(expected), f"the children {expected}")
