# SPDX-License-Identifier: MIT
"""Places apart from this machine, thrown away at the end with every process in them: namespaces, and a whole Debian in a chroot.

The Debian is made once, by mmdebstrap from this machine's own package sources, and kept below the build folder; a test sees
it through an overlay, so it stays as it was made. What a package needs is installed with it, so that a test needs no network.
"""
import fcntl
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from conftest import BUILD, wait_for

SETUP = """
mount -t tmpfs none "$1"
mkdir "$1/changes" "$1/work" "$1/tree"
mount -t overlay none -o "lowerdir=$2,upperdir=$1/changes,workdir=$1/work" "$1/tree"
mount -t proc proc "$1/tree/proc"
mount -t tmpfs none "$1/tree/run"
"""


def dependencies(deb):
    """Names of the packages that it depends on; of alternatives the first."""
    text = subprocess.run(["dpkg-deb", "-f", deb, "Depends"], check=True, capture_output=True, text=True).stdout
    return sorted(re.split(r"[ (|:]", d.strip())[0] for d in text.split(","))


def debian_sources():
    """Debian's own among this machine's sources, as lines of sources.list; other vendors' are not asked."""
    text = subprocess.run(["apt-get", "indextargets", "--format", "deb $(SITE) $(CODENAME) $(COMPONENT)", "Created-By: Packages",
                           "Origin: Debian"], check=True, capture_output=True, text=True).stdout
    return text, text.split()[2].split("-")[0]


def system(deb):
    """The folder of a system with what `deb` needs; made where it is not there."""
    packages = dependencies(deb)
    sources, release = debian_sources()
    key = hashlib.sha256(" ".join([release, *packages]).encode()).hexdigest()[:12]
    folder = BUILD / f"chroot-{key}"
    BUILD.mkdir(exist_ok=True)
    with open(BUILD / "chroot.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            making = folder.with_name(folder.name + ".making")
            shutil.rmtree(making, ignore_errors=True)
            # the unpacked files are not flushed to disk one by one, and pages that nobody reads here are left out
            r = subprocess.run(["mmdebstrap", "--quiet", "--mode=root", "--variant=essential", "--include=" + ",".join(packages),
                                "--dpkgopt=force-unsafe-io", "--dpkgopt=path-exclude=/usr/share/man/*",
                                "--dpkgopt=path-exclude=/usr/share/locale/*", "--dpkgopt=path-exclude=/usr/share/doc/*",
                                release, making, "-"], input=sources, capture_output=True, text=True, timeout=540)
            assert r.returncode == 0, r.stderr[-4000:]
            making.rename(folder)
    return folder


class Apart:
    """Processes, interfaces and mounts of our own. Commands are run there by .run(). It dies with its first process."""

    IDLE = "while :; do sleep 3600 & wait; done"  # and takes the exit codes of orphans
    INTO = ""  # a command that enters another root
    FIRST = f"/bin/sh -c '{IDLE}'"

    def __init__(self, bench, setup="mount -t proc proc /proc", *words, ahead=(), more=()):
        self.bench = bench
        script = f"mount --make-rprivate /\nip link set lo up\n{setup.strip()}\necho ready\ncd /\nexec"
        self.process = bench.run(*ahead, "unshare", *more, "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child", "sh", "-euc",
                                 f"{script} {self.INTO} {self.FIRST}", "sh", *words)
        self.process.wait_line("^ready$", stream="out")
        parent = self.process.pid
        self.init = int(Path(f"/proc/{parent}/task/{parent}/children").read_text())
        wait_for(lambda: Path(f"/proc/{self.init}/cmdline").read_text().startswith(self.FIRST.split()[0]), "its first process")

    def words(self, *words):
        return ["nsenter", "--target", self.init, "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--root", "--wdns=/", *words]

    def run(self, *words, code=0, timeout=60, **kw):
        """Output and errors of a command that has to end with `code`."""
        with tempfile.TemporaryFile("w+") as f:  # not a pipe: a daemon that it starts may keep it open
            r = subprocess.run(list(map(str, self.words(*words))), stdin=subprocess.DEVNULL, stdout=f, stderr=f, timeout=timeout,
                               env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}, **kw)
            f.seek(0)
            text = f.read()
        assert r.returncode == code, f"{words}: {r.returncode}, not {code}\n{text}"
        return text

    def start(self, *words):
        """A program in the background, as the bench's run()."""
        return self.bench.run(*self.words(*words))

    def path(self, name):
        """A file in it, from outside."""
        return Path("/proc", str(self.init), "root", name.lstrip("/"))

    def processes(self, pattern):
        """Processes of this machine whose name matches: pid inside → name."""
        found = {}
        for line in self.run("sh", "-c", "grep -H . /proc/[0-9]*/comm 2>/dev/null || :").splitlines():
            path, _, name = line.partition(":")
            if re.fullmatch(pattern, name):
                found[int(path.split("/")[2])] = name
        return found

    def user_of(self, pid):
        return self.run("stat", "-c", "%U", f"/proc/{pid}").strip()

    def end(self):
        self.process.kill()
        wait_for(lambda: not os.path.exists(f"/proc/{self.init}"), "all of its processes to be gone")


