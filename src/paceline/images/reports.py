"""Reports of `image build`, `image test` and `image push`: JSON by `images/schemas`, and HTML pages."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from paceline import __version__
from paceline.core.errors import CannotWriteError
from paceline.core.html import Child, Markup, tag
from paceline.core.html_page import definitions, page, scrolling
from paceline.core.redaction import redact
from paceline.images.build.attempts import BuildResult
from paceline.images.build.engine import Engine
from paceline.images.lint.project import Finding
from paceline.images.probe.checks import Check, Verdict
from paceline.images.probe.container import ImageTestResult, SmokeTest
from paceline.images.push.publish import PushResult
from paceline.images.revision import ImageIdentity

if TYPE_CHECKING:
    from paceline.plan.codec import Json


# A page loads nothing, and everything in it is escaped.


def build_page(built: BuildResult, smoke: SmokeTest) -> str:
    headline = f"{'Built' if built.ok else 'Not built'}: {', '.join(built.tags)}"
    facts = {
        **_identity_facts(built.identity, built.ended_at_s),
        "Engine": f"{built.engine.name} {built.engine.version}",
        "Attempts": f"{len(built.attempts)}; {built.stopped}",
        "Fixes": str(len(built.fixes)),
        "Files changed": ", ".join(built.written) or "none: the fixes are in this report",
        "Smoke test": smoke.skipped or ("passed" if smoke.ok else "failed"),
    }
    rows = [
        (f.finding.id, f"{f.finding.path}:{f.finding.line}", str(f.attempt), f.found, redact(f.finding.why))
        for f in built.fixes
    ]
    parts: list[Child] = [_head(headline, facts)]
    if smoke.checks:
        parts.append(_checks_table("Smoke test", smoke.checks))
    parts.append(_table("Fixes", ("fix", "place", "from attempt", "found", "why"), rows))
    parts += [_code(f"{f.finding.id} in {f.finding.path}", redact(f.diff)) for f in built.fixes]
    left = [(f.id, f.level.value, f"{f.path}:{f.line}", redact(f.why), f.advice) for f in built.left]
    parts.append(_table("Not fixed", ("finding", "level", "place", "why", "what to do"), left))
    for attempt in built.attempts:
        if not attempt.ok:
            parts.append(
                _code(f"Attempt {attempt.number} failed {attempt.failed_at}", "\n".join(attempt.tail))
            )
    return page(headline, *parts)


def test_page(tested: ImageTestResult) -> str:
    counts = {verdict: tested.count(verdict) for verdict in Verdict}
    facts = {
        **_identity_facts(tested.identity, tested.ended_at_s),
        "Level": tested.level,
        "Checks": ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items()),
        "Engine": f"{tested.engine.name} {tested.engine.version}",
        "Seconds": f"{tested.seconds:.1f}",
    }
    headline = tested.headline
    return page(headline, _head(headline, facts), _checks_table("Checks", tested.checks))


def push_page(pushed: PushResult) -> str:
    headline = f"{pushed.image} was pushed and verified"
    facts = {
        **_identity_facts(pushed.identity, pushed.ended_at_s),
        "Digest": pushed.digest,
        "Engine": f"{pushed.engine.name} {pushed.engine.version}",
        "Repositories created": ", ".join(pushed.made) or "none",
    }
    rows = [(s.name, s.how, s.digest, ", ".join(s.verified_by)) for s in pushed.sent]
    heads = ("name", "how", "digest", "verified by")
    return page(headline, _head(headline, facts), _table("Places", heads, rows))


def _identity_facts(identity: ImageIdentity | None, ended_at_s: float) -> dict[str, str]:
    if identity is None:
        return {"Time": _time(ended_at_s)}
    return {
        "Image": identity.id,
        "Local digests": ", ".join(identity.digests) or "none",
        "Revision": identity.revision or "not in the image's labels",
        "Time": _time(ended_at_s),
    }


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _checks_table(title: str, checks: Sequence[Check]) -> Markup:
    rows = [(c.verdict.value, c.group, c.name, redact(c.detail), c.advice) for c in checks]
    rows.sort(key=lambda row: (row[0] == "passed", row[0] == "warning"))
    return _table(title, ("verdict", "group", "check", "what was seen", "what to do"), rows)


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


def build_json(built: BuildResult, smoke: SmokeTest) -> "dict[str, Json]":
    return {
        "schema": "paceline.image-build/1",
        "paceline": __version__,
        "ok": built.ok,
        **_identity(built.identity, built.ended_at_s),
        "engine": _engine(built.engine),
        "tags": list(built.tags),
        "size_bytes": None if built.identity is None else built.identity.size_bytes,
        "stopped": built.stopped,
        "smoke_test": {
            "ok": smoke.ok,
            "skipped": smoke.skipped,
            "checks": [_check(check) for check in smoke.checks],
        },
        "attempts": [
            {
                "number": attempt.number,
                "ok": attempt.ok,
                "seconds": round(attempt.seconds, 3),
                "failed_at": attempt.failed_at,
                "found": [_finding(finding) for finding in attempt.found],
                "log_tail": [] if attempt.ok else list(attempt.tail),
            }
            for attempt in built.attempts
        ],
        "fixes": [
            {**_finding(fix.finding), "attempt": fix.attempt, "found": fix.found, "diff": redact(fix.diff)}
            for fix in built.fixes
        ],
        "left": [_finding(finding) for finding in built.left],
        "diff": redact(built.diff),
        "written": list(built.written),
    }


def _finding(finding: Finding) -> "dict[str, Json]":
    return {
        "id": finding.id,
        "pattern": finding.pattern,
        "level": finding.level.value,
        "path": finding.path,
        "line": finding.line,
        "why": redact(finding.why),
        "evidence": redact(finding.evidence),
        "advice": finding.advice,
    }


def _identity(identity: ImageIdentity | None, ended_at_s: float) -> "dict[str, Json]":
    return {
        "time": _time(ended_at_s),
        "image_id": None if identity is None else identity.id,
        "local_digests": [] if identity is None else list(identity.digests),
        "revision": None if identity is None else identity.revision,
    }


def _check(check: Check) -> "dict[str, Json]":
    return {
        "group": check.group,
        "name": check.name,
        "verdict": check.verdict.value,
        "detail": redact(check.detail),
        "advice": check.advice,
        "seconds": check.seconds,
    }


def _engine(engine: Engine) -> "dict[str, Json]":
    return {"name": engine.name, "version": engine.version}


def test_json(tested: ImageTestResult) -> "dict[str, Json]":
    facts = tested.facts
    return {
        "schema": "paceline.image-test/1",
        "paceline": __version__,
        "ok": tested.ok,
        "model_tested": tested.was_model_tested,
        "image": tested.image,
        **_identity(tested.identity, tested.ended_at_s),
        "level": tested.level,
        "engine": _engine(tested.engine),
        "seconds": round(tested.seconds, 3),
        "checks": [_check(check) for check in tested.checks],
        "recommendations": list(dict.fromkeys(check.advice for check in tested.checks if check.advice)),
        "facts": {
            "python": facts["python"],
            "machine": facts["machine"],
            "libc": facts["libc"],
            "uid": facts["uid"],
            "torch": _without_secrets(facts["torch"]),
            "packages": {
                distribution["name"]: distribution["version"] for distribution in facts["distributions"]
            },
        },
    }


def _without_secrets(torch: "Json") -> "Json":
    """Its words are what an image's own code raised."""
    if not isinstance(torch, dict):
        return torch
    return {name: redact(value) if isinstance(value, str) else value for name, value in torch.items()}


