"""MkDocs hooks that turn the pages for GitHub into a site that opens from a folder.

Pages are written for GitHub: they link to source files and to the README above docs, and begin lists
without a blank line. Links are rewritten to their targets in the site; a linked source file is copied
there as text. Nothing in docs/ is written, and no page loads anything from another origin.
"""

import os
import re
from pathlib import PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.pages import ROOT, slug

DOCS = PurePosixPath("docs")
# Pages that lie elsewhere in the repository, and what they are called in the site.
ELSEWHERE = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "infra/README.md": "infra.md",
    "benchmarks/README.md": "benchmarks.md",
}
_HOME = {there: here for here, there in ELSEWHERE.items()}
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)")
_ITEM = re.compile(r" *(?:[-*+]|\d+\.) ")
# The theme would fetch this for pages opened from a folder; docs/frame_worker.js does the same.
_FETCHED = "https://unpkg.com/iframe-worker/shim"
_NOT_RUN = re.compile(r"^<!-- not run: (.*?) -->$", re.M)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Headings get the anchors that GitHub gives them; folders of the navigation are filled."""
    config.mdx_configs["toc"] = {"slugify": lambda text, _: slug(text), "permalink": True}
    named = _named(config.nav or [])
    config.nav = [entry for one in config.nav or [] if (entry := _filled(one, named)) is not None]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for here, there in ELSEWHERE.items():
        files.append(File.generated(config, there, content=(ROOT / here).read_text(encoding="utf-8")))
    for path in sorted(_linked_sources()):
        files.append(File.generated(config, f"source/{path}.txt", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    at = page.file.src_uri
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else _prose(part, at) for part in parts)


def on_post_page(output: str, page: Page, **_: object) -> str:
    return output.replace(_FETCHED, "../" * page.url.count("/") + "frame_worker.js")


def on_post_template(output_content: str, **_: object) -> str:
    # The page that a server shows for any address.
    return output_content.replace(_FETCHED, "/frame_worker.js")


def _prose(text: str, at: str) -> str:
    shown = _NOT_RUN.sub(r'<p class="not-run">not run by the tests: \1</p>\n', text)
    return _LINK.sub(lambda found: _led(found[1], found[2], at), _lists_apart(_bars(shown)))


def _bars(text: str) -> str:
    """In a table GitHub wants `a \\| b` in code; MkDocs shows the backslash."""
    cells = re.compile(r"`[^`\n]*`")
    return re.sub(
        r"^\|.*$", lambda row: cells.sub(lambda code: code[0].replace("\\|", "|"), row[0]), text, flags=re.M
    )


def _led(text: str, target: str, at: str) -> str:
    """The same link, to where its target lies in the site; only the text of what is not in it."""
    if re.match(r"https?://|mailto:|#", target):
        return f"{text}({target})"
    name, mark, anchor = target.partition("#")
    found = _in_site(_resolved(_home(at).parent / name))
    if found is None:
        return text[1:-1]
    return f"{text}({os.path.relpath(found, str(PurePosixPath(at).parent))}{mark}{anchor})"


def _in_site(path: str) -> str | None:
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if PurePosixPath(path).is_relative_to(DOCS) and not path.endswith(".py"):
        return str(PurePosixPath(path).relative_to(DOCS))
    return f"source/{path}.txt" if (ROOT / path).is_file() else None


def _home(at: str) -> PurePosixPath:
    """Where this page of the site lies in the repository."""
    return PurePosixPath(_HOME[at]) if at in _HOME else DOCS / at


def _resolved(path: PurePosixPath) -> str:
    return os.path.normpath(str(path))


def _linked_sources() -> set[str]:
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in ELSEWHERE)]
    found: set[str] = set()
    for page in pages:
        for _, target in _LINK.findall(page.read_text(encoding="utf-8")):
            path = _resolved(
                PurePosixPath(page.relative_to(ROOT).parent.as_posix()) / target.partition("#")[0]
            )
            if (_in_site(path) or "").startswith("source/"):
                found.add(path)
    return found


def _lists_apart(text: str) -> str:
    """A blank line above each list: GitHub needs none, MkDocs does."""
    lines: list[str] = []
    for line in text.split("\n"):
        above = lines[-1] if lines else ""
        if _ITEM.match(line) and above.strip() and not _ITEM.match(above) and not above.startswith(" "):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def _filled(entry: Any, named: set[str]) -> Any:  # plain YAML: names, and names with what is under them
    if not isinstance(entry, dict):
        return entry
    ((title, under),) = entry.items()
    if isinstance(under, list):
        found = [one for each in under if (one := _filled(each, named)) is not None]
    elif under.endswith("/"):
        found = _pages_under(under)
    elif under.endswith("*"):
        found = [page for page in _pages_under(under.removesuffix("*")) if page not in named]
    else:
        return entry
    return {title: found} if found else None


def _named(entry: Any) -> set[str]:
    """Every page that the navigation names by itself."""
    match entry:
        case str():
            return {entry}
        case dict():
            return set().union(*map(_named, entry.values()))
        case _:
            return set().union(*map(_named, entry))


def _pages_under(folder: str) -> list[str]:
    found = sorted((ROOT / "docs" / folder).glob("*.md"), key=lambda path: (path.stem != "index", path.name))
    return [path.relative_to(ROOT / "docs").as_posix() for path in found]
