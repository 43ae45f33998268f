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
MAX_RUN_S = 1e9  # of a run: thirty years, which nanoseconds can count


class BadRequestError(PacelineError):
    """A request that cannot be read."""

    exit_code = ExitCode.USAGE
    code = "E901"


@dataclass(frozen=True, slots=True)
class PostedAction:
    """What POST /api/v1/actions was sent: a wish about a run, or an experiment on a run of its own."""

    run: str | None
    wanted: ActionRequest | None
    experiment: str | None = None
    times: int = 1
    key: str = ""


def number(query: Mapping[str, str], name: str) -> float | None:
    """None: it was not said."""
    said = query.get(name)
    if said is None or said == "":
        return None
    try:
        value = float(said)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadRequestError(f"{name} is {said!r}, but it must be a number", f"say {name}=12.5, for example")
    return value


def moment(query: Mapping[str, str], name: str) -> float | None:
    """Of a run, in seconds since it began: what is further away than any run lasts is its end."""
    value = number(query, name)
    return None if value is None else max(0.0, min(MAX_RUN_S, value))


def integer(query: Mapping[str, str], name: str, usual: int, *, most: int) -> int:
    value = number(query, name)
    return usual if value is None else max(1, min(most, round(value)))


def read_action(body: bytes, *, by: str, source: str) -> PostedAction:
    said = _object(body)
    known = {"key", "run", "action", "worker", "factor", "for_s", "force", "scenario", "times"}
    if unknown := sorted(set(said) - known):
        raise BadRequestError(f"there is no field {unknown[0]!r}", f"fields are {', '.join(sorted(known))}")
    key = said.get("key")
    if not isinstance(key, str) or not 8 <= len(key) <= MAX_KEY_LENGTH:
        raise BadRequestError(
            "key is missing",
            "send a text of 8 to 100 characters of your own: with the same one it is done once",
        )
    run = said.get("run")
    action = str(said.get("action", ""))
    worker = str(said.get("worker", ""))
    if action == "lab":
        return PostedAction(
            _text(run), None, str(said.get("scenario", "")), int(_number(said, "times", 1)), key
        )
    if action not in list(ActionKind):
        raise BadRequestError(f"there is no action {action!r}", f"actions are lab, {', '.join(ActionKind)}")
    wanted = ActionRequest(
        id=key,
        deed=ActionKind(action),
        worker=worker,
        factor=_number(said, "factor", 4.0),
        for_s=_number(said, "for_s", 30.0),
        is_forced=said.get("force") is True,
        by=by,
        source=source,
    )
    return PostedAction(_text(run), wanted, key=key)


async def body_of(request: Request) -> bytes:
    """No more of it is read than is allowed, whatever its head says."""
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > MAX_BYTES:
            raise BadRequestError(f"the body has more than {MAX_BYTES} bytes", f"send at most {MAX_BYTES}")
    return bytes(found)


def read_silence(body: bytes) -> tuple[str, float, str | None]:
    """A rule, for how long, of which run."""
    said = _object(body)
    rule = said.get("rule")
    for_s = _number(said, "for_s", 600.0)
    if not isinstance(rule, str) or not rule:
        raise BadRequestError("rule is missing", 'send {"rule": …, "for_s": 600}')
    return rule, for_s, _text(said.get("run"))


def _object(body: bytes) -> dict[str, object]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is no JSON: {error}", "send one JSON object") from error
    if not isinstance(said, dict):
        raise BadRequestError("the body is no object", 'send {"key": …, "action": …}')
    return said


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(said: Mapping[str, object], name: str, usual: float) -> float:
    value = said.get(name, usual)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if (
        not is_number or not -MAX_NUMBER <= float(str(value)) <= MAX_NUMBER
    ):  # by its text: an int may be longer
        raise BadRequestError(f"{name} is {value!r}, but it must be a number", f'send "{name}": {usual:g}')
    return float(str(value))