def push_json(pushed: PushResult) -> "dict[str, Json]":
    return {
        "schema": "paceline.image-push/1",
        "paceline": __version__,
        "ok": True,
        "image": pushed.image,
        **_identity(pushed.identity, pushed.ended_at_s),
        "engine": _engine(pushed.engine),
        "digest": pushed.digest,
        "made": list(pushed.made),
        "sent": [
            {"name": s.name, "digest": s.digest, "how": s.how, "verified_by": list(s.verified_by)}
            for s in pushed.sent
        ],
    }


def write_build(built: BuildResult, smoke: SmokeTest, folder: Path) -> None:
    report = build_json(built, smoke)
    log = "\n".join(f"== attempt {attempt.number} ==\n{attempt.log}\n" for attempt in built.attempts)
    _write(folder, {"build.json": _text(report), "build.html": build_page(built, smoke), "build.log": log})


def write_test(tested: ImageTestResult, folder: Path) -> None:
    files = {
        "test.json": _text(test_json(tested)),
        "test.html": test_page(tested),
        "junit.xml": junit(tested),
    }
    _write(folder, files)


def write_push(pushed: PushResult, folder: Path) -> None:
    _write(folder, {"push.json": _text(push_json(pushed)), "push.html": push_page(pushed)})


def _text(document: "dict[str, Json]") -> str:
    return json.dumps(document, indent=2) + "\n"


def _write(folder: Path, files: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CannotWriteError(
            f"cannot write the report to {folder}: {error.strerror}",
            "name a folder where this user may write",
        ) from error


def junit(tested: ImageTestResult) -> str:
    """JUnit report for CI systems: one case for each check."""
    suite = ElementTree.Element("testsuite", name=f"paceline image test {tested.image}")
    suite.set("tests", str(len(tested.checks)))
    suite.set("failures", str(tested.count(Verdict.FAILED)))
    for check in tested.checks:
        case = ElementTree.SubElement(suite, "testcase", classname=check.group, name=check.name)
        case.set("time", f"{check.seconds or 0.0:.3f}")
        if check.verdict is Verdict.FAILED:
            failure = ElementTree.SubElement(case, "failure", message=_plain(redact(check.detail)))
            failure.text = _plain(check.advice)
        else:
            output = " ".join(part for part in (redact(check.detail), check.advice) if part)
            ElementTree.SubElement(case, "system-out").text = _plain(output)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _plain(text: str) -> str:
    """Remove control characters, which XML cannot contain."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "?" for sign in text)
