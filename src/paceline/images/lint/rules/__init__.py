"""Everything that can be wrong with an image: one module for each group of patterns, `RULES` is all of them.

Fixed in this order: the base first, then what is installed on it, then how it is installed, then the rest.
"""

from collections.abc import Callable, Iterator

from paceline.images.lint.project import Finding
from paceline.images.lint.rules import (
    bases,
    build_steps,
    commands,
    context,
    cuda,
    extensions,
    fetching,
    framework,
    hygiene,
    libraries,
    network,
    paths,
    pins,
    programs,
    releases,
    secrets,
    shells,
    spelling,
    stack,
    steps,
    syntax,
    system,
    wheels,
)
from paceline.images.lint.rules.container import (
    code,
    conda,
    interpreter,
    script,
    stages,
    start,
    users,
    variables,
)
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Place

RULES: tuple[Callable[[Place], Iterator[Finding]], ...] = (
    *syntax.RULES,
    *bases.RULES,
    *commands.RULES,
    *shells.RULES,
    *network.RULES,
    *steps.RULES,
    *context.RULES,
    *paths.RULES,
    *system.RULES,
    *programs.RULES,
    *framework.RULES,
    *releases.RULES,
    *wheels.RULES,
    *cuda.RULES,
    *stack.RULES,
    *extensions.RULES,
    *build_steps.RULES,
    *libraries.RULES,
    *spelling.RULES,
    *pins.RULES,
    *fetching.RULES,
    *variables.RULES,
    *users.RULES,
    *interpreter.RULES,
    *stages.RULES,
    *conda.RULES,
    *start.RULES,
    *script.RULES,
    *code.RULES,
    *hygiene.RULES,
    *secrets.RULES,
)
_GROUPS = (
    syntax,
    bases,
    commands,
    shells,
    network,
    steps,
    context,
    paths,
    system,
    programs,
    framework,
    releases,
    wheels,
    cuda,
    stack,
    extensions,
    build_steps,
    libraries,
    spelling,
    pins,
    fetching,
    variables,
    users,
    interpreter,
    stages,
    conda,
    start,
    script,
    code,
    hygiene,
    secrets,
)
PATTERNS: tuple[Pattern, ...] = tuple(
    sorted(
        (one for group in _GROUPS for one in group.PATTERNS),
        key=lambda one: one.number,
    )
)
