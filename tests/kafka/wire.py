#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""As much of Kafka's protocol as a test needs to ask a cluster something without starting a JVM or a client library:
who is there, which topics, create one, delete one, where does it end. A JVM takes a second to start for each such
question; this takes milliseconds. It does not produce or consume: that is for real clients.

Versions are the last ones before the "flexible" encoding, which Kafka 4 still speaks."""

import socket
import struct

LIST_OFFSETS, METADATA, CREATE_TOPICS, DELETE_TOPICS = 2, 3, 19, 20
ERRORS = {0: "NO_ERROR", 3: "UNKNOWN_TOPIC_OR_PARTITION", 5: "LEADER_NOT_AVAILABLE", 6: "NOT_LEADER_OR_FOLLOWER",
          7: "REQUEST_TIMED_OUT", 36: "TOPIC_ALREADY_EXISTS", 38: "INVALID_REPLICATION_FACTOR",
          40: "INVALID_CONFIG", 41: "NOT_CONTROLLER"}


class WireError(Exception):
    """A broker answered with an error, or not at all."""

    def __init__(self, what, code=None, message=None):
        super().__init__(f"{what}: {ERRORS.get(code, f'error {code}')}" + (f" ({message})" if message else "")
                         if code is not None else what)
        self.code = code


def string(s):
    if s is None:
        return struct.pack(">h", -1)
    raw = s.encode()
    return struct.pack(">h", len(raw)) + raw


def array(items):
    items = list(items)
    return struct.pack(">i", len(items)) + b"".join(items)


class Answer:
    """Reads the fields of one response in their order."""

    def __init__(self, raw):
        self.raw, self.at = raw, 0

    def take(self, fmt):
        (v,) = struct.unpack_from(">" + fmt, self.raw, self.at)
        self.at += struct.calcsize(">" + fmt)
        return v

    def string(self):
        n = self.take("h")
        if n < 0:
            return None
        self.at += n
        return self.raw[self.at - n:self.at].decode()

    def array(self, item):
        return [item() for _ in range(max(0, self.take("i")))]


def request(address, api, version, body, timeout=5.0):
    """One request on a connection of its own; address is (host, port). OSError or WireError when there is no answer."""
    with socket.create_connection(address, timeout) as s:
        s.settimeout(timeout)
        head = struct.pack(">hhi", api, version, 1) + string("millrace-test")
        s.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        with s.makefile("rb") as f:
            size = f.read(4)
            if len(size) < 4:
                raise WireError("the broker closed the connection")
            raw = f.read(struct.unpack(">i", size)[0])
    return Answer(raw[4:])


def metadata(address, topics=None, timeout=5.0):
    """{"brokers": {id: (host, port)}, "controller": id, "topics": {name: {"error": n, "partitions": {p: {"leader",
    "replicas", "isr"}}}}}; topics=None asks for all. Never creates a topic."""
    body = (struct.pack(">i", -1) if topics is None else array(map(string, topics))) + b"\0"
    a = request(address, METADATA, 5, body, timeout)
    a.take("i")

    def broker():
        found = a.take("i"), (a.string(), a.take("i"))
        a.string()
        return found

    def partition():
        error, number, leader = a.take("h"), a.take("i"), a.take("i")
        replicas, isr = a.array(lambda: a.take("i")), a.array(lambda: a.take("i"))
        a.array(lambda: a.take("i"))
        return number, {"error": error, "leader": leader, "replicas": replicas, "isr": isr}

    def topic():
        error, name, _internal = a.take("h"), a.string(), a.take("b")
        return name, {"error": error, "partitions": dict(a.array(partition))}

    brokers = dict(a.array(broker))
    a.string()
    controller = a.take("i")
    return {"brokers": brokers, "controller": controller, "topics": dict(a.array(topic))}


def create_topics(address, topics, timeout=15.0):
    """topics: (name, partitions, replication, {config: value}). Any broker passes it on to the controller.
    Returns {name: (error code, message)}."""
    body = array(string(n) + struct.pack(">ih", p, r) + array([]) +
                 array(string(k) + string(str(v)) for k, v in configs.items()) for n, p, r, configs in topics)
    a = request(address, CREATE_TOPICS, 4, body + struct.pack(">ib", int(timeout * 1000), 0), timeout + 1)
    a.take("i")
    return dict(a.array(lambda: (a.string(), (a.take("h"), a.string()))))


def delete_topics(address, names, timeout=15.0):
    body = array(map(string, names)) + struct.pack(">i", int(timeout * 1000))
    a = request(address, DELETE_TOPICS, 3, body, timeout + 1)
    a.take("i")
    return dict(a.array(lambda: (a.string(), a.take("h"))))


def list_offsets(address, topic, partitions, when=-1, timeout=5.0):
    """{partition: (error code, offset)} from the broker that leads these partitions; when: -1 the end, -2 the start."""
    body = struct.pack(">ib", -1, 0) + array([string(topic) + array(
        struct.pack(">iiq", p, -1, when) for p in partitions)])
    a = request(address, LIST_OFFSETS, 5, body, timeout)
    a.take("i")

    def partition():
        number, error, _stamp, offset, _epoch = a.take("i"), a.take("h"), a.take("q"), a.take("q"), a.take("i")
        return number, (error, offset)

    return dict(pair for _, found in a.array(lambda: (a.string(), a.array(partition))) for pair in found)
