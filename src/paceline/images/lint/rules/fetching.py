"""Rules about downloads and what a build may not do: certificates, redirects, keys, the kernel (43)."""

import re
from collections.abc import Iterator

from paceline.images.lint.dockerfile import Instruction
from paceline.images.lint.installs import conditional_commands
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.network import MODULE
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.rules.programs import NO_PROGRAM
from paceline.images.lint.rules.system import APT
from paceline.images.lint.view import Place

CERTIFICATES = Pattern(
    number=43,
    id="no-certificates",
    what="git, curl or wget fetch from https, and the image has no certificates: verification fails.",
    fix="only reported: ca-certificates beside them",
)
REDIRECT = Pattern(
    number=43,
    id="redirect-not-followed",
    what="curl without `-L` saves GitHub's redirect in the place of the file, and a later command reads it.",
    fix="only reported: `-L`",
)
KEYS = Pattern(
    number=43,
    id="no-ssh-key",
    what="A repository is cloned by ssh, and the build has neither a key nor a known host.",
    fix="only reported: https, or `RUN --mount=type=ssh`",
)
PATTERNS = (CERTIFICATES, REDIRECT, KEYS)
_GITHUB = re.compile(
    r"^https://github\.com/[^/]+/[^/]+/(?:releases/(?:latest/)?download|archive|raw|tarball|zipball)/"
)
_READS = re.compile(
    r"^(?:\S*/)?(?:tar|unzip|bash|sh|dpkg|apt-get|apt|gunzip|python3?|chmod|pip3?|install|mv)$"
)


def no_certificates(place: Place) -> Iterator[Finding]:
    """Debian and Ubuntu have none; git and curl recommend them, which --no-install-recommends leaves out."""
    if place.base.family not in ("debian", "ubuntu") or not place.are_packages_known or place.has_conda:
        return
    has_them = False
    for step in place.steps:
        if step.word in ("COPY", "ADD") and re.search(r"cert|^/etc|^/usr", " ".join(step.values)):
            return
        maybe = conditional_commands(step)
        for command in step.commands:
            words = command.texts
            line = " ".join(words)
            if re.search(r"\bapt(?:-get)?\b.* install\b", line):
                with_recommended = "no-install-recommends" not in line.lower()
                brings = re.search(
                    r"ca-certificates|openjdk|default-j|software-properties|\$|python3?-pip\b|-t64", line
                )
                has_them |= brings is not None or (
                    with_recommended and re.search(r"\b(?:git|curl|wget)\b", line) is not None
                )
            if (
                has_them
                or id(command) in maybe
                or re.search(
                    r"no-check-certificate|sslVerify|insecure|\s-\w*k\w*\s|NoRecommends|apt\.conf", line
                )
            ):
                has_them |= "Recommends" in line
                continue
            is_fetch = words[0] in ("curl", "wget") or words[:2] == ("git", "clone")
            if is_fetch and "https://" in line and id(step) in place.own_steps and "||" not in step.values[0]:
                yield CERTIFICATES.found(
                    place,
                    step,
                    f"{place.base.reference} has no certificates, and no step installs them: "
                    "`server certificate verification failed`",
                    line[:120],
                    "install ca-certificates with it",
                )
                return


def redirect_not_followed(place: Place) -> Iterator[Finding]:
    for step in place.stage.instructions:
        for number, command in enumerate(step.commands):
            words = command.texts
            address = next((word for word in words if _GITHUB.match(word)), None)
            if words[0].rpartition("/")[2] != "curl" or address is None or "$" in words[0]:
                continue
            follows = any(
                re.fullmatch(r"-[A-Za-z]*L[A-Za-z]*|--location(?:-trusted)?|-K|--config", word)
                for word in words
            )
            read = any(_READS.match(one.texts[0]) for one in step.commands[number + 1 :])
            if not follows and read:
                yield REDIRECT.found(
                    place,
                    step,
                    "GitHub answers with a redirect, which curl saves without -L: the next command reads "
                    "an empty file",
                    " ".join(words)[:120],
                    "write curl -fsSL",
                )
                return


def no_ssh_key(place: Place) -> Iterator[Finding]:
    said = " ".join(place.words)
    if re.search(r"insteadOf|id_rsa|id_ed25519|ssh-keyscan|known_hosts|GIT_SSH|\.ssh|StrictHostKey", said):
        return
    copied = any(
        re.search(r"ssh|\.gitconfig", " ".join(s.values)) for s in place.steps if s.word in ("COPY", "ADD")
    )
    if copied or not place.base.family or any("GIT_" in name for name in place.variables):
        return
    for step in place.stage.instructions:
        maybe = conditional_commands(step)
        by_pip = [
            asked.text
            for by in place.commands_of_pip
            if by.instruction is step
            for asked in place.asked_by(by)
        ]
        cloned = [
            word
            for command in step.commands
            if "clone" in command.texts and id(command) not in maybe
            for word in command.texts
        ]
        address = next(
            (w for w in [*by_pip, *cloned] if re.search(r"git\+ssh://|^git@[\w.-]+:|^ssh://git@", w)), None
        )
        if address is None or any("ssh" in flag or "secret" in flag for flag in step.flags):
            continue
        yield KEYS.found(
            place,
            step,
            "the build has no key and knows no host for ssh: `Host key verification failed`",
            address,
            "use https with a token from `RUN --mount=type=secret`, or `RUN --mount=type=ssh`",
        )
        return


