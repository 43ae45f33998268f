"""Text of a training script and of the modules beside it, for workers that do not have the files.

A module is beside the script if the script imports it, directly or through another one, and its file is in
the script's folder. Packages, which are folders, are only named: they belong into the image.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import script_error


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSources:
    script: str  # its file name
    texts: dict[str, str]  # by file name, the script first
    packages: tuple[str, ...]  # folders beside the script that it imports
    imported: frozenset[str]  # first parts of the names of all imported modules

    def imports(self, module: str) -> bool:
        return module in self.imported

    @property
    def num_bytes(self) -> int:
        return sum(len(text.encode()) for text in self.texts.values())


def read_sources(script: Path) -> ScriptSources:
    """Raises ConfigError for a file that is no Python."""
    folder = script.parent
    texts: dict[str, str] = {}
    packages: set[str] = set()
    imported: set[str] = set()
    todo = [script]
    while todo:
        file = todo.pop(0)
        text = _text(file)
        texts[file.name] = text
        for name in _imported(file, text):
            imported.add(name)
            beside = folder / f"{name}.py"
            if beside.is_file() and beside.name not in texts and beside not in todo:
                todo.append(beside)
            elif (folder / name).is_dir() and any((folder / name).glob("*.py")):
                packages.add(name)
    return ScriptSources(
        script=script.name, texts=texts, packages=tuple(sorted(packages)), imported=frozenset(imported)
    )


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise script_error(
            "E120", f"{file} cannot be read: {reason}", "name the file of a training script"
        ) from error


def _imported(file: Path, text: str) -> Iterator[str]:
    """First parts of the names of all imported modules."""
    try:
        tree = ast.parse(text, str(file))
    except SyntaxError as error:
        raise script_error("E120", f"{file}:{error.lineno}: {error.msg}", "correct the script") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield node.module.partition(".")[0]
