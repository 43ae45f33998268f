"""Mutations of valid bytes: a few seeded mistakes."""

import random
from collections.abc import Sequence

from paceline.coordinator.proto import cluster_pb2 as pb

_LONGEST = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # the largest number, as protobuf writes it


def mutated(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """One of the samples, with one to four mistakes in it."""
    data = bytearray(rng.choice(samples))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _spoil(rng, data, samples)
    return bytes(data)


def _spoil(rng: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    place = rng.randrange(len(data) + 1)
    end = min(len(data), place + rng.choice((1, 1, 2, 8, 64)))
    match rng.randrange(8):
        case 0 | 1 if place < len(data):
            data[place] ^= 1 << rng.randrange(8)
        case 2 | 3 if place < len(data):
            data[place] = rng.choice((0, 1, 2, 127, 128, 255, rng.randrange(256)))
        case 4:
            data[place:place] = rng.choice((_LONGEST, rng.randbytes(rng.randrange(1, 9))))
        case 5:
            del data[place:end]
        case 6:
            data[place:place] = data[place:end]  # said twice
        case _:
            other = rng.choice(samples)
            start = rng.randrange(len(other) + 1)
            data[place:end] = other[start : start + rng.choice((1, 4, 32))]


_NUMBERS = ("kind", "sender", "to", "term", "index", "log_term", "commit", "hint", "hint_term", "round")
_VALUES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1 << 31, (1 << 32) + 2, 1 << 56, (1 << 63) - 1, (1 << 64) - 1)


def misfilled(rng: random.Random, samples: Sequence[pb.RaftMessage]) -> pb.RaftMessage:
    """A readable message, with one to four wrong values in it."""
    message = pb.RaftMessage()
    message.CopyFrom(rng.choice(samples))
    for _ in range(rng.choice((1, 1, 2, 4))):
        _misfill(rng, message)
    return message


def _misfill(rng: random.Random, message: pb.RaftMessage) -> None:
    match rng.randrange(6):
        case 0:
            name = rng.choice(("rejected", "is_transfer"))
            setattr(message, name, not getattr(message, name))
        case 1 if message.entries:
            entry = rng.choice(message.entries)
            setattr(entry, rng.choice(("index", "term")), rng.choice(_VALUES))
        case 2 if message.entries:
            entry = rng.choice(message.entries)
            entry.kind = rng.randrange(4)
            entry.data = rng.choice((entry.data, b"", b"[" * 5000, b'{"voters":[9],"learners":[]}', b"\xff"))
        case _:
            name = rng.choice(_NUMBERS)
            setattr(message, name, rng.choice(_VALUES) % (1 << 32 if name == "kind" else 1 << 64))
