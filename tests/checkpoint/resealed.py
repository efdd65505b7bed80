"""Checkpoints with other contents, and the digest that goes with these."""

import hashlib
import json


def resealed(data, change_header=lambda header: None, change_body=lambda body: body):
    """A checkpoint with its header and the bytes of its leaves changed."""
    first, line, body = data.split(b"\n", 2)
    header = json.loads(line)
    header = change_header(header) or header
    return sealed(first, json.dumps(header).encode() + b"\n" + change_body(body))


def sealed(first, rest):
    start = first[:-64]
    digest = hashlib.sha256(start + rest).hexdigest().encode()
    return start + digest + b"\n" + rest
