# SPDX-License-Identifier: MIT
"""Ports that cannot be had, permissions, receive buffers: one sentence that says what to do."""
import fcntl
import os
import shutil
import signal
import socket
import tempfile
from pathlib import Path

import pytest

from conftest import free_port, wait_for
from peers import NOBODY, Collector, config, counters, needs_root, send_datagrams, statsite

AS_NOBODY = {"user": NOBODY, "group": NOBODY, "extra_groups": []}


def refused(millrace, *says):
    """It ends with 1 and one ERROR line that holds all these words, before any worker was started."""
    millrace.expected_exit = 1
    millrace.expected_errors = [".*"]
    assert millrace.wait() == 1
    errors = [line for line in millrace.err if " ERROR " in line]
    assert len(errors) == 1 and len(millrace.err) == 1, millrace.err
    assert all(s in errors[0] for s in says), errors[0]
    return errors[0]


@pytest.fixture
def folder_of_nobody():
    folder = Path(tempfile.mkdtemp())
    os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("transport,kind", [("udp", socket.SOCK_DGRAM), ("tcp", socket.SOCK_STREAM)])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_port_that_another_program_has(bench, transport, kind, workers):
    with socket.socket(socket.AF_INET, kind) as s:
        s.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            s.listen()
        bench.port = s.getsockname()[1]
        millrace = bench.millrace(backends=["127.0.0.1:1"], listen=(transport,), workers=workers, wait=False)
        refused(millrace, f"{transport} 127.0.0.1:{bench.port}", "in use", "ss -lnp", "another port")
        assert not millrace.control.exists()


@pytest.mark.parametrize("transport", ["udp", "tcp"])
@pytest.mark.parametrize("spread", ["flow", "packet", "shared"])
def test_a_second_millrace_on_the_same_port(bench, transport, spread):
    """Also with SO_REUSEPORT groups, which the kernel would let the same user share: the first one keeps every datagram."""
    backend = Collector(bench)
    bench.port = free_port()
    options = {"spread": spread} if transport == "udp" else {}
    text = config({"in": {"type": transport, "bind": f"127.0.0.1:{bench.port}", "to": "out", **options}},
                  {"out": statsite(backend.addresses)}, workers=2)
    first = bench.millrace(conf=text)
    file = bench.path / "second.yaml"
    file.write_text(text)
    second = bench.millrace("-c", file, "--control", bench.path / "second.sock", listen=(), wait=False)
    refused(second, f"{transport} 127.0.0.1:{bench.port}", "in use")
    assert not (bench.path / "second.sock").exists()
    if transport == "udp":
        for i in range(200):
            send_datagrams(bench, "udp", b"a.%d:1|c" % i)
        assert len(backend.wait_lines(200)) == 200
        assert counters(first)["received_datagrams"] == 200


@pytest.mark.parametrize("transport", ["unix", "unixgram"])
def test_socket_files(bench, transport):
    """One in use is refused and left alone; a stale one is replaced; a file that is no socket is left alone."""
    backend = Collector(bench)
    path = bench.path / "in.sock"
    first = bench.millrace("--listen", f"{transport}://{path}", backends=backend.addresses, listen=())
    second = bench.millrace(
    "--listen",
    f"{transport}://{path}",
    "--control",
    bench.path /
    "second.sock",
    backends=backend.addresses,
    listen=(),
     wait=False)
    refused(second, str(path), "in use")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM if transport == "unix" else socket.SOCK_DGRAM) as s:
        s.connect(str(path))
        s.send(b"a:1|c\n")
    assert backend.wait_lines(1) == [b"a:1|c"]
    first.finish()
    kind = socket.SOCK_STREAM if transport == "unix" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_UNIX, kind) as s:
        s.bind(str(path))  # and closed without unlink: stale
    bench.millrace("--listen", f"{transport}://{path}", backends=backend.addresses, listen=()).finish()
    path.write_text("no socket")
    third = bench.millrace("--listen", f"{transport}://{path}", backends=backend.addresses, listen=(), wait=False)
    refused(third, str(path), "no socket", "another path")
    assert path.read_text() == "no socket"


