"""How is an image looked into? The probe goes in by stdin, and its answer comes back as one line of JSON.

Nothing is mounted unless it is asked for, and the container has no network unless it is asked for.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from paceline.engines.engine import Engine, Kind
from paceline.engines.judge import Facts
from paceline.engines.process import Finished, ask
from paceline.engines.words import run_words
from paceline.errors import NotReadyError, PacelineError
from paceline.redaction import redact

_PYTHONS = ("python3", "python")
_NO_SUCH = ("executable file not found", "no such file or directory", "not found in $PATH")


class ProbeError(PacelineError):
    """The image could not be looked into."""

    code = "E701"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """How a container is run for a look into its image."""

    mounts: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    network: str = "none"
    gpus: str | None = None
    timeout_s: float = 300.0


def probe(engine: Engine, image: str, wish: Mapping[str, object], inside: Inside) -> Facts:
    """What the probe says. Raises ProbeError where there is no answer."""
    if engine.kind is Kind.BUILDAH:
        raise NotReadyError(
            "buildah runs no containers of an image", "test with --engine podman or --engine docker"
        )
    script = resources.files("paceline.engines").joinpath("probe.py").read_text("utf-8")
    for python in _PYTHONS:
        done = _run(engine, image, [python, "-", json.dumps(wish)], script, inside)
        said = done.errors.lower()
        if done.code in (126, 127) and any(word in said for word in _NO_SUCH):
            continue
        return _answer(done, engine, image, inside)
    raise ProbeError(
        f"{image} has no Python: neither {' nor '.join(_PYTHONS)} is on its path", "add one to it"
    )


def _run(engine: Engine, image: str, command: Sequence[str], script: str, inside: Inside) -> Finished:
    name = f"paceline-probe-{secrets.token_hex(6)}"
    words = run_words(
        engine,
        image,
        command,
        name=name,
        mounts=inside.mounts,
        variables=inside.variables,
        network=inside.network,
        gpus=inside.gpus,
    )
    ended = False
    try:
        done = ask(words, timeout_s=inside.timeout_s, said=script)
        ended = not done.was_too_slow
        return done
    finally:
        if not ended:  # the client is gone, and the container may not know
            ask([engine.path, "rm", "--force", name], timeout_s=60.0)


def _answer(done: Finished, engine: Engine, image: str, inside: Inside) -> Facts:
    if done.was_too_slow:
        hint = "give it more time (--timeout), or ask for less (--level quick)"
        raise ProbeError(f"{image} was still at it after {inside.timeout_s:g} s", hint)
    lines = [line for line in done.text.splitlines() if line.startswith("{")]
    if done.code != 0 or not lines:
        last = redact("; ".join(done.errors.strip().splitlines()[-3:]))
        program = engine.kind.value
        hint = f"is it here? look: {program} image inspect {image}; run it: {program} run --rm {image}"
        raise ProbeError(f"{image} could not be looked into (code {done.code}): {last}", hint)
    facts: Facts = json.loads(lines[-1])
    return facts
