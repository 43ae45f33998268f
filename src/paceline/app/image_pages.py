"""What do building, testing and pushing an image leave for people to read? One page each.

A page asks nobody for anything, and everything in it is escaped.
"""

from collections.abc import Iterable, Sequence

from paceline.app.image_build import Built
from paceline.app.image_push import Pushed
from paceline.app.image_test import Tested
from paceline.engines.judge import Verdict
from paceline.redaction import redact
from paceline.report.elements import Child, Markup, tag
from paceline.report.page import definitions, page, scrolling


def build_page(built: Built) -> str:
    headline = f"{'Built' if built.ok else 'Not built'}: {', '.join(built.tags)}"
    facts = {
        "Engine": f"{built.engine.name} {built.engine.version}",
        "Attempts": f"{len(built.attempts)}; {built.stopped}",
        "Fixes": str(len(built.fixes)),
        "Files changed": ", ".join(built.written) or "none: the fixes are in this report",
    }
    rows = [
        (f.finding.id, f"{f.finding.path}:{f.finding.line}", str(f.attempt), f.found, redact(f.finding.why))
        for f in built.fixes
    ]
    parts: list[Child] = [_head(headline, facts)]
    parts.append(_table("Fixes", ("fix", "place", "from attempt", "found", "why"), rows))
    parts += [_code(f"{f.finding.id} in {f.finding.path}", redact(f.diff)) for f in built.fixes]
    left = [(f.id, f.level.value, f"{f.path}:{f.line}", redact(f.why), f.advice) for f in built.left]
    parts.append(_table("Left as it is", ("finding", "level", "place", "why", "what to do"), left))
    for one in built.attempts:
        if not one.ok:
            parts.append(_code(f"Attempt {one.number} failed {one.failed_at}", "\n".join(one.tail)))
    return page(headline, *parts)


def test_page(tested: Tested) -> str:
    headline = f"{tested.image} {'works' if tested.ok else 'does not work'}"
    counts = {verdict: tested.count(verdict) for verdict in Verdict}
    facts = {
        "Level": tested.level,
        "Checks": ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items()),
        "Engine": f"{tested.engine.name} {tested.engine.version}",
        "Seconds": f"{tested.seconds:.1f}",
    }
    rows = [(c.verdict.value, c.group, c.name, redact(c.detail), c.advice) for c in tested.checks]
    rows.sort(key=lambda row: (row[0] == "passed", row[0] == "warning"))
    heads = ("verdict", "group", "check", "what was seen", "what to do")
    return page(headline, _head(headline, facts), _table("Checks", heads, rows))


def push_page(pushed: Pushed) -> str:
    headline = f"{pushed.image} was pushed and verified"
    facts = {
        "Digest": pushed.digest,
        "Engine": f"{pushed.engine.name} {pushed.engine.version}",
        "Repositories made": ", ".join(pushed.made) or "none",
    }
    rows = [(s.name, s.how, s.digest, ", ".join(s.verified_by)) for s in pushed.sent]
    heads = ("name", "how", "digest", "verified by")
    return page(headline, _head(headline, facts), _table("Places", heads, rows))


def _head(headline: str, facts: dict[str, str]) -> Markup:
    return tag("section", tag("h1", headline, class_="headline"), definitions(facts), class_="verdict")


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    listed = list(rows)
    if not listed:
        return tag("section", tag("h2", title), tag("p", "none", class_="soft"))
    head = tag("thead", tag("tr", [tag("th", name, scope="col") for name in heads]))
    body = tag("tbody", [tag("tr", [tag("td", cell) for cell in row]) for row in listed])
    return tag("section", tag("h2", title), scrolling(title, tag("table", head, body)))


def _code(title: str, text: str) -> Markup:
    return tag("section", tag("h3", title), scrolling(title, tag("pre", tag("code", text))))
