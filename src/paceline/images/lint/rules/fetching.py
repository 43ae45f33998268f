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
from paceline.images.lint.view import StageView

CERTIFICATES = Pattern(
    number=43,
    id="no-certificates",
    what="git, curl or wget fetch from https, and the image has no certificates: verification fails.",
    fix="only reported: install ca-certificates with them",
)
REDIRECT = Pattern(
    number=43,
    id="redirect-not-followed",
    what="curl without `-L` saves GitHub's redirect instead of the file, and a later command reads it.",
    fix="only reported: `-L`",
)
KEYS = Pattern(
    number=43,
    id="no-ssh-key",
    what="A repository is cloned by ssh, and the build has neither a key nor a known_hosts entry.",
    fix="only reported: https, or `RUN --mount=type=ssh`",
)
PATTERNS = (CERTIFICATES, REDIRECT, KEYS)
_GITHUB = re.compile(
    r"^https://github\.com/[^/]+/[^/]+/(?:releases/(?:latest/)?download|archive|raw|tarball|zipball)/"
)
_READS = re.compile(
    r"^(?:\S*/)?(?:tar|unzip|bash|sh|dpkg|apt-get|apt|gunzip|python3?|chmod|pip3?|install|mv)$"
)


def no_certificates(view: StageView) -> Iterator[Finding]:
    """Debian and Ubuntu have none; git and curl recommend them, which --no-install-recommends leaves out."""
    if view.base.family not in ("debian", "ubuntu") or not view.are_packages_known or view.has_conda:
        return
    has_them = False
    for step in view.steps:
        if step.word in ("COPY", "ADD") and re.search(r"cert|^/etc|^/usr", " ".join(step.values)):
            return
        conditional = conditional_commands(step)
        for command in step.commands:
            argv = command.texts
            line = " ".join(argv)
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
                or id(command) in conditional
                or re.search(
                    r"no-check-certificate|sslVerify|insecure|\s-\w*k\w*\s|NoRecommends|apt\.conf", line
                )
            ):
                has_them |= "Recommends" in line
                continue
            is_fetch = argv[0] in ("curl", "wget") or argv[:2] == ("git", "clone")
            if is_fetch and "https://" in line and id(step) in view.own_steps and "||" not in step.values[0]:
                yield CERTIFICATES.finding(
                    view,
                    step,
                    f"{view.base.reference} has no certificates, and no step installs them: "
                    "`server certificate verification failed`",
                    line[:120],
                    "install ca-certificates with it",
                )
                return


def redirect_not_followed(view: StageView) -> Iterator[Finding]:
    for step in view.stage.instructions:
        for number, command in enumerate(step.commands):
            argv = command.texts
            address = next((word for word in argv if _GITHUB.match(word)), None)
            if argv[0].rpartition("/")[2] != "curl" or address is None or "$" in argv[0]:
                continue
            follows = any(
                re.fullmatch(r"-[A-Za-z]*L[A-Za-z]*|--location(?:-trusted)?|-K|--config", word)
                for word in argv
            )
            read = any(_READS.match(command.texts[0]) for command in step.commands[number + 1 :])
            if not follows and read:
                yield REDIRECT.finding(
                    view,
                    step,
                    "GitHub responds with a redirect, which curl saves without -L: the next command reads "
                    "an empty file",
                    " ".join(argv)[:120],
                    "write curl -fsSL",
                )
                return


def no_ssh_key(view: StageView) -> Iterator[Finding]:
    script = " ".join(view.words)
    if re.search(r"insteadOf|id_rsa|id_ed25519|ssh-keyscan|known_hosts|GIT_SSH|\.ssh|StrictHostKey", script):
        return
    copied = any(
        re.search(r"ssh|\.gitconfig", " ".join(s.values)) for s in view.steps if s.word in ("COPY", "ADD")
    )
    if copied or not view.base.family or any("GIT_" in name for name in view.variables):
        return
    for step in view.stage.instructions:
        conditional = conditional_commands(step)
        by_pip = [
            spec.text for by in view.commands_of_pip if by.instruction is step for spec in view.specs_by(by)
        ]
        cloned = [
            word
            for command in step.commands
            if "clone" in command.texts and id(command) not in conditional
            for word in command.texts
        ]
        address = next(
            (w for w in [*by_pip, *cloned] if re.search(r"git\+ssh://|^git@[\w.-]+:|^ssh://git@", w)), None
        )
        if address is None or any("ssh" in flag or "secret" in flag for flag in step.flags):
            continue
        yield KEYS.finding(
            view,
            step,
            "the build has neither a key nor a known_hosts entry for ssh: `Host key verification failed`",
            address,
            "use https with a token from `RUN --mount=type=secret`, or `RUN --mount=type=ssh`",
        )
        return