@pytest.mark.parametrize("transport", ["udp", "unix", "unixgram"])
def test_four_that_start_at_once(bench, transport):
    """One of them has the address, the others say so: nobody slips in between another's look and its bind."""
    from conftest import BUILD
    path = bench.path / "in.sock"
    url = f"udp://127.0.0.1:{free_port()}" if transport == "udp" else f"{transport}://{path}"
    gate = bench.path / "gate"
    for _ in range(10):
        with open(gate, "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            four = [bench.run("flock", "-s", "-F", gate, BUILD / "millrace", "--workers", 2, "--control", "", "--listen", url,
                              "--backend", "127.0.0.1:1:udp") for _ in range(4)]
            wait_for(lambda: all(f" {m.pid} " in Path("/proc/locks").read_text() for m in four), "all to stand at the gate")
        ended = wait_for(lambda: (lambda e: e if len(e) >= 3 else None)([m for m in four if m.p.poll() is not None]), "three to end")
        assert len(ended) == 3 and all(m.wait() == 1 and " in use by " in m.err[-1] for m in ended), [m.err for m in four]
        (one,) = [m for m in four if m not in ended]
        one.wait_line("millrace is serving with 2 workers")
        if transport != "udp":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM if transport == "unix" else socket.SOCK_DGRAM) as s:
                s.connect(str(path))
        os.kill(one.pid, signal.SIGKILL)  # what it leaves behind is stale
        one.wait()


def test_a_second_millrace_on_the_same_control_socket(bench):
    backend = Collector(bench)
    first = bench.millrace(backends=backend.addresses)
    port, bench.port = bench.port, free_port()
    second = bench.millrace(backends=backend.addresses, wait=False)
    refused(second, str(first.control), "in use")
    bench.port = port
    first.check()


@pytest.mark.parametrize("address,says",
    [("192.0.2.1:8125",
    "no such address"),
    ("no-such-host.invalid:8125",
    "no-such-host.invalid"),
    ("[2001:db8::1]:8125",
     "no such address")])
@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_addresses_that_are_not_ours(bench, transport, address, says):
    millrace = bench.millrace("--listen", f"{transport}://{address}", backends=["127.0.0.1:1"], listen=(), wait=False)
    refused(millrace, address, says)


def test_a_folder_that_does_not_exist(bench):
    path = bench.path / "no" / "in.sock"
    refused(bench.millrace("--listen", f"unix://{path}", backends=["127.0.0.1:1"], listen=(), wait=False), str(path), "folder")


@needs_root
@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_a_port_below_1024_without_privileges(folder_of_nobody, bench, transport):
    """In a network namespace of its own, where such ports are privileged whatever the host says."""
    from conftest import BUILD
    process = bench.run(
    "unshare",
    "-n",
    "setpriv",
    f"--reuid={NOBODY}",
    f"--regid={NOBODY}",
    "--clear-groups",
    BUILD /
    "millrace",
    "--listen",
    f"{transport}://:80",
    "--backend",
    "127.0.0.1:1",
    "--control",
    folder_of_nobody /
     "c.sock")
    assert process.wait() == 1
    assert len(process.err) == 1
    assert all(s in process.err[0] for s in (" ERROR ", f"{transport} [::]:80", "permission denied", "CAP_NET_BIND_SERVICE"))


@needs_root
def test_without_privileges_above_1023(folder_of_nobody, bench):
    """All of the main job as nobody: UDP, TCP, unix, control socket."""
    backend = Collector(bench)
    control = folder_of_nobody / "control.sock"
    millrace = bench.millrace(
    "--control",
    control,
    "--listen",
    f"unix://{folder_of_nobody}/in.sock",
    backends=backend.addresses,
     **AS_NOBODY)
    millrace.control = control
    assert os.stat(f"/proc/{millrace.worker_pids()[0]}").st_uid == NOBODY
    send_datagrams(bench, "udp", b"a:1|c")
    with socket.create_connection(("127.0.0.1", bench.port)) as s, socket.socket(socket.AF_UNIX) as u:
        s.sendall(b"b:1|c\n")
        u.connect(f"{folder_of_nobody}/in.sock")
        u.sendall(b"c:1|c\n")
    assert sorted(backend.wait_lines(3)) == [b"a:1|c", b"b:1|c", b"c:1|c"]
    assert millrace.terminate() == 0
    assert not control.exists()


@needs_root
def test_an_impossible_receive_buffer_is_a_warning(folder_of_nobody, bench):
    """The kernel gives nobody at most net.core.rmem_max: it listens all the same and says what to set, once an endpoint."""
    limit = int(Path("/proc/sys/net/core/rmem_max").read_text())
    if limit >= 1 << 30:
        pytest.skip("net.core.rmem_max is so high that no buffer is impossible")
    backend = Collector(bench)
    millrace = bench.millrace("--receive-buffer", "1GiB", "--control", folder_of_nobody / "c.sock",
                              backends=backend.addresses, workers=4, listen=("udp",), **AS_NOBODY)
    millrace.control = folder_of_nobody / "c.sock"
    warnings = [line for line in millrace.err if "rmem_max" in line]
    assert len(warnings) == 1 and " WARN " in warnings[0]
    assert f"sysctl net.core.rmem_max={1 << 30}" in warnings[0] and "asked for 1 GiB" in warnings[0], warnings
    send_datagrams(bench, "udp", b"a:1|c")
    assert backend.wait_lines(1) == [b"a:1|c"]
    endpoints = millrace.status()["endpoints"]
    assert len(endpoints) == 4
    assert {(e["receive_buffer_bytes"], e["asked_buffer_bytes"]) for e in endpoints} == {(limit, 1 << 30)}