def needs_the_kernel(place: Place) -> Iterator[Finding]:
    """sysctl, modprobe, mount: the kernel belongs to the host, and a build may not change it."""
    for step in place.stage.instructions:
        if not step.values or "||" in step.values[0] or any("security" in flag for flag in step.flags):
            continue
        maybe = conditional_commands(step)
        for command in step.commands if step.word == "RUN" else ():
            words = command.texts
            is_denied = (
                (
                    words[0] == "sysctl"
                    and any(word in ("-w", "-p", "--system") or "=" in word for word in words[1:])
                )
                or words[0] in ("modprobe", "insmod", "swapon")
                or (words[0] == "mount" and len(words) > 2)
                or any(re.match(r"^/(?:proc/sys|sys)/", word) for word in words if ">" in words)
            )
            if is_denied and id(command) not in maybe:
                yield MODULE.found(
                    place,
                    step,
                    f"{words[0]} changes the kernel of the host, which a build step may not: it ends with "
                    "an error",
                    " ".join(words[:6]),
                    "set it on the hosts, or in the pod's securityContext",
                )
                break


def driver_in_image(place: Place) -> Iterator[Finding]:
    """NVIDIA's driver comes from the host: a second one in the image does not fit its kernel module."""
    for one in place.system:
        if (
            id(one.instruction) not in place.own_steps
            or one.tool != "apt"
            or place.base.family in ("ngc", "dlc")
        ):
            continue
        name = next(
            (
                w.text
                for w in one.packages
                if re.match(r"^(?:nvidia-driver-\d+|cuda-drivers(?:-\d+)?$|nvidia-dkms-)", w.text)
            ),
            None,
        )
        if name is not None:
            yield MODULE.found(
                place,
                one.instruction,
                f"{name} puts a driver into the image, and the host mounts its own: `Driver/library "
                "version mismatch`",
                f"{name} on {place.base.reference}",
                "leave it out: the host has the driver, and the container toolkit mounts it",
            )
            return


def ppa_on_debian(place: Place) -> Iterator[Finding]:
    is_debian = place.base.family in ("debian", "python") or place.base.system.startswith("debian")
    for step in place.stage.instructions if is_debian and place.base.system != "alpine" else ():
        bad = next(
            (c for c in step.commands if re.search(r"add-apt-repository\b.*\bppa:", " ".join(c.texts))), None
        )
        if bad is not None and id(bad) not in conditional_commands(step):
            yield APT.found(
                place,
                step,
                f"a PPA has packages for Ubuntu alone, and {place.base.reference} is Debian: its lists "
                "are not found",
                " ".join(bad.texts[:5]),
                "use an image of Ubuntu, or of the Python that is wanted",
            )
            return


_PURGES = frozenset({"purge", "remove", "autoremove"})
_MAIN = {
    "git": "git",
    "curl": "curl",
    "wget": "wget",
    "gcc": "gcc",
    "g++": "g++",
    "make": "make",
    "unzip": "unzip",
}


def removed_and_called(place: Place) -> Iterator[Finding]:
    """`apt-get purge git`, and a later command that calls git."""
    if place.base.family not in ("debian", "ubuntu", "cuda", "python") or not place.are_packages_known:
        return
    is_full = place.base.family == "python" and not place.base.is_slim
    gone: dict[str, Instruction] = {}
    for step in place.steps:
        maybe = conditional_commands(step)
        for command in step.commands:
            words = command.texts
            by_apt = any(word.rpartition("/")[2] in ("apt-get", "apt") for word in words[:3])
            if by_apt and _PURGES & set(words[:4]) and id(command) not in maybe:
                gone |= {word: step for word in words if word in _MAIN}
            elif by_apt and "install" in words:
                for word in words:
                    gone.pop(word, None)
                gone = {} if "build-essential" in words else gone
            elif (
                words[0] in gone and id(step) in place.own_steps and id(command) not in maybe and not is_full
            ):
                yield NO_PROGRAM.found(
                    place,
                    step,
                    f"line {gone[words[0]].first} removes {words[0]} from the image: `{words[0]}: not found`",
                    " ".join(words[:5]),
                    f"remove {words[0]} behind its last use",
                    level=Level.PROBLEM if "||" not in step.values[0] else Level.WARNING,
                )
                return


def no_git_lfs(place: Place) -> Iterator[Finding]:
    """`git lfs` is a program of its own."""
    if place.base.family not in ("debian", "ubuntu", "cuda", "python") or not place.are_packages_known:
        return
    said = " ".join(value for step in place.steps for value in step.values)
    if place.has_conda or re.search(r"git-lfs|git_lfs", said) or "git-lfs" in place.system_packages:
        return
    for step in place.stage.instructions:
        bad = next((c for c in step.commands if c.texts[:2] == ("git", "lfs")), None)
        if bad is not None and id(bad) not in conditional_commands(step) and "||" not in step.values[0]:
            yield NO_PROGRAM.found(
                place,
                step,
                "no step installs git-lfs: `git: 'lfs' is not a git command`",
                " ".join(bad.texts[:4]),
                "install git-lfs before it",
            )
            return


RULES = (
    no_git_lfs,
    ppa_on_debian,
    driver_in_image,
    no_certificates,
    redirect_not_followed,
    no_ssh_key,
    needs_the_kernel,
    removed_and_called,
)
