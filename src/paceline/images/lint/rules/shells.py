"""Rules about the shell of a step: syntax of bash in /bin/sh, forms without a shell, misspelt options (26).

RUN in shell form is run by /bin/sh, unless SHELL names another. On Debian and Ubuntu /bin/sh is dash, which
has the syntax of POSIX alone; busybox (Alpine) and the systems of Red Hat accept that of bash. The exec form
(`["program", "argument"]`) must be JSON, and runs no shell at all.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from paceline.images.lint.dockerfile import Command, Instruction, argument_values, env_values
from paceline.images.lint.installs import conditional_commands
from paceline.images.lint.project import Change, Edit, Finding, Level, edits_of
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import StageView

EXEC_FORM = Pattern(
    number=26,
    id="no-shell",
    what="The exec form (`[…]`) runs no shell: `&&` and variables are plain arguments; invalid JSON is "
    "shell form.",
    fix="only reported: the shell form, or JSON with double quotes",
)
BASHISM = Pattern(
    number=26,
    id="not-in-sh",
    what="A RUN has syntax or a command of bash (`[[`, `${V//x}`, `source`), and /bin/sh is dash.",
    fix='`.` instead of `source`; for the others `SHELL ["/bin/bash", "-c"]`',
)
ONE_DASH = Pattern(
    number=26,
    id="one-dash",
    what="A long option with one dash, or with a typographic dash: it is read as short options or as a name.",
    fix="only reported: two dashes",
)
PATTERNS = (EXEC_FORM, BASHISM, ONE_DASH)
_WITH_DASH = frozenset({"python", "debian", "ubuntu", "cuda", "pytorch", "ngc", "dlc", "conda"})
_SHELL_SIGNS = ("&&", "||", "|", ";", ">", ">>")
_SHELL = re.compile(r"(?:^|/)(?:ba|da|z|k)?sh$")
_QUOTES = "\"'“”„‘’"


def no_shell(view: StageView) -> Iterator[Finding]:
    for step in view.stage.instructions:
        if step.word not in ("RUN", "CMD", "ENTRYPOINT") or not step.values:
            continue
        if step.is_json:
            bad = _shell_word(step) if step.word == "RUN" else _word_at_start(view, step)
            if bad is not None:
                yield EXEC_FORM.finding(
                    view,
                    step,
                    f"`{bad}` is passed to {step.values[0]} literally: no shell runs",
                    f"{step.word} {list(step.values)}",
                    "write it without brackets, or run it with a shell",
                )
        elif _is_broken_json(step.word, step.values[0].strip()):
            yield EXEC_FORM.finding(
                view,
                step,
                f"{step.values[0]!r} is not JSON: the shell searches for a program named `[`…",
                f"{step.word} {step.values[0]}",
                "put every word in double quotes, with commas between them and brackets around them",
            )


def _is_broken_json(word: str, text: str) -> bool:
    """An array that was meant for the exec form; `[ -f x ]` and `[ "$A" = b ]` are tests."""
    if not text.startswith("["):
        return False
    has_comma = re.search(rf"[{_QUOTES}]\s*,|,\s*[{_QUOTES}]", text) is not None
    begins = re.match(rf"^\[\s*[{_QUOTES}]", text) is not None
    is_bare = re.match(r"^\[[\w./-]+(?:\s*,[^&|;]*)?\]$", text, re.S) is not None
    if word == "RUN" and (re.search(r"&&|\|\||;", text) or text.startswith("[[")):
        return has_comma and begins
    return is_bare or (begins and (has_comma or not text.startswith("[ ")))


def _word_at_start(view: StageView, step: Instruction) -> str | None:
    """The same of CMD and ENTRYPOINT, unless a shell or an entry point receives the words."""
    has_entry = any(step.word == "ENTRYPOINT" for step in view.steps)
    has_plain_base = view.base.family in ("python", "debian", "ubuntu", "cuda", "pytorch", "conda")
    is_argument = step.word == "CMD" and (has_entry or not has_plain_base)
    if is_argument or any(_SHELL.search(value) for value in step.values):
        return None
    program, *rest = step.values
    declared = {name for step in view.steps if step.word == "ARG" for name in argument_values(step)}
    declared |= {name for step in view.steps if step.word == "ENV" for name in env_values(step)}
    uses = [value for value in rest if set(re.findall(r"\$\{?(\w+)", value)) & declared]
    # A variable of the container's environment, given whole to a program that expands none.
    if re.search(
        r"(?:^|/)(?:python[\d.]*|torchrun|accelerate|deepspeed|mpirun|ray|uvicorn|gunicorn)$", program
    ):
        uses += [v for v in rest if re.fullmatch(r"(?:--?[\w-]+=)?(?:\$\{?[A-Z_][A-Z0-9_]*\}?[:/]?)+", v)]
    if program in ("cd", "source", "export") or (
        " " in program.strip() and "/" not in program.partition(" ")[0]
    ):
        return program
    return next(iter([*(value for value in rest if value in ("&&", "||", ";", "|")), *uses]), None)


def _shell_word(step: Instruction) -> str | None:
    """A word of RUN that only a shell would understand."""
    program, *rest = step.values
    if _SHELL.search(program) or "conda" in program:
        return None
    marks = [value for value in rest if value in _SHELL_SIGNS]
    variables = [value for value in rest if re.search(r"\$\{?\w", value)]
    blanks = [program] if " " in program else []
    return next(iter([*marks, *variables, *blanks]), None)


def runs_dash(view: StageView, step: Instruction) -> bool:
    """The shell of this RUN is known to be dash."""
    base = view.base
    if base.family not in _WITH_DASH or (base.system and not base.system.startswith(("debian", "ubuntu"))):
        return False
    chosen = [
        instruction
        for instruction in view.steps
        if instruction.word == "SHELL" and instruction.first < step.first and instruction.values
    ]
    if step.is_json or (chosen and not re.search(r"(?:^|/)(?:da)?sh$", chosen[-1].values[0])):
        return False
    relinked = re.compile(
        r"\bln .*bash.*/bin/sh|dpkg-reconfigure.*dash|(?:rm|mv) .*/bin/sh\b|\.dash|bash /bin/sh"
    )
    before = [
        " ".join(c.texts)
        for instruction in view.steps
        if instruction.first <= step.first
        for c in instruction.commands
    ]
    heredoc = any(re.match(r"<<(?!<)", word) for c in step.commands[:1] for word in c.texts)
    return not heredoc and not any(relinked.search(line) for line in before)


class _Syntax(NamedTuple):
    """Syntax of bash, with the error of dash; a silent one does not fail the step."""

    sign: re.Pattern[str]
    name: str
    answer: str
    is_silent: bool = False


# Of the text outside of quotes.
_BARE_SYNTAX = (
    _Syntax(
        re.compile(r"(?:^|[;&|(!]\s*|\b(?:if|while|until|then|do|else|elif)\s+)(\[\[)\s"),
        "[[ … ]]",
        "[[: not found",
    ),
    _Syntax(re.compile(r"<<<"), "<<<", "Syntax error: redirection unexpected"),
    _Syntax(re.compile(r"[<>]\("), "<(…)", 'Syntax error: "(" unexpected'),
    _Syntax(re.compile(r"(?:^|[\s;])\w+\+?=\("), "an array", 'Syntax error: "(" unexpected'),
    _Syntax(re.compile(r"(?:^|[;&|]\s*)function\s+\w"), "function", "function: not found"),
    _Syntax(
        re.compile(r"\bset\s+(?:-\w+\s+)*-\w*o\s+pipefail"), "set -o pipefail", "Illegal option -o pipefail"
    ),
    _Syntax(re.compile(r"&>>?\s*\S"), "&>", "the command runs in the background", is_silent=True),
    _Syntax(
        re.compile(r"(?:^|[;&|]\s*)(?:mkdir|touch|cp|mv)\s[^;&|]*(?<![$\w])\S*\{[\w./-]*(?:,[\w./-]*)+\}"),
        "{a,b}",
        "the braces become part of one name",
    ),
)
# Of the text outside of single quotes.
_EXPANSION = _Syntax(
    re.compile(r"(?<!\\)\$\{(?:\w+(?:/|\^|,|:\d|: -?\d|\[|@[A-Z])|!\w)"), "${…} of bash", "Bad substitution"
)
_COMMANDS = frozenset(
    {"source", "pushd", "popd", "declare", "shopt", "mapfile", "readarray", "let", "typeset"}
)


def not_in_sh(view: StageView) -> Iterator[Finding]:
    for step in view.stage.instructions:
        if step.word != "RUN" or not step.values or not runs_dash(view, step):
            continue
        problem = _bash_command(view, step) or bash_syntax(step.values[0])
        if problem is None:
            continue
        name, answer, is_silent, edits = problem
        yield BASHISM.finding(
            view,
            step,
            f"/bin/sh of {view.base.reference} is dash, which has no `{name}`: `{answer}`",
            step.values[0].strip()[:120],
            "write `.`" if edits else 'write `SHELL ["/bin/bash", "-c"]` before it, or use POSIX syntax',
            edits,
            level=Level.WARNING if is_silent else Level.PROBLEM,
        )


def _bash_command(view: StageView, step: Instruction) -> tuple[str, str, bool, tuple[Edit, ...]] | None:
    tolerated = "||" in step.values[0]
    for command in step.commands:
        name = command.texts[0]
        if name not in _COMMANDS or id(command) in conditional_commands(step):
            continue
        if tolerated and name != "source":
            continue
        at = command.words[0]
        is_path = len(command.texts) > 1 and "/" in command.texts[1]
        is_source = name == "source" and is_path
        edits = edits_of(view.dockerfile, [Change(at.start, at.end, ".")]) if is_source else ()
        return name, f"{name}: not found", False, edits
    return None


def bash_syntax(text: str) -> tuple[str, str, bool, tuple[Edit, ...]] | None:
    if re.search(r"\b(?:ba|z)sh\s+-\w*c\b", text):
        return None  # the text inside is that shell's
    bare, expanded = _outside_quotes(text)
    rows = [row for row in _BARE_SYNTAX if row.sign.search(bare)]
    rows += [_EXPANSION] if _EXPANSION.sign.search(expanded) else []
    # Syntax that fails the step first.
    chosen = next((row for row in rows if not row.is_silent), rows[0] if rows else None)
    return None if chosen is None else (chosen.name, chosen.answer, chosen.is_silent, ())


def _outside_quotes(text: str) -> tuple[str, str]:
    """The text without what is quoted, and the text without what is in single quotes; comments are gone."""
    bare: list[str] = []
    expanded: list[str] = []
    quote = ""
    at = 0
    while at < len(text):
        sign = text[at]
        if sign == "\\" and quote != "'" and at + 1 < len(text):
            expanded.append(text[at : at + 2])
            bare.append(" " if not quote else "")
            at += 2
            continue
        if not quote and sign == "#" and (at == 0 or text[at - 1] in " \t\n"):
            stop = text.find("\n", at)
            at = len(text) if stop < 0 else stop
            continue
        if sign in "'\"" and quote in ("", sign):
            quote = "" if quote else sign
            bare.append("_")
        elif not quote:
            bare.append(sign)
        if quote != "'" and sign not in "'\"":
            expanded.append(sign)
        at += 1
    return "".join(bare), "".join(expanded)


# Long options that are written with one dash, where the letters mean something else, by program.
_LONG = {
    "apt-get": re.compile(r"^-(?:yes|assume-yes|quiet|no-install-\w+|allow-[\w-]+|fix-[\w-]+|purge)$"),
    "pip": re.compile(
        r"^-(?:no-[a-z-]+|extra-index-url|index-url|find-links|upgrade|force-reinstall|quiet|requirement|pre|user"
        r"|use-[a-z0-9-]+|trusted-host|default-timeout|ignore-installed|break-system-packages)$"
    ),
    "git": re.compile(r"^-(?:depth|recursive|recurse-submodules|single-branch|branch)$"),
    "apk": re.compile(r"^-(?:no-cache|update|virtual|upgrade)$"),
    "conda": re.compile(r"^-(?:yes|channel|all|override-channels|no-[a-z-]+|strict-channel-priority)$"),
    "uv": re.compile(
        r"^-(?:no-[a-z-]+|system|frozen|locked|extra-index-url|index-url|torch-backend|all-extras)$"
    ),
}
_LONG["apt"] = _LONG["apt-get"]
_LONG["pip3"] = _LONG["pip"]
_LONG["mamba"] = _LONG["conda"]


def one_dash(view: StageView) -> Iterator[Finding]:
    for step in view.stage.instructions:
        conditional = conditional_commands(step)
        for command in step.commands:
            bad = _misspelt(command)
            if bad is None or id(command) in conditional:
                continue
            yield ONE_DASH.finding(
                view,
                step,
                f"`{bad}` is not an option of {command.texts[0]}: long options start with two dashes",
                " ".join(command.texts[:6]),
                f"write --{bad.lstrip('-–—')}",
            )
            break


def _misspelt(command: Command) -> str | None:
    argv = [word for word in command.texts if not re.match(r"^\w+=", word) and word != "sudo"]
    named = [word.rpartition("/")[2] for word in argv[:3]]
    tool = next((name for name in named if name in _LONG), "")
    if not tool or "run" in argv[:2]:
        return None
    behind = argv[named.index(tool) + 1 :]
    typographic = next((word for word in behind if re.match(r"^[–—]\w", word)), None)
    return typographic or next((word for word in behind if _LONG[tool].match(word)), None)


RULES = (no_shell, not_in_sh, one_dash)