@needs_root
def test_root_gets_what_it_asks_for(bench):
    """SO_RCVBUFFORCE: above net.core.rmem_max, without a warning."""
    limit = int(Path("/proc/sys/net/core/rmem_max").read_text())
    backend = Collector(bench)
    millrace = bench.millrace("--receive-buffer", 2 * limit, backends=backend.addresses, listen=("udp",))
    assert {e["receive_buffer_bytes"] for e in millrace.status()["endpoints"]} == {2 * limit}
    assert not [line for line in millrace.err if "rmem_max" in line]


def test_the_port_is_free_again_at_once(bench):
    """With connections in TIME_WAIT: three lives on the same port."""
    backend = Collector(bench)
    for life in range(3):
        millrace = bench.millrace(backends=backend.addresses)
        with socket.create_connection(("127.0.0.1", bench.port)) as s:
            s.sendall(b"life.%d:1|c\n" % life)
            backend.wait_lines(life + 1)
        wait_for(lambda: all(i["open_connections"] == 0 for i in millrace.status()["inputs"]), "it to be closed")
        millrace.finish()


def test_all_addresses_of_a_name(bench):
    """`localhost` is what the system says it is: each of its addresses is bound, and the log has them in numbers."""
    backend = Collector(bench)
    bench.port = free_port()
    known = {info[4][0] for info in socket.getaddrinfo("localhost", bench.port, type=socket.SOCK_DGRAM)}
    millrace = bench.millrace(conf=config({"in": {"type": "udp", "bind": f"localhost:{bench.port}", "to": "out"}},
                                          {"out": statsite(backend.addresses)}, workers=2))
    for address in known:
        shown = f"[{address}]" if ":" in address else address
        assert any(f"listening on udp {shown}:{bench.port} " in line for line in millrace.err), millrace.err
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.sendto(b"from.%s:1|c" % address.replace(":", "-").encode(), (address, bench.port))
    assert len(backend.wait_lines(len(known))) == len(known)


@pytest.mark.parametrize("transport", ["udp", "tcp"])
@pytest.mark.parametrize("first,second", [("0.0.0.0", "[::]"), ("[::]", "0.0.0.0")])
def test_both_families(bench, transport, first, second):
    """[::] alone takes IPv4, too; beside 0.0.0.0 it leaves IPv4 to that one."""
    backend = Collector(bench)
    bench.port = free_port()
    bench.millrace(conf=config({"in": {"type": transport, "bind": [f"{first}:{bench.port}", f"{second}:{bench.port}"],
                                       "to": "out"}}, {"out": statsite(backend.addresses)}, workers=2))
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family, socket.SOCK_DGRAM if transport == "udp" else socket.SOCK_STREAM) as s:
            s.connect((address, bench.port))
            s.send(b"a:1|c\n")
    assert len(backend.wait_lines(2)) == 2


@pytest.mark.parametrize("transport", ["unix", "unixgram"])
def test_a_socket_file_that_somebody_removed(bench, transport):
    """It is noticed, said once, and bound anew; what has replaced it at the end is left alone."""
    backend = Collector(bench)
    path = bench.path / "in.sock"
    kind = socket.SOCK_STREAM if transport == "unix" else socket.SOCK_DGRAM
    millrace = bench.millrace(conf=config({"in": {"type": transport, "bind": str(path), "to": "out"}},
                                          {"out": statsite(backend.addresses)}, workers=2))
    with socket.socket(socket.AF_UNIX, kind) as before:
        before.connect(str(path))
        before.send(b"a.1:1|c\n")
        backend.wait_lines(1)
        path.unlink()
        millrace.wait_line("reload: 0 changes, applied by new endpoints")
        before.send(b"a.2:1|c\n") if transport == "unix" else None
    with socket.socket(socket.AF_UNIX, kind) as after:
        after.connect(str(path))
        after.send(b"a.3:1|c\n")
    assert len(backend.wait_lines(3 if transport == "unix" else 2)) >= 2
    assert sum("was removed or replaced" in line for line in millrace.err) == 1
    path.unlink()
    path.write_text("somebody else's")
    millrace.wait_line("reload: .*something that is no socket has this path")
    millrace.expected_errors = ["reload: "]
    millrace.finish()
    assert path.read_text() == "somebody else's"
