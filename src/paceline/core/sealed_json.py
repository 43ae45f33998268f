"""Sealed JSON: a small file that shows whether one of its bytes was changed.

A sealed file is `{"sha256": …, "facts": {…}}` in one fixed spelling. It is
read by parsing it, writing it again and comparing: a changed byte changes
either the values, and so the hash, or the spelling.
"""

import hashlib
import json
from typing import Any

Facts = dict[str, Any]  # Any: JSON


def seal(facts: Facts, before: bytes | memoryview = b"") -> tuple[bytes, str]:
    """(the sealed file, its hash), over `before`, which is stored elsewhere, and the facts."""
    # Through JSON and back first: tuples become lists there, and what counts is what will be read.
    facts = json.loads(json.dumps(facts))
    sha256 = checksum(before, facts)
    return _spell(sha256, facts), sha256


def unseal(raw: bytes, before: bytes | memoryview = b"") -> tuple[Facts, str]:
    """(facts, hash); ValueError, KeyError or TypeError if any byte differs from what was written."""
    sealed = json.loads(raw)
    facts = sealed["facts"]
    sha256 = sealed["sha256"]
    if not isinstance(facts, dict) or _spell(sha256, facts) != raw:
        raise ValueError("it is not spelt as it was written")
    if checksum(before, facts) != sha256:
        raise ValueError("it does not match its checksum")
    return facts, sha256


def checksum(before: bytes | memoryview, facts: Facts) -> str:
    """Over both parts of a snapshot: a clock that changed is as bad as a weight that did."""
    digest = hashlib.sha256(before)
    digest.update(json.dumps(facts, sort_keys=True).encode())
    return digest.hexdigest()


def _spell(sha256: str, facts: Facts) -> bytes:
    return json.dumps({"sha256": sha256, "facts": facts}).encode()
