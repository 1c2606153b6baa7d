# SPDX-License-Identifier: MIT
"""make image, run by runc as etc/container/kubernetes/daemonset.yaml says: what a node would run is what is tested here. The
network has loopback only; senders, backend and the kubelet's questions come from this machine's programs in that network."""
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from conftest import BUILD, ROOT, wait_for
from peers import needs_root
from test_91_install import make

MANIFESTS = ROOT / "etc/container/kubernetes"
UNITS = {"m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
# making the images takes some minutes
pytestmark = [needs_root, pytest.mark.soak, pytest.mark.skipif(not shutil.which("runc") or not shutil.which("umoci"), reason="needs runc and umoci")]


def quantity(text):
    number, unit = re.fullmatch(r"([\d.]+)(\D*)", str(text)).groups()
    return float(number) * UNITS.get(unit, 1)


def manifest(name):
    return {d["kind"]: d for d in yaml.safe_load_all((MANIFESTS / name).read_text())}


@pytest.fixture(scope="module")
def image():
    make("image")
    return BUILD / "image"


class Container:
    """The first container of a pod template, as a kubelet would have it run."""

    def __init__(self, bench, image, kinds, backend_port):
        pod = next(d for kind, d in kinds.items() if kind in ("DaemonSet", "Deployment"))["spec"]["template"]["spec"]
        self.spec, self.bench, self.bundle = pod["containers"][0], bench, bench.path / "bundle"
        self.name = f"millrace-test-{os.getpid()}"
        subprocess.run(["umoci", "unpack", "--image", f"{image}:latest", self.bundle], check=True, capture_output=True)
        config = bench.path / "config"
        config.mkdir()
        text = kinds["ConfigMap"]["data"]["millrace.yaml"]
        (config / "millrace.yaml").write_text(re.sub(r'backends: \[[^]]*\]', f'backends: ["127.0.0.1:{backend_port}"]', text))
        self.write_config(pod, config)
        self.process = bench.run("runc", "--root", bench.path / "runc", "run", "--bundle", self.bundle, self.name)
        self.process.wait_line("millrace is serving")
        state = json.loads(self.runc("state", self.name))
        self.pid = state["pid"]

    def write_config(self, pod, config):
        file = self.bundle / "config.json"
        c, security, limits = json.loads(file.read_text()), self.spec["securityContext"], self.spec["resources"]["limits"]
        who = {**pod["securityContext"], **security}
        c["process"].update(terminal=False, noNewPrivileges=not security["allowPrivilegeEscalation"],
                            user={"uid": who["runAsUser"], "gid": who["runAsGroup"]}, args=["/usr/sbin/millrace", *self.spec["args"]])
        assert security["capabilities"] == {"drop": ["ALL"]}
        c["process"]["capabilities"] = {}
        c["root"]["readonly"] = security["readOnlyRootFilesystem"]
        places = {m["name"]: m["mountPath"] for m in self.spec["volumeMounts"]}
        c["mounts"] += [
            {"destination": places["config"], "source": str(config), "type": "bind", "options": ["bind", "ro"]},
            {"destination": places["run"], "source": "tmpfs", "type": "tmpfs",
             "options": ["nosuid", "nodev", "mode=0770", f"gid={who['fsGroup']}", "size=16m"]}]
        c["linux"]["namespaces"] = [{"type": t} for t in ("pid", "network", "ipc", "uts", "mount")]
        c["linux"]["resources"] = {"memory": {"limit": int(quantity(limits["memory"]))},
                                   "cpu": {"quota": int(quantity(limits["cpu"]) * 100000), "period": 100000}}
        file.write_text(json.dumps(c))

    def runc(self, *words, check=True):
        r = subprocess.run(["runc", "--root", self.bench.path / "runc", *words], capture_output=True, text=True, timeout=60)
        assert r.returncode == 0 or not check, r.stderr
        return r.stdout

    def inside(self, *words):
        """The words that run a program of this machine in the container's network."""
        return ["nsenter", "-t", str(self.pid), "-n", *map(str, words)]

    def ask(self, what):
        """As a kubelet asks: the status of an HTTP GET."""
        get = self.spec[f"{what}Probe"]["httpGet"]
        port = next(p["containerPort"] for p in self.spec["ports"] if p["name"] == get["port"])
        code = ("import urllib.request as u, urllib.error as e\ntry: print(u.urlopen('http://127.0.0.1:%d%s').status)\n"
                "except e.HTTPError as x: print(x.code)" % (port, get["path"]))
        return int(subprocess.run(self.inside("/usr/bin/python3", "-c", code), check=True, capture_output=True, text=True).stdout)

    def ctl(self, *words):
        return self.runc("exec", self.name, "/usr/bin/millracectl", *words)

    def end(self):
        self.runc("delete", "--force", self.name, check=False)


@pytest.fixture(params=["daemonset.yaml", "deployment.yaml"])
def container(bench, image, request):
    c = Container(bench, image, manifest(request.param), 9001)
    yield c
    c.end()


def relay(bench, c, lines):
    sink = bench.run(*c.inside(BUILD / "millrace-sink", "--json", "--number", "--strict", "--expect", lines, "127.0.0.1:9001"))
    sink.wait_line("listening", stream="out")
    r = subprocess.run(c.inside(BUILD / "millrace-replay", "-q", "--number", "--lines", lines, "--pps", 5000, "127.0.0.1:8125"),
                       capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stderr
    wait_for(lambda: sink.p.poll() is not None, f"{lines} lines at the backend; the relay says:\n{c.ctl('status')}", 60)
    assert sink.wait() == 0, sink.out


@pytest.mark.parametrize("end", ["TERM", "preStop"])
def test_as_kubernetes_would_run_it(bench, container, end):
    c = container
    status = Path(f"/proc/{c.pid}/status").read_text()
    assert re.search(r"^NSpid:\s+\d+\s+1$", status, re.M) and re.search(r"^CapEff:\s+0+$", status, re.M)
    assert re.search(r"^Uid:\s+65534\s", status, re.M)
    c.process.wait_line(r"1 worker \(one for each CPU\) as user nobody.*capabilities of the master: none|2 workers")
    assert c.ask("startup") == c.ask("readiness") == c.ask("liveness") == 200
    relay(bench, c, 100_000)
    c.ctl("check")
    if end == "TERM":
        c.runc("kill", c.name, "TERM")
    else:
        command = c.spec["lifecycle"]["preStop"]["exec"]["command"]
        c.runc("exec", c.name, *command)
    assert c.process.wait() == 0, c.process.err[-20:]
    assert not any(" ERROR " in line for line in c.process.err)


def test_size_and_content(bench, image):
    """Small, without a shell; every image of the index is what the manifest says it is."""
    sizes = {}
    for tag in "latest", "dpdk":
        bundle = bench.path / tag
        subprocess.run(["umoci", "unpack", "--image", f"{image}:{tag}", bundle], check=True, capture_output=True)
        root = bundle / "rootfs"
        sizes[tag] = sum(p.lstat().st_size for p in root.rglob("*") if p.is_file() and not p.is_symlink())
        assert sizes[tag] < 120e6, f"{tag}: {sizes[tag]} bytes"
        assert not [p for p in root.rglob("*") if p.name in ("sh", "bash", "dash", "perl", "python3")]
        out = subprocess.run(["chroot", root, "/usr/sbin/millrace", "--version"], check=True, capture_output=True, text=True).stdout
        assert out.startswith("millrace ")
        assert bool(list(root.rglob("librte_net_*.so*"))) == (tag == "dpdk")


@pytest.mark.soak
def test_two_builds_are_the_same(bench, image):
    deb = next((BUILD / "deb").glob("millrace_*_amd64.deb"))
    subprocess.run([ROOT / "tools/image", deb, bench.path / "again"], check=True, capture_output=True, timeout=600)
    names = [sorted(str(p.relative_to(f)) for p in f.rglob("*") if p.is_file()) for f in (image, bench.path / "again")]
    assert names[0] == names[1]
    assert (image / "index.json").read_bytes() == (bench.path / "again/index.json").read_bytes()
