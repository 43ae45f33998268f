"""Test an image: run the probe script in a container, judge its facts, and name a remedy for each failure."""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import assert_never

from packaging.requirements import InvalidRequirement, Requirement

from paceline.core import clock
from paceline.core.errors import ImageOptionError, NotReadyError, PacelineError, Problem
from paceline.core.redaction import redact
from paceline.images.build.engine import CommandResult, Engine, EngineKind, run_command
from paceline.images.build.engine_cli import run_argv
from paceline.images.probe.checks import (
    Check,
    Expected,
    Facts,
    Verdict,
    check_facts,
    no_model_check,
    smoke_checks,
)
from paceline.images.revision import ImageIdentity, identify
from paceline.plan.plan import Option

# By default nothing is mounted, and the container has no network.

# What the second script needs only where both are modules.
_ONLY_AS_MODULES = re.compile(r"^from (__future__|paceline\.[\w.]+) import [^\n]+\n", re.M)
_PYTHONS = ("python3", "python")
_SMOKE_TIMEOUT_S = 300.0  # a first import of torch from a cold disk takes a minute
_NO_SUCH = ("executable file not found", "no such file or directory", "not found in $PATH")


class ProbeError(PacelineError):
    """The image could not be inspected."""

    code = "E701"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOptions:
    """Options of the container that inspects an image."""

    mounts: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    network: str = "none"
    gpus: str | None = None
    timeout_s: float = 300.0


def probe_image(engine: Engine, image: str, options: Mapping[str, object], inside: ContainerOptions) -> Facts:
    """Result of the probe. Raises ProbeError without one."""
    if engine.kind is EngineKind.BUILDAH:
        raise NotReadyError("buildah cannot run containers", "test with --engine podman or --engine docker")
    facts = _probe(engine, image, options, inside)
    if facts is None:
        raise ProbeError(
            f"{image} has no Python: neither {' nor '.join(_PYTHONS)} is on its path",
            "install Python in the image",
        )
    return facts


def _probe(
    engine: Engine, image: str, options: Mapping[str, object], inside: ContainerOptions
) -> Facts | None:
    """None: the image has no Python."""
    for python in _PYTHONS:
        done = _run(engine, image, [python, "-", json.dumps(options)], probe_source(), inside)
        stderr = done.errors.lower()
        if done.code not in (126, 127) or not any(word in stderr for word in _NO_SUCH):
            return _answer(done, engine, image, inside)
    return None


def probe_source() -> str:
    """Both scripts as one file, because stdin carries one."""
    folder = resources.files("paceline.images.probe")
    models, facts = (folder.joinpath(name).read_text("utf-8") for name in ("model_script.py", "script.py"))
    return models + _ONLY_AS_MODULES.sub("", facts)