class Machine(Apart):
    """A Debian of our own with what `deb` needs."""

    INTO = 'chroot "$1/tree"'

    def __init__(self, bench, deb):
        folder = bench.path / "machine"
        folder.mkdir()
        super().__init__(bench, SETUP, folder, system(deb))

    def copy(self, file):
        """Lays it into its /tmp; its name there."""
        name = f"/tmp/{Path(file).name}"
        shutil.copy(file, self.path(name))
        return name

    def files(self, *folders):
        return set(self.run("find", *folders, "-xdev", "!", "-type", "d").splitlines())


# This machine's own files under an overlay, with /dev, /run and a group of processes of our own, as systemd wants them.
SYSTEMD = """
mount -t tmpfs none "$1"
mkdir "$1/changes" "$1/work" "$1/tree"
mount -t overlay none -o "lowerdir=/,upperdir=$1/changes,workdir=$1/work" "$1/tree"
cd "$1/tree"
mount -t proc proc proc
mount -t tmpfs none run
mount -t tmpfs none tmp
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 none sys/fs/cgroup
mount -t tmpfs -o mode=755 none dev
for device in "null 3" "zero 5" "full 7" "random 8" "urandom 9"; do
	mknod -m 666 "dev/${device% *}" c 1 "${device#* }"
done
mknod -m 666 dev/tty c 5 0
ln -s /proc/self/fd dev/fd
ln -s pts/ptmx dev/ptmx
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
mount -t tmpfs none dev/shm
printf '[Unit]\\nDescription=nothing of the machine, only what a test starts\\n' >etc/systemd/system/test.target
pivot_root . mnt
umount -l /mnt
exec </dev/null
"""


class Systemd(Apart):
    """A systemd that runs nothing but what a test starts."""

    INTO = 'env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot .'
    FIRST = "/lib/systemd/systemd --log-target=null --unit=test.target"
    COUNT = itertools.count() # one that could not be ended leaves its group behind

    def __init__(self, bench):
        folder = bench.path / "systemd"
        folder.mkdir()
        groups = Path("/sys/fs/cgroup")
        self.group = (groups / "unified" if (groups / "unified").is_dir() else groups) / f"millrace-{os.getpid()}-{next(self.COUNT)}"
        self.group.mkdir()
        try:
            super().__init__(bench, SYSTEMD, folder, ahead=["sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"', self.group], more=["--cgroup"])
            wait_for(lambda: self.path("/run/systemd/private").exists(), "systemd")
        except BaseException:
            self.end()
            raise

    def end(self):
        if hasattr(self, "init"):
            super().end()
        for folder in sorted([self.group, *self.group.rglob("*/")], reverse=True):
            wait_for(lambda: not (folder / "cgroup.procs").read_text(), f"{folder} to be empty")
            folder.rmdir()
