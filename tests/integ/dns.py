# SPDX-License-Identifier: MIT
"""A name server that says what a test tells it, at the moment. For a network namespace of the test's own: port 53 of 127.0.0.53."""
import ipaddress
import socket
import struct
import threading
import time

A, AAAA = 1, 28


class NameServer:
    """.names: {"name": [addresses]}; a name that is not there does not exist. Stopped by the bench like a program."""

    HOST = "127.0.0.53"

    def __init__(self, bench, **names):
        self.names, self.asked, self.is_failing, self.late_s = dict(names), 0, False, 0.0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((self.HOST, 53))
        self._socket.settimeout(0.05)
        self._is_done = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        file = bench.path / "resolv.conf"
        file.write_text(f"nameserver {self.HOST}\n")
        self.prepare = f"mount --bind {file} /etc/resolv.conf"
        bench.started.append(self)

    def _run(self):
        while not self._is_done:
            try:
                query, sender = self._socket.recvfrom(2048)
            except TimeoutError:
                continue
            self.asked += 1
            time.sleep(self.late_s)
            self._socket.sendto(self._answer(query), sender)

    def _answer(self, query):
        at, labels = 12, []
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode())
            at += 1 + query[at]
        kind = struct.unpack(">H", query[at + 1:at + 3])[0]
        addresses = self.names.get(".".join(labels).lower())
        code = 2 if self.is_failing else 3 if addresses is None else 0
        records = b""
        packed = [ipaddress.ip_address(a).packed for a in addresses or () if not code]
        packed = [p for p in packed if len(p) == {A: 4, AAAA: 16}.get(kind)]
        for p in packed:
            records += struct.pack(">HHHIH", 0xc00c, kind, 1, 1, len(p)) + p
        return query[:2] + struct.pack(">HHHHH", 0x8180 | code, 1, len(packed), 0, 0) + query[12:at + 5] + records

    def kill(self):
        self._is_done = True
        self._thread.join()
        self._socket.close()
