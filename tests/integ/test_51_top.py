# SPDX-License-Identifier: MIT
"""top and drops --watch on a terminal: a pseudo-terminal and an emulator (pyte) that shows what a person would see; keys,
sizes, signals, and that the terminal is given back as it was."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time

import pyte
import pytest
from conftest import BUILD, wait_for
from faults import Sender, wait_settled, wait_stopped, wait_up
from kafka_peers import Mock, needs_kafka

pytestmark = pytest.mark.usefixtures("apart")
ALTERNATE = "\033[?1049h", "\033[?1049l"


class Terminal:
    """A program on a terminal of its own. pyte has no alternate screen, so what was sent is kept as well."""

    def __init__(self, bench, *words, lines=24, columns=132):
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.sent = b""
        self.lock = threading.Lock()
        self.main, self.side = pty.openpty()
        self.size(lines, columns)
        self.before = termios.tcgetattr(self.side)
        self.p = subprocess.Popen([str(w) for w in words], stdin=self.side, stdout=self.side, stderr=self.side, cwd=bench.path,
                                  env={**os.environ, "TERM": "xterm"}, start_new_session=True,
                                  preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.is_done = False
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()
        self.err = []
        bench.started.append(self)

    def _read(self):
        while not self.is_done:
            if not select.select([self.main], [], [], 0.05)[0]:
                continue
            try:
                data = os.read(self.main, 65536)
            except OSError:
                return
            with self.lock:
                self.sent += data
                self.stream.feed(data)

    def size(self, lines, columns):
        fcntl.ioctl(self.side, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        with self.lock:
            self.screen.resize(lines, columns)

    def display(self):
        with self.lock:
            return [line.rstrip() for line in self.screen.display]

    def text(self):
        return "\n".join(self.display())

    def wait_text(self, pattern, timeout=10.0):
        return wait_for(lambda: re.search(pattern, self.text(), re.M), f"{pattern!r} on the screen:\n{self.text()}", timeout)

    def press(self, keys):
        os.write(self.main, keys.encode())

    def wait(self, timeout=10):
        return self.p.wait(timeout)

    def was_given_back(self):
        """As it was, left the alternate screen as often as entered, the cursor to be seen."""
        text = wait_for(lambda: (lambda t: t if t.count(ALTERNATE[0]) == t.count(ALTERNATE[1]) else None)(
            self.sent.decode()), "the alternate screen to be left")
        return (text.count(ALTERNATE[0]) >= 1 and text.rfind("\033[?25h") > text.rfind("\033[?25l") and
                termios.tcgetattr(self.side) == self.before)

    def kill(self):
        if self.p.poll() is None:
            self.p.kill()
            self.p.wait()
        self.is_done = True
        self.thread.join(2)
        os.close(self.main)
        os.close(self.side)


def top(bench, millrace, *words, **kw):
    return Terminal(bench, BUILD / "millracectl", "-s", millrace.control, "top", *words, **kw)


def start(bench, backends=2, **kw):
    sink = bench.sink(ports=backends)
    millrace = bench.millrace(backends=sink.addresses, listen=("udp",), **kw)
    wait_up(millrace, backends)
    return sink, millrace


def test_rates_pause_and_quit(bench):
    sink, millrace = start(bench)
    sender = Sender(bench, "--one", "--pps", 2000, "--time", "60s", "--sources", 16)
    t = top(bench, millrace)
    pids = millrace.worker_pids()
    t.wait_text(rf"^millrace \S+, pid {millrace.pid}: [12]\d\d\d datagrams/s, [12]\d\d\d lines/s in; 0 datagrams/s dropped")
    t.wait_text(r"^worker +state +pid +cpu +packets/s +lines/s +bytes/s +drops/s +socket queue")
    for slot, pid in pids.items():
        t.wait_text(rf"^{slot} +ready +{pid} +\d+ % +\d+ +\d+ +[\d.]+ \w+ +0 +")
    for address in sink.addresses:
        t.wait_text(rf"^backends/{address} +up +\d+ +\d+ +[\d.]+ \w+ +\d+ +\d+ +0$")
    t.press("p")
    t.wait_text("PAUSED")
    still = t.display()
    sent = len(t.sent)
    until = time.monotonic() + 2.2
    wait_for(lambda: time.monotonic() > until, "two seconds and more")
    assert t.display() == still and len(t.sent) == sent, "it is paused"
    t.press(" ")
    wait_for(lambda: "PAUSED" not in t.text(), "it to go on")
    wait_for(lambda: t.display()[2:] != still[2:], "the next second")
    t.press("q")
    assert t.wait() == 0 and t.was_given_back()
    sender.stop()
    wait_settled(millrace)


def test_what_goes_wrong_is_seen(bench):
    """A backend that is away, a worker that is stopped, a buffer that overflows."""
    sink, millrace = start(bench, workers=1)
    t = top(bench, millrace, columns=140)
    t.wait_text(r"^0 +ready ")
    pid = millrace.worker_pids()[0]
    os.kill(pid, signal.SIGSTOP)
    wait_stopped([pid])
    t.wait_text(rf"^0 +stopped +{pid} +0 %")
    bench.replay("--count", 2000, "--pps", 1000)
    t.wait_text(rf"^0 +stopped +{pid} .* [\d.]+ [KM]iB +0$")
    os.kill(pid, signal.SIGCONT)
    wait_settled(millrace, 2000)
    address = sink.addresses[0]
    sink.kill()
    t.wait_text(rf"^backends/{address} +down [\d.]+ m?s")
    t.press("Q")
    assert t.wait() == 0 and t.was_given_back()


def test_resize_and_narrow(bench):
    sink, millrace = start(bench, backends=30, workers=1)
    t = top(bench, millrace, lines=60, columns=120)
    t.wait_text(r"^backends/\S+ +up(.|\n)*^backends/\S+ +up")
    assert t.text().count("backends/") == 30 and "more" not in t.text()
    t.size(15, 50)
    t.p.send_signal(signal.SIGWINCH)
    t.wait_text(r"^and \d+ more ")
    shown, more = t.text().count("backends/"), int(re.search(r"^and (\d+) more", t.text(), re.M).group(1))
    assert shown + more == 30 and len(t.display()[0]) == 50
    assert t.display()[0].startswith("millrace ")
    for lines, columns in ((1, 1), (2, 10), (5, 20), (3, 200), (60, 120)):
        t.size(lines, columns)
        before = len(t.sent)
        t.p.send_signal(signal.SIGWINCH)
        wait_for(lambda: len(t.sent) > before, "it to be drawn anew")
        wait_for(lambda: t.display()[0].startswith("millrace "[:columns]), "the head of the screen")
    t.wait_text(r"^backends/\S+ +up")
    t.press("q")
    assert t.wait() == 0 and t.was_given_back()


def test_columns_count_in_characters(bench):
    """No line is longer than the screen, so nothing wraps: each line that is drawn begins where it should."""
    sink, millrace = start(bench, backends=3)
    t = top(bench, millrace, lines=20, columns=30)
    t.wait_text(r"^backend ")
    assert sum(line.startswith("backends/") for line in t.display()) == 3
    assert [line for line in t.display() if line.startswith(("0 ", "1 "))] == t.display()[2:4]
    t.press("q")
    assert t.wait() == 0


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize("words", [("top",), ("drops", "--watch")])
def test_signals_give_the_terminal_back(bench, sig, words):
    sink, millrace = start(bench)
    t = Terminal(bench, BUILD / "millracectl", "-s", millrace.control, *words)
    t.wait_text(r"^millrace ")
    assert termios.tcgetattr(t.side) != t.before
    t.p.send_signal(sig)
    assert t.wait() == -sig and t.was_given_back()


def test_stop_and_continue(bench):
    """Ctrl-Z in a shell: the shell gets its terminal, and with fg top comes back."""
    sink, millrace = start(bench)
    t = Terminal(bench, "bash", "-c", 'set -m; "$@"; echo "left with $?"; read go; fg; echo "ended with $?"', "bash",
                 BUILD / "millracectl", "-s", millrace.control, "top")
    t.wait_text(r"^0 +ready ")
    t.press("\x1a")
    wait_for(lambda: f"left with {128 + signal.SIGTSTP}" in t.sent.decode(), "the shell to have the terminal")
    assert t.was_given_back()
    before = len(t.sent)
    t.press("\n")
    wait_for(lambda: ALTERNATE[0] in t.sent[before:].decode() and b"worker " in t.sent[before:], "it to take the screen again")
    t.press("q")
    assert t.wait() == 0 and t.was_given_back()
    wait_for(lambda: b"ended with 0" in t.sent, "the shell to say how it ended")


def test_ctrl_c(bench):
    sink, millrace = start(bench)
    t = top(bench, millrace)
    t.wait_text(r"^0 +ready ")
    t.press("\x03")
    assert t.wait() == -signal.SIGINT and t.was_given_back()


def test_ends_with_its_millrace(bench):
    sink, millrace = start(bench)
    t = top(bench, millrace)
    t.wait_text(r"^0 +ready ")
    millrace.finish()
    assert t.wait() == 0 and t.was_given_back()
    wait_for(lambda: b"millrace has ended; these were its last numbers." in t.sent.split(ALTERNATE[1].encode())[-1], "its last words")


def test_dumb_terminal_and_count(bench):
    """Not able to: plain lines. --count ends it on a terminal, too."""
    sink, millrace = start(bench)
    environ = dict(os.environ)
    os.environ["TERM"] = "dumb"
    try:
        t = Terminal(bench, "env", "TERM=dumb", BUILD / "millracectl", "-s", millrace.control, "top", "--count", 1)
    finally:
        os.environ.update(environ)
    assert t.wait() == 0
    t.wait_text(r"^worker ")
    assert b"\033" not in t.sent
    t = top(bench, millrace, "--count", 2)
    assert t.wait() == 0 and t.was_given_back()


@needs_kafka
def test_kafka_output(bench):
    from kafka_peers import conf
    mock = Mock(bench, "t:2")
    millrace = bench.millrace(conf=conf(mock, "t"))
    t = top(bench, millrace, columns=120)
    sender = Sender(bench, "--one", "--pps", 1000, "--time", "60s")
    t.wait_text(r"^\w+/t +up +\d{3,4} +\d{3,4} +[\d.]+ [KM]iB +\d+ +\d+ +0$", 20)
    sender.stop()
    t.press("q")
    assert t.wait() == 0
    wait_settled(millrace)


def test_drops_watch(bench):
    sink, millrace = start(bench)
    t = Terminal(bench, BUILD / "millracectl", "-s", millrace.control, "drops", "--watch", lines=50, columns=160)
    t.wait_text(r"^socket +datagrams +0 +0 +-")
    t.wait_text(r"^step .* in last \d+ s")
    bench.replay("--one", "--count", 700, "--pps", 2000)
    t.wait_text(r"^socket +datagrams +700 +0 +- +0 +-$")
    t.wait_text("^Nothing was lost.")
    t.press("q")
    assert t.wait() == 0 and t.was_given_back()