def needs_the_kernel(view: StageView) -> Iterator[Finding]:
    """sysctl, modprobe, mount: the kernel belongs to the host, and a build may not change it."""
    for step in view.stage.instructions:
        if not step.values or "||" in step.values[0] or any("security" in flag for flag in step.flags):
            continue
        conditional = conditional_commands(step)
        for command in step.commands if step.word == "RUN" else ():
            argv = command.texts
            is_denied = (
                (
                    argv[0] == "sysctl"
                    and any(word in ("-w", "-p", "--system") or "=" in word for word in argv[1:])
                )
                or argv[0] in ("modprobe", "insmod", "swapon")
                or (argv[0] == "mount" and len(argv) > 2)
                or any(re.match(r"^/(?:proc/sys|sys)/", word) for word in argv if ">" in argv)
            )
            if is_denied and id(command) not in conditional:
                yield MODULE.finding(
                    view,
                    step,
                    f"{argv[0]} changes the kernel of the host, which a build step cannot: it fails",
                    " ".join(argv[:6]),
                    "set it on the hosts, or in the pod's securityContext",
                )
                break


def driver_in_image(view: StageView) -> Iterator[Finding]:
    """NVIDIA's driver comes from the host: a second one in the image does not fit its kernel module."""
    for install in view.system:
        if (
            id(install.instruction) not in view.own_steps
            or install.tool != "apt"
            or view.base.family in ("ngc", "dlc")
        ):
            continue
        name = next(
            (
                w.text
                for w in install.packages
                if re.match(r"^(?:nvidia-driver-\d+|cuda-drivers(?:-\d+)?$|nvidia-dkms-)", w.text)
            ),
            None,
        )
        if name is not None:
            yield MODULE.finding(
                view,
                install.instruction,
                f"{name} puts a driver into the image, and the host mounts its own: `Driver/library "
                "version mismatch`",
                f"{name} on {view.base.reference}",
                "leave it out: the host has the driver, and the container toolkit mounts it",
            )
            return


def ppa_on_debian(view: StageView) -> Iterator[Finding]:
    is_debian = view.base.family in ("debian", "python") or view.base.system.startswith("debian")
    for step in view.stage.instructions if is_debian and view.base.system != "alpine" else ():
        bad = next(
            (c for c in step.commands if re.search(r"add-apt-repository\b.*\bppa:", " ".join(c.texts))), None
        )
        if bad is not None and id(bad) not in conditional_commands(step):
            yield APT.finding(
                view,
                step,
                f"a PPA has packages for Ubuntu alone, and {view.base.reference} is Debian: its lists "
                "are not found",
                " ".join(bad.texts[:5]),
                "use an image of Ubuntu, or of the required Python",
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


def removed_and_called(view: StageView) -> Iterator[Finding]:
    """`apt-get purge git`, and a later command that calls git."""
    if view.base.family not in ("debian", "ubuntu", "cuda", "python") or not view.are_packages_known:
        return
    is_full = view.base.family == "python" and not view.base.is_slim
    gone: dict[str, Instruction] = {}
    for step in view.steps:
        conditional = conditional_commands(step)
        for command in step.commands:
            argv = command.texts
            by_apt = any(word.rpartition("/")[2] in ("apt-get", "apt") for word in argv[:3])
            if by_apt and _PURGES & set(argv[:4]) and id(command) not in conditional:
                gone |= {word: step for word in argv if word in _MAIN}
            elif by_apt and "install" in argv:
                for word in argv:
                    gone.pop(word, None)
                gone = {} if "build-essential" in argv else gone
            elif (
                argv[0] in gone
                and id(step) in view.own_steps
                and id(command) not in conditional
                and not is_full
            ):
                yield NO_PROGRAM.finding(
                    view,
                    step,
                    f"line {gone[argv[0]].first} removes {argv[0]} from the image: `{argv[0]}: not found`",
                    " ".join(argv[:5]),
                    f"remove {argv[0]} after its last use",
                    level=Level.PROBLEM if "||" not in step.values[0] else Level.WARNING,
                )
                return


def no_git_lfs(view: StageView) -> Iterator[Finding]:
    """`git lfs` is a program of its own."""
    if view.base.family not in ("debian", "ubuntu", "cuda", "python") or not view.are_packages_known:
        return
    text = " ".join(value for step in view.steps for value in step.values)
    if view.has_conda or re.search(r"git-lfs|git_lfs", text) or "git-lfs" in view.system_packages:
        return
    for step in view.stage.instructions:
        bad = next((c for c in step.commands if c.texts[:2] == ("git", "lfs")), None)
        if bad is not None and id(bad) not in conditional_commands(step) and "||" not in step.values[0]:
            yield NO_PROGRAM.finding(
                view,
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