def _run(
    engine: Engine, image: str, command: Sequence[str], script: str, inside: ContainerOptions
) -> CommandResult:
    name = f"paceline-probe-{secrets.token_hex(6)}"
    argv = run_argv(
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
        done = run_command(argv, timeout_s=inside.timeout_s, stdin=script)
        ended = not done.was_too_slow
        return done
    finally:
        if not ended:  # the client has ended, and the container may still run
            run_command([engine.path, "rm", "--force", name], timeout_s=60.0)


def _answer(done: CommandResult, engine: Engine, image: str, inside: ContainerOptions) -> Facts:
    if done.was_too_slow:
        hint = "raise --timeout, or use --level quick"
        raise ProbeError(f"{image} did not finish within {inside.timeout_s:g} s", hint)
    lines = [line for line in done.text.splitlines() if line.startswith("{")]
    if done.code != 0 or not lines:
        last = redact("; ".join(done.errors.strip().splitlines()[-3:]))
        program = engine.kind.value
        hint = f"check that it exists: {program} image inspect {image}; run it: {program} run --rm {image}"
        raise ProbeError(f"{image} could not be inspected (exit code {done.code}): {last}", hint)
    facts: Facts = json.loads(lines[-1])
    return facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One tensor of random numbers for a forward pass."""

    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionEntry:
    """A function in the image that returns a model, or a model and its inputs."""

    place: str  # a module, or the path of a Python file
    function: str
    options: tuple[tuple[str, Option], ...] = ()
    inputs: tuple[Input, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEntry:
    """A script in the image that is run to its end."""

    place: str
    arguments: tuple[str, ...] = ()


Entry = FunctionEntry | ScriptEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRequest:
    __test__ = False  # pytest would collect it

    image: str
    level: str
    requirements: tuple[str, ...] = ()  # names; none: the packages that no other package requires
    entry: Entry | None = None
    task: str | None = None
    task_options: tuple[tuple[str, Option], ...] = ()
    batch_size: int = 8
    expected: Expected = field(default_factory=Expected)
    inside: ContainerOptions = field(default_factory=ContainerOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTestResult:
    image: str
    level: str
    engine: Engine
    seconds: float
    checks: tuple[Check, ...]
    facts: Facts
    ended_at_s: float  # Unix time
    identity: ImageIdentity | None = None

    @property
    def ok(self) -> bool:
        return all(check.verdict is not Verdict.FAILED for check in self.checks)

    @property
    def was_model_tested(self) -> bool:
        return any(check.group == "model" and check.verdict is Verdict.PASSED for check in self.checks)

    @property
    def headline(self) -> str:
        """An image works only where a model of it did."""
        if not self.ok:
            return f"{self.image} does not work"
        if not self.was_model_tested:
            return f"{self.image} has no failures, but no model was tested"
        return f"{self.image} works"

    def count(self, verdict: Verdict) -> int:
        return sum(check.verdict is verdict for check in self.checks)


def run_image_test(engine: Engine, request: TestRequest) -> ImageTestResult:
    started_s = clock.monotonic_s()
    options = {
        "level": request.level,
        "requirements": list(request.requirements),
        "entry": _entry(request.entry),
        "task": request.task,
        "task_options": dict(request.task_options),
        "batch_size": request.batch_size,
    }
    identity = identify(engine, request.image)
    facts = probe_image(engine, request.image, options, request.inside)
    checks = check_facts(facts, request.expected)
    if request.level != "quick" and request.task is None and request.entry is None:
        checks.append(no_model_check())
    return ImageTestResult(
        image=request.image,
        level=request.level,
        engine=engine,
        seconds=clock.monotonic_s() - started_s,
        checks=tuple(checks),
        facts=facts,
        ended_at_s=clock.unix_now_s(),
        identity=identity or identify(engine, request.image),  # the engine may have pulled it
    )


def _entry(entry: Entry | None) -> dict[str, object] | None:
    match entry:
        case None:
            return None
        case ScriptEntry():
            return {"place": entry.place, "function": None, "arguments": list(entry.arguments)}
        case FunctionEntry():
            return {
                "place": entry.place,
                "function": entry.function,
                "options": dict(entry.options),
                "inputs": [{"shape": list(one.shape), "dtype": one.dtype} for one in entry.inputs],
            }
        case _:
            assert_never(entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeTest:
    """Result of the short test behind a build. It was skipped where `skipped` says why."""

    checks: tuple[Check, ...] = ()
    skipped: str = ""

    @property
    def ok(self) -> bool:
        return all(check.verdict is not Verdict.FAILED for check in self.checks)


def smoke_test(engine: Engine, image: str, packages: Sequence[str]) -> SmokeTest:
    """Start the image's Python, and import the packages there."""
    if engine.kind is EngineKind.BUILDAH:
        return SmokeTest(skipped="buildah cannot run containers")
    options = {"level": "smoke", "requirements": list(packages), "task": None, "entry": None}
    facts = _probe(engine, image, options, ContainerOptions(timeout_s=_SMOKE_TIMEOUT_S))
    if facts is None:
        return SmokeTest(skipped="the image has no Python")
    return SmokeTest(checks=tuple(smoke_checks(facts)))


def required_packages(files: Sequence[Path]) -> tuple[str, ...]:
    """The packages that requirement files name, those of other files they include too, each once."""
    names: dict[str, None] = {}
    for file in files:
        for name in _names(file, frozenset()):
            names[name] = None
    return tuple(names)


def _names(file: Path, seen: frozenset[Path]) -> list[str]:
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ImageOptionError(
            [Problem(f"cannot read {file}: {error}", "name a requirements file")]
        ) from error
    names = []
    for raw in text.replace("\\\n", " ").splitlines():
        line = raw.partition(" #")[0].split(" --")[0].strip()
        if line.startswith("#") or not line:
            continue
        if line.startswith(("-r ", "--requirement ")):
            inner = file.parent / line.split(maxsplit=1)[1]
            if inner not in seen:
                names += _names(inner, seen | {file})
            continue
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # an option, a path or an address: it has no name to search for
        if requirement.marker is None or requirement.marker.evaluate():
            names.append(requirement.name)
    return names
