"""The rule about code that is compiled while it runs: Triton and torch.compile need a C compiler (32).

torch.compile is looked for in the entry file and the modules of one's own that it imports. A call behind a
condition that is not certain to hold is a warning.
"""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from paceline.images.lint.edits import system_packages_added
from paceline.images.lint.project import Finding, Kind, Level
from paceline.images.lint.rules.container.imports import reached_modules
from paceline.images.lint.rules.container.script import start_of
from paceline.images.lint.rules.container.venvs import copied_stages
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, Place

NO_CC = Pattern(
    number=32,
    id="triton-without-compiler",
    what="Triton compiles its launchers when the program runs, and the image has no C compiler.",
    fix="gcc and, for a Python of the system, its headers",
)
PATTERNS = (NO_CC,)
# They run kernels of Triton on any GPU.
_RUN_TRITON = frozenset(
    ["vllm", "sglang", "unsloth", "liger-kernel", "flash-linear-attention", "fla-core", "triton", "mamba-ssm"]
)
_COMPILERS = frozenset({"gcc", "g++", "build-essential", "clang", "gcc-11", "gcc-12", "gcc-13", "gcc-14"})
_NO_CODE = frozenset({"eager", "aot_eager", "aot_eager_decomp_partition", "cudagraphs", "onnxrt", "tensorrt"})
_OPTIONS = frozenset({"mode", "backend", "fullgraph", "dynamic", "options"})
# Conditions that hold in a container that trains.
_HOLDS = re.compile(
    r"__name__|hasattr\(torch|cuda\.is_available|torch\.__version__|sys\.(?:platform|version_info)|platform\.system|os\.name"
)


class _Use(NamedTuple):
    """A place in the code that makes torch or Triton compile."""

    path: str
    line: int
    what: str
    is_certain: bool


def triton_without_compiler(place: Place) -> Iterator[Finding]:
    if not _lacks_compiler(place):
        return
    filled = [place, *copied_stages(place)]
    asked = next((one for one in place.installed if one.asked.name in _RUN_TRITON), None)
    torch = next((one for stage in filled if (one := stage.find("torch")) is not None), None)
    is_cpu = place.kind is Kind.CPU or any(_has_cpu_torch(stage) for stage in filled)
    if asked is not None and not is_cpu:
        why = f"{asked.asked.name} compiles with Triton when it runs"
        yield _finding(place, asked, why, asked.asked.text)
        return
    if torch is None or place.base.family == "pytorch":
        return
    use = _use_in(place)
    if use is None:
        return
    why = f"torch compiles with {'C++' if is_cpu else 'Triton'} when it runs ({use.what})"
    evidence = f"{use.path}:{use.line}: {use.what}"
    yield _finding(place, torch, why, evidence, is_cpu=is_cpu, is_certain=use.is_certain)


def _has_cpu_torch(place: Place) -> bool:
    return place.torch is not None and place.torch.build == "cpu"


def _finding(
    place: Place, one: Installed, why: str, evidence: str, *, is_cpu: bool = False, is_certain: bool = True
) -> Finding:
    headers = [] if place.base.family == "python" else ["python3-dev"]
    packages = ["g++" if is_cpu else "gcc", "libc6-dev", *headers]
    can_edit = is_certain and one in place.own
    return NO_CC.found(
        place,
        one.asked,
        f"{why}, and {place.base.reference} has no C compiler: `Failed to find C compiler`",
        f"{evidence}; system packages: {', '.join(sorted(place.system_packages)) or 'none'}",
        f"install {' '.join(packages)}",
        system_packages_added(place, one.by.instruction, packages) if can_edit else (),
        level=Level.PROBLEM if is_certain else Level.WARNING,
    )


def _lacks_compiler(place: Place) -> bool:
    base = place.base
    if not place.is_last or not base.is_slim or base.system == "alpine":
        return False
    if base.family not in ("cuda", "python", "debian", "ubuntu", "pytorch"):
        return False
    if not place.are_packages_known or place.has_conda or "CC" in place.variables:
        return False
    purged = {word for words in _purges(place) for word in words}
    named = any(re.search(r"gcc|clang|build-essential", word) for word in place.words if word not in purged)
    there = place.system_packages - purged
    return not (there & _COMPILERS or named or _has_recommended_compiler(place))


