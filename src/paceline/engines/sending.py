"""How does an image get to a registry, and how do we know that it is there? By its digest, from both sides.

Engines compress layers while they push, so an image's local digest says nothing: what the push itself reports
must be what the registry says. Copies to further places are made from the first one, registry to registry, so
that they have the same digest; without skopeo the engine pushes again, and the digests are compared.
"""

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from paceline.engines.engine import Engine, Kind
from paceline.engines.logins import LoginFile
from paceline.engines.process import Finished, ask, stream
from paceline.engines.refusals import DigestError, NoRegistryError, PushError, refusal
from paceline.engines.registry import Registry
from paceline.engines.words import push_words, tag_words
from paceline.redaction import redact

_SAID = re.compile(r"digest: (sha256:[0-9a-f]{64})")
_TIMEOUT_S = 3600.0
_TAGGED_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One tag in one repository of one registry."""

    registry: Registry
    repository: str
    tag: str

    @property
    def name(self) -> str:
        return f"{self.registry.host}/{self.repository}:{self.tag}"


def push(engine: Engine, image: str, goal: Goal, logins: LoginFile) -> str:
    """The digest that the push reports. Raises what the registry refused."""
    tagged = ask(tag_words(engine, image, goal.name), timeout_s=_TAGGED_S)
    if not tagged.is_well:
        last = " ".join(tagged.errors.strip().splitlines()[-1:]) or f"no answer within {_TAGGED_S:g} s"
        raise PushError(
            f"{engine.name} cannot name {image} {goal.name}: {redact(last)}",
            f"build it first: paceline image build --tag {image}",
        )
    with tempfile.TemporaryDirectory(prefix="paceline-push-") as made:
        file = Path(made) / "digest"
        words = push_words(
            engine, goal.name, digest_file=file, auth_file=logins.path, insecure=goal.registry.is_plain
        )
        more = logins.for_docker if engine.kind is Kind.DOCKER else None
        done = stream(words, timeout_s=_TIMEOUT_S, on_line=lambda _: None, more=more)
        if not done.is_well:
            raise _refused(done, done.text, goal)
        said = file.read_text("utf-8").strip() if file.exists() else ""
    if not said:
        found = _SAID.findall(done.text)
        said = found[-1] if found else ""
    if not said:
        raise DigestError(f"the push of {goal.name} reported no digest", "push again; is the engine too old?")
    return said


def copy(engine: Engine, image: str, first: Goal, digest: str, goal: Goal, logins: LoginFile) -> str:
    """The digest at the further place."""
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        return push(engine, image, goal, logins)
    source = f"docker://{first.registry.host}/{first.repository}@{digest}"
    words = [skopeo, "copy", "--all", "--preserve-digests", "--authfile", str(logins.path)]
    words += [f"--src-tls-verify={_word(not first.registry.is_plain)}"]
    words += [f"--dest-tls-verify={_word(not goal.registry.is_plain)}", source, f"docker://{goal.name}"]
    done = ask(words, timeout_s=_TIMEOUT_S)
    if not done.is_well:
        raise _refused(done, done.errors or done.text, goal)
    return digest


def _refused(done: Finished, said: str, goal: Goal) -> PushError:
    if done.was_too_slow:
        return NoRegistryError(
            f"{goal.name} was not there after {_TIMEOUT_S:g} s", "push again: what it has is not sent twice"
        )
    return refusal(said, goal.name)


def _word(is_true: bool) -> str:
    return "true" if is_true else "false"


def verify(goal: Goal, digest: str, others: dict[str, str]) -> None:
    """The registry's own answer, and whatever else was asked (`others`), must all be this digest."""
    seen = {"the push": digest, "the registry": goal.registry.digest(goal.repository, goal.tag), **others}
    if len(set(seen.values())) > 1:
        told = ", ".join(f"{who} says {what}" for who, what in seen.items())
        raise DigestError(
            f"{goal.name} is not what was sent: {told}", "somebody else pushed meanwhile? push again"
        )
