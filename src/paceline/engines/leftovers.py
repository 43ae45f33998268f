"""What does a build leave that was stopped half-way, and how is it known to be ours? By a mark it carries.

podman and buildah build in a working container, and whoever stops them keeps it. Each of our builds adds one
name to its containers' list of hosts; a working container with that name is this build's, and nobody else's.
"""

import json
import secrets
from pathlib import Path

from paceline.engines.engine import Engine, Kind
from paceline.engines.process import ask


def new_mark() -> str:
    return f"paceline-build-{secrets.token_hex(8)}.invalid"


def remove_marked(engine: Engine, mark: str) -> None:
    """Nothing is left of this build; docker clears up by itself."""
    if engine.kind is Kind.DOCKER:
        return
    storage = _storage(engine)
    if storage is None:  # nothing can be known of it: what stopped the build is what the user is told
        return
    for file in storage.glob("*-containers/*/userdata/buildah.json"):
        try:
            is_ours = mark in file.read_text("utf-8")
        except OSError:  # another build ended, and took its own away
            continue
        if is_ours:
            ask(
                [
                    engine.path,
                    "rm",
                    *(["--force"] if engine.kind is Kind.PODMAN else []),
                    file.parent.parent.name,
                ]
            )


def _storage(engine: Engine) -> Path | None:
    more = ["--format", "{{.Store.GraphRoot}}"] if engine.kind is Kind.PODMAN else []
    told = ask([engine.path, "info", *more])
    if not told.is_well:
        return None
    return Path(
        told.text.strip() if engine.kind is Kind.PODMAN else str(json.loads(told.text)["store"]["GraphRoot"])
    )
