"""Reference pages of errors and exit codes, from the catalog that `paceline explain` reads."""

from itertools import groupby

from docs.messages import Message, messages
from docs.tables import code, prose, table
from paceline.core.error_catalog.index import ERROR_CATALOG, EXIT_CODE_MEANINGS
from paceline.core.errors import ErrorEntry, ExitCode


def errors_page() -> list[str]:
    found = messages({row.kind: row.code for row in ERROR_CATALOG.values() if row.kind})
    by_code = {name: list(group) for name, group in groupby(found, key=lambda message: message.code)}
    lines = [
        "# Errors",
        "",
        "An error contains what happened, with the actual value, the reason, and the fix:",
        "",
        "```text",
        "error[E102]: --num-workers: num_workers is 0, but it must be from 1 to 1024",
        "  why:  invalid value for a configuration key",
        "  fix:  set num_workers to 2, for example",
        "  more: paceline explain E102",
        "```",
        "",
        "Invalid settings are all reported at once, each with its location (a flag, a variable, or file and",
        "line). A code never changes its meaning. `paceline explain E102` prints the same in the terminal;",
        "with `--json` an error has its `code` too. Anything that is not listed here is a bug in",
        "paceline, [E001](#e001).",
        "",
        *table(
            ("code", "exit code", "why"),
            (
                (f"[{row.code}](#{row.code.lower()})", str(int(row.exit_code)), row.why)
                for row in ERROR_CATALOG.values()
            ),
        ),
        "",
        "In the messages below, `…` is a value that is only known at run time.",
    ]
    for row in ERROR_CATALOG.values():
        lines += _section(row, by_code.get(row.code, []))
    return lines


def _section(row: ErrorEntry, said: list[Message]) -> list[str]:
    name = row.kind.rpartition(":")[2]
    raised = f" Raised as {code(name)}." if name else ""
    meaning = f"{row.why[0].upper()}{row.why[1:]}. Exit code [{int(row.exit_code)}](exit-codes.md).{raised}"
    lines = [
        "",
        f"## {row.code}",
        "",
        prose(meaning),
        "",
        f"Example: {code(f'error[{row.code}]: {row.example}')}",
        "",
    ]
    lines += [f"- cause: {prose(cause)}" for cause in row.causes]
    lines += [f"- what to do: {prose(deed)}" for deed in row.do]
    if said:
        rows = ((m.what, m.hint, code(m.where)) for m in said)
        lines += ["", *table(("message", "fix", "raised in"), rows)]
    return lines


def exit_codes_page() -> list[str]:
    rows = ((str(int(exit_code)), EXIT_CODE_MEANINGS[exit_code]) for exit_code in ExitCode)
    return [
        "# Exit codes",
        "",
        "Scripts may rely on them. With `--json` an error is one object on stdout:",
        '`{"schema": "paceline.error/1", "ok": false, "error": {"exit_code": …, "problems": […]}}`;',
        "each problem has `code`, `what`, `hint` and `where`. In a terminal: `paceline explain exit 7`.",
        "",
        *table(("code", "meaning"), rows),
        "",
        "Which error ends with which code is in [errors](errors.md).",
    ]
