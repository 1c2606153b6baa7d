#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""What foreign consumers see in a topic: kcat and Java's console consumer, whatever the bytes."""

import collections
import re
import secrets
import subprocess

Message = collections.namedtuple("Message", "partition offset key value headers timestamp")


class ReadError(Exception):
    pass


def headers_parse(raw):
    """kcat writes name=value,name=value and escapes nothing: exact as long as no value holds a comma that a `name=`
    follows."""
    if not raw:
        return []
    pairs = [p.partition(b"=") for p in re.split(rb",(?=[^,=]+=)", raw)]
    return [(name.decode(errors="replace"), value) for name, _, value in pairs]


def kcat_read(bootstrap, topic, partition=None, start="beginning", count=None, properties=None, until_end=True):
    """Generator of Message; key and value are bytes or None, headers a list of (name, bytes). Lengths stand before
    key and value, and a random word ends the headers, so that binary content cannot be mistaken for structure."""
    end = secrets.token_hex(12)
    cmd = ["kcat", "-C", "-q", "-b", bootstrap, "-t", topic, "-o", str(start), "-X", "fetch.wait.max.ms=50"]
    cmd += ["-f", f"%p %o %T %K %S \\n%k%s%h{end}\\n"]
    cmd += ["-e"] if until_end else []
    cmd += ["-p", str(partition)] if partition is not None else []
    cmd += ["-c", str(count)] if count is not None else []
    for k, v in (properties or {}).items():
        cmd += ["-X", f"{k}={v}"]
    end = end.encode() + b"\n"
    with subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          bufsize=1 << 20) as kcat:
        out = kcat.stdout
        try:
            while head := out.readline():
                number, offset, stamp, key_size, value_size = map(int, head.split())
                key = None if key_size < 0 else out.read(key_size)
                value = None if value_size < 0 else out.read(value_size)
                headers = out.readline()
                while not headers.endswith(end):
                    more = out.readline()
                    if not more:
                        raise ReadError(f"kcat ended in the middle of {topic}[{number}] offset {offset}")
                    headers += more
                yield Message(number, offset, key, value, headers_parse(headers[:-len(end)]), stamp)
        except BaseException:
            kcat.kill()
            raise
        error = kcat.stderr.read().decode(errors="replace")
        if kcat.wait() != 0:
            raise ReadError(f"kcat: {error.strip()}")


def java_read(java, bootstrap, topic, count, timeout=30.0):
    """`count` messages of the topic from Java's console consumer, as (key, value); None where there is none."""
    if count == 0:
        return []
    word = secrets.token_hex(8)
    between, end, null = f"<{word}>", f"<{word}!>", f"<{word}?>"
    options = {"print.key": "true", "key.separator": between, "line.separator": end, "null.literal": null}
    cmd = java("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", bootstrap, "--topic", topic,
               "--from-beginning", "--max-messages", str(count), "--timeout-ms", str(int(timeout * 1000)))
    for k, v in options.items():
        cmd += ["--formatter-property", f"{k}={v}"]
    done = subprocess.run(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    found = [tuple(None if part == null.encode() else part for part in record.split(between.encode(), 1))
             for record in done.stdout.split(end.encode())[:-1]]
    if done.returncode != 0 or len(found) != count:
        raise ReadError(f"Java's console consumer read {len(found)} of {count} messages of {topic}:\n"
                        f"{done.stderr.decode(errors='replace')[-2000:]}")
    return found


def java_end_offsets(java, bootstrap, topic):
    """{partition: offset} from Kafka's own GetOffsetShell."""
    cmd = java("org.apache.kafka.tools.GetOffsetShell", "--bootstrap-server", bootstrap, "--topic", topic)
    done = subprocess.run(cmd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReadError(f"GetOffsetShell: {done.stderr[-2000:]}")
    return {int(p): int(o) for _, p, o in (line.rsplit(":", 2) for line in done.stdout.split())}
