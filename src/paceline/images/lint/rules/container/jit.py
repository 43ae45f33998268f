"""The rule about code that is compiled while it runs: Triton and torch.compile need a C compiler (32).

torch.compile is searched for in the entry file and the modules of one's own that it imports. A call behind a
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
from paceline.images.lint.view import Installed, StageView

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


def triton_without_compiler(view: StageView) -> Iterator[Finding]:
    if not _lacks_compiler(view):
        return
    filled = [view, *copied_stages(view)]
    package = next((package for package in view.installed if package.spec.name in _RUN_TRITON), None)
    torch = next((candidate for stage in filled if (candidate := stage.find("torch")) is not None), None)
    is_cpu = view.kind is Kind.CPU or any(_has_cpu_torch(stage) for stage in filled)
    if package is not None and not is_cpu:
        why = f"{package.spec.name} compiles with Triton when it runs"
        yield _finding(view, package, why, package.spec.text)
        return
    if torch is None or view.base.family == "pytorch":
        return
    use = _use_in(view)
    if use is None:
        return
    why = f"torch compiles with {'C++' if is_cpu else 'Triton'} when it runs ({use.what})"
    evidence = f"{use.path}:{use.line}: {use.what}"
    yield _finding(view, torch, why, evidence, is_cpu=is_cpu, is_certain=use.is_certain)


def _has_cpu_torch(view: StageView) -> bool:
    return view.torch is not None and view.torch.build == "cpu"


def _finding(
    view: StageView,
    package: Installed,
    why: str,
    evidence: str,
    *,
    is_cpu: bool = False,
    is_certain: bool = True,
) -> Finding:
    headers = [] if view.base.family == "python" else ["python3-dev"]
    packages = ["g++" if is_cpu else "gcc", "libc6-dev", *headers]
    can_edit = is_certain and package in view.own
    return NO_CC.finding(
        view,
        package.spec,
        f"{why}, and {view.base.reference} has no C compiler: `Failed to find C compiler`",
        f"{evidence}; system packages: {', '.join(sorted(view.system_packages)) or 'none'}",
        f"install {' '.join(packages)}",
        system_packages_added(view, package.by.instruction, packages) if can_edit else (),
        level=Level.PROBLEM if is_certain else Level.WARNING,
    )


def _lacks_compiler(view: StageView) -> bool:
    base = view.base
    if not view.is_last or not base.is_slim or base.system == "alpine":
        return False
    if base.family not in ("cuda", "python", "debian", "ubuntu", "pytorch"):
        return False
    if not view.are_packages_known or view.has_conda or "CC" in view.variables:
        return False
    purged = {word for argv in _purges(view) for word in argv}
    named = any(re.search(r"gcc|clang|build-essential", word) for word in view.words if word not in purged)
    installed = view.system_packages - purged
    return not (installed & _COMPILERS or named or _has_recommended_compiler(view))


def _has_recommended_compiler(view: StageView) -> bool:
    """python3-pip of Debian and Ubuntu recommends build-essential, which apt installs unless disabled."""
    commands = [c.texts for step in view.steps for c in step.commands if "python3-pip" in c.texts]
    configured = any("Install-Recommends" in word for word in view.words)
    return not configured and any(
        not any("no-install-recommends" in word.lower() for word in argv) for argv in commands
    )


def _purges(view: StageView) -> Iterator[tuple[str, ...]]:
    """The words of apt-get purge and remove."""
    for step in view.steps:
        for command in step.commands:
            if command.texts[0] in ("apt-get", "apt") and {"purge", "remove"} & set(command.texts[1:4]):
                yield command.texts


def _use_in(view: StageView) -> _Use | None:
    """The use in the start command, or else the first use in the code, certain ones first."""
    steps = [step for step in view.steps if step.word in ("CMD", "ENTRYPOINT", "ENV")]
    stated = " ".join(value for step in steps for value in step.values)
    option = re.search(r"torch[._-]?compile\b|--compile\b|inductor", stated, re.I)
    if option is not None:
        return _Use(view.docker.path, steps[-1].first, option[0], is_certain=True)
    start = start_of(view)
    if start is None:
        return None
    uses = [use for path, tree in reached_modules(view, start) for use in _uses(path, tree)]
    return min(uses, key=lambda use: not use.is_certain, default=None)


def _uses(path: str, tree: ast.Module) -> Iterator[_Use]:
    names = _names_of_compile(tree)
    pending: list[tuple[ast.AST, bool]] = [(tree, True)]
    while pending:
        node, is_certain = pending.pop()
        use = _what(node, names)
        if use:
            yield _Use(path, getattr(node, "lineno", 1), use, is_certain)
        pending += [(child, is_certain and _runs(node, child)) for child in ast.iter_child_nodes(node)]


def _names_of_compile(tree: ast.Module) -> set[str]:
    """Names of `torch.compile` in a module."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                f"{alias.asname or alias.name}.compile" for alias in node.names if alias.name == "torch"
            }
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            names |= {alias.asname or alias.name for alias in node.names if alias.name == "compile"}
    return names


def _runs(node: ast.AST, child: ast.AST) -> bool:
    """A child of `if` and `try` may be left out, unless its condition always holds in training."""
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
    """The compiled feature that a node uses, as in the code; "" without one."""
    match node:
        case ast.Import(names=imported) if any(alias.name.split(".")[0] == "triton" for alias in imported):
            return "import triton"
        case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] == "triton":
            return "import triton"
        case ast.Call():
            return _call(node, names)
        case ast.FunctionDef(decorator_list=decorators) | ast.ClassDef(decorator_list=decorators):
            plain = [decorator for decorator in decorators if not isinstance(decorator, ast.Call)]
            return next(
                (f"@{ast.unparse(decorator)}" for decorator in plain if ast.unparse(decorator) in names), ""
            )
        case _:
            return ""


def _call(node: ast.Call, names: set[str]) -> str:
    keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
    chosen = keywords.get("backend")
    if isinstance(chosen, ast.Constant) and chosen.value in _NO_CODE:
        return ""
    if isinstance(off := keywords.get("disable"), ast.Constant) and off.value:
        return ""
    called = ast.unparse(node.func)
    if called in names:
        return called
    option = keywords.get("torch_compile")
    if isinstance(option, ast.Constant) and option.value is True:
        return "torch_compile=True"
    is_method = isinstance(node.func, ast.Attribute) and node.func.attr == "compile" and not node.args
    is_module = is_method and bool(keywords) and keywords.keys() <= _OPTIONS
    return called if is_module else ""


RULES = (triton_without_compiler,)
