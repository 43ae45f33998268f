"""Parsing of HTTP requests: query parameters and JSON bodies into types, or `BadRequestError`."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request

from paceline.core.errors import ExitCode, PacelineError
from paceline.faults.actions.request import ActionKind, ActionRequest

MAX_BYTES = 10_000
MAX_KEY_LENGTH = 100
MAX_NUMBER = 1e15
MAX_RUN_S = 1e9  # thirty years: fits into nanoseconds


class BadRequestError(PacelineError):
    """A request that cannot be read."""

    exit_code = ExitCode.USAGE
    code = "E901"


@dataclass(frozen=True, slots=True)
class PostedAction:
    """Body of POST /api/v1/actions: an action on a run, or a scenario with its own run."""

    run: str | None
    request: ActionRequest | None
    scenario: str | None = None
    times: int = 1
    key: str = ""


def number(query: Mapping[str, str], name: str) -> float | None:
    """None: not given."""
    text = query.get(name)
    if text is None or text == "":
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadRequestError(f"{name} is {text!r}, but it must be a number", f"use {name}=12.5, for example")
    return value


def moment(query: Mapping[str, str], name: str) -> float | None:
    """Seconds since the start of a run, limited to the longest possible run."""
    value = number(query, name)
    return None if value is None else max(0.0, min(MAX_RUN_S, value))


def integer(query: Mapping[str, str], name: str, default: int, *, maximum: int) -> int:
    value = number(query, name)
    return default if value is None else max(1, min(maximum, round(value)))


def read_action(body: bytes, *, by: str, source: str) -> PostedAction:
    fields = _object(body)
    known = {"key", "run", "action", "worker", "factor", "for_s", "force", "scenario", "times"}
    if unknown := sorted(set(fields) - known):
        raise BadRequestError(f"unknown field {unknown[0]!r}", f"fields are {', '.join(sorted(known))}")
    key = fields.get("key")
    if not isinstance(key, str) or not 8 <= len(key) <= MAX_KEY_LENGTH:
        raise BadRequestError(
            "key is missing",
            "send an idempotency key of 8 to 100 characters; requests with the same key are executed once",
        )
    run = fields.get("run")
    action = str(fields.get("action", ""))
    worker = str(fields.get("worker", ""))
    if action == "lab":
        return PostedAction(
            _text(run), None, str(fields.get("scenario", "")), int(_number(fields, "times", 1)), key
        )
    if action not in list(ActionKind):
        raise BadRequestError(f"unknown action {action!r}", f"actions are lab, {', '.join(ActionKind)}")
    request = ActionRequest(
        id=key,
        kind=ActionKind(action),
        worker=worker,
        factor=_number(fields, "factor", 4.0),
        for_s=_number(fields, "for_s", 30.0),
        is_forced=fields.get("force") is True,
        by=by,
        source=source,
    )
    return PostedAction(_text(run), request, key=key)


async def body_of(request: Request) -> bytes:
    """Read at most MAX_BYTES, regardless of Content-Length."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BYTES:
            raise BadRequestError(f"the body has more than {MAX_BYTES} bytes", f"send at most {MAX_BYTES}")
    return bytes(body)


def read_silence(body: bytes) -> tuple[str, float, str | None]:
    """(rule, duration in seconds, run)."""
    fields = _object(body)
    rule = fields.get("rule")
    for_s = _number(fields, "for_s", 600.0)
    if not isinstance(rule, str) or not rule:
        raise BadRequestError("rule is missing", 'send {"rule": …, "for_s": 600}')
    return rule, for_s, _text(fields.get("run"))


def _object(body: bytes) -> dict[str, object]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON: {error}", "send one JSON object") from error
    if not isinstance(value, dict):
        raise BadRequestError("the body is not a JSON object", 'send {"key": …, "action": …}')
    return value


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(fields: Mapping[str, object], name: str, default: float) -> float:
    value = fields.get(name, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Compared as text: an int may be too large for a float.
    if not is_number or not -MAX_NUMBER <= float(str(value)) <= MAX_NUMBER:
        raise BadRequestError(f"{name} is {value!r}, but it must be a number", f'send "{name}": {default:g}')
    return float(str(value))