def _has_recommended_compiler(place: Place) -> bool:
    """python3-pip of Debian and Ubuntu recommends build-essential, which apt installs unless told not to."""
    commands = [c.texts for step in place.steps for c in step.commands if "python3-pip" in c.texts]
    configured = any("Install-Recommends" in word for word in place.words)
    return not configured and any(
        not any("no-install-recommends" in word.lower() for word in words) for words in commands
    )


def _purges(place: Place) -> Iterator[tuple[str, ...]]:
    """The words of apt-get purge and remove."""
    for step in place.steps:
        for command in step.commands:
            if command.texts[0] in ("apt-get", "apt") and {"purge", "remove"} & set(command.texts[1:4]):
                yield command.texts


def _use_in(place: Place) -> _Use | None:
    """What the start names, or else the first use in the code, certain ones first."""
    steps = [step for step in place.steps if step.word in ("CMD", "ENTRYPOINT", "ENV")]
    stated = " ".join(value for step in steps for value in step.values)
    option = re.search(r"torch[._-]?compile\b|--compile\b|inductor", stated, re.I)
    if option is not None:
        return _Use(place.docker.path, steps[-1].first, option[0], is_certain=True)
    start = start_of(place)
    if start is None:
        return None
    uses = [use for path, tree in reached_modules(place, start) for use in _uses(path, tree)]
    return min(uses, key=lambda use: not use.is_certain, default=None)


def _uses(path: str, tree: ast.Module) -> Iterator[_Use]:
    names = _names_of_compile(tree)
    pending: list[tuple[ast.AST, bool]] = [(tree, True)]
    while pending:
        node, is_certain = pending.pop()
        what = _what(node, names)
        if what:
            yield _Use(path, getattr(node, "lineno", 1), what, is_certain)
        pending += [(child, is_certain and _runs(node, child)) for child in ast.iter_child_nodes(node)]


def _names_of_compile(tree: ast.Module) -> set[str]:
    """What `torch.compile` is called in a module."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {f"{one.asname or one.name}.compile" for one in node.names if one.name == "torch"}
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            names |= {one.asname or one.name for one in node.names if one.name == "compile"}
    return names


def _runs(node: ast.AST, child: ast.AST) -> bool:
    """A child of `if` and `try` may be left out, unless the condition holds wherever a container trains."""
    match node:
        case ast.If(test=test, body=body):
            return child is test or (child in body and _HOLDS.search(ast.unparse(test)) is not None)
        case ast.IfExp(test=test, body=body):
            return child is test or (child is body and _HOLDS.search(ast.unparse(test)) is not None)
        case ast.Try() | ast.BoolOp():
            return False
        case _:
            return True


def _what(node: ast.AST, names: set[str]) -> str:
    """What a node uses, in the words of the code; "" for nothing that is compiled."""
    match node:
        case ast.Import(names=imported) if any(one.name.split(".")[0] == "triton" for one in imported):
            return "import triton"
        case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] == "triton":
            return "import triton"
        case ast.Call():
            return _call(node, names)
        case ast.FunctionDef(decorator_list=decorators) | ast.ClassDef(decorator_list=decorators):
            plain = [one for one in decorators if not isinstance(one, ast.Call)]
            return next((f"@{ast.unparse(one)}" for one in plain if ast.unparse(one) in names), "")
        case _:
            return ""


def _call(node: ast.Call, names: set[str]) -> str:
    keywords = {one.arg: one.value for one in node.keywords if one.arg is not None}
    chosen = keywords.get("backend")
    if isinstance(chosen, ast.Constant) and chosen.value in _NO_CODE:
        return ""
    if isinstance(off := keywords.get("disable"), ast.Constant) and off.value:
        return ""
    called = ast.unparse(node.func)
    if called in names:
        return called
    asked = keywords.get("torch_compile")
    if isinstance(asked, ast.Constant) and asked.value is True:
        return "torch_compile=True"
    is_method = isinstance(node.func, ast.Attribute) and node.func.attr == "compile" and not node.args
    is_module = is_method and bool(keywords) and keywords.keys() <= _OPTIONS
    return called if is_module else ""


RULES = (triton_without_compiler,)
