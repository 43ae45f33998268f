"""The most significant sign in a log: tracebacks are read whole, other lines one by one.

A log holds more than the cause: harmless warnings, handled exceptions, and errors of ranks that lost
a peer. An exact match counts more than any exception, and an exception more than errors about peers.

Progress (steps, batches) divides a log: an error followed by progress was harmless, and an error after
progress is not caused by a wrong set-up.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from paceline.k8s.diagnose.classify import Recognised, classify
from paceline.k8s.diagnose.findings import Doubt, Sign, Source, Weight
from paceline.k8s.diagnose.rules.application import USER_EXCEPTION
from paceline.k8s.diagnose.rules.gpus import NCCL_TIMEOUT
from paceline.k8s.diagnose.snapshot import Log, Object
from paceline.k8s.objects import split_line

_SUMMARY = re.compile(
    r"Root Cause \(first observed failure\):.*?"
    r"time\s*:\s*(?P<time>[\d-]+_[\d:]+).*?"
    r"host\s*:\s*(?P<host>\S+).*?"
    r"rank\s*:\s*(?P<rank>\d+)"
    r"(?:.{0,200}?exitcode\s*:\s*(?P<code>-?\d+))?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, order=True)
class RootFailure:
    time: str  # as written in the log, sortable as text
    host: str
    rank: int
    exit_code: int | None = field(default=None, compare=False)

    def is_of(self, pod: str, rank: int | None) -> bool:
        """Match by host, if the pod is known: the rank of a pod counts nodes, and this one processes."""
        host = self.host.split(".")[0]
        # A pod of an Indexed Job has a tail that its host's name lacks.
        return pod == host or pod.startswith(f"{host}-") if pod else rank == self.rank


def first_failure(logs: Iterable[Log]) -> RootFailure | None:
    failures = [
        RootFailure(
            match["time"],
            match["host"],
            int(match["rank"]),
            None if match["code"] is None else int(match["code"]),
        )
        for log in logs
        for match in _SUMMARY.finditer(log.text)
    ]
    return min(failures, default=None)


_PREFIX = re.compile(
    r"(?:\[pod/[^\]]*\] ?)?(?:\([\w.:]+ pid=\d+[^)]*\) ?)?"
    # Launchers name the stream, the host or the task: [stderr], [1,3]<stderr>:, worker-0:, 3:, worker-0 |
    r"(?:\[std(?:err|out)\]:? ?|\[\d+,\d+\]<std(?:err|out)>: ?"
    r"|[\w.-]*\d[\w.-]*(?:: |\s{1,8}\|{1,2} )"
    r"(?=Traceback | {2,4}\S|(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)\b))?"
    r"(?:\[(?:rank|default|r|trainer|worker)[-=]?(\d+)(?:\|\d+)?[^\]]*\]:? ?(?:\|{1,2} ?)?)?"
)
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\[(?:\d{1,2}(?:;\d{1,2})*)m")
_CHATTER = ("NCCL INFO",)  # NCCL's fallbacks are not the cause of a failure
_LIBRARY = re.compile(
    r"(?:site|dist)-packages/|/lib/python\d|<frozen|/bin/(?:torchrun|accelerate|ray|deepspeed)$"
)
_RAY_TASK = re.compile(r"RayTaskError\((\w+)\)")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_LINKS = ("During handling of the above exception", "The above exception was the direct cause")
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)', re.MULTILINE)
# Raised in survivors and in observers: the cause is in another process.
_OTHERS = re.compile(
    r"\b(?:ChildFailedError|SignalException|DistBackendError|DistNetworkError|DistStoreError|KeyboardInterrupt|ConnectionResetError"
    r"|BrokenPipeError|ActorDiedError|WorkerCrashedError|ProcessRaisedException|ProcessExitedException|RendezvousClosedError"
    r"|CalledProcessError|EOFError: $|ConnectionRefusedError)"
)
# Errors of the API server, which a client library raises in the program or an operator writes to its log.
_API_CLIENT = re.compile(
    r"\bApiException\b|\bError from server\b|HTTP response body: |\bis forbidden: |failed calling webhook"
    r"|admission webhook|\blevel=(?:fatal|error)\b[^\n]*\bserver\b"
)
_PRODUCT = re.compile(r"error\[E\d+\]: ")  # the product's own last words
_RAISED = re.compile(r"\s*(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)\b")
_NUMBER = re.compile(r"\d+")
# A line that begins a new record, and so ends the message of an exception.
_RECORD = re.compile(
    r"\[[EWIF]\d* |[EWIF]\d{4} \d\d:|\[?\d{4}-\d\d-\d\d|(?:ERROR|WARNING|INFO|CRITICAL|DEBUG)\b"
    r"|terminate called|torch\.distributed\.elastic|[\w.-]+:\d+:\d+ \[\d+\] |\$ "
)
# Steps, iterations and progress bars. The number distinguishes repeated lines.
_PROGRESS = re.compile(
    r"\b(?:global_)?(?:step|iter(?:ation)?|batch)s?[ =:#/\[(]+(\d+)|\b(\d+)/\d+ ?\[\d+:\d\d", re.IGNORECASE
)
# Group, rank, number and kind of a collective that timed out.
_COLLECTIVE = re.compile(
    r"(?:\[PG (?:ID )?(\w+)[^\]]*?)?\bRank (\d+)\][^\n]{0,200}?SeqNum=(\d+), OpType=(\w+)", re.IGNORECASE
)
_IN_FLIGHT = 100  # operations that may be queued before a rank waits for the others
_PROGRESSED = 3  # different steps: peers of a dead rank may also print one or two
# Exceptions of a program that its surroundings may have caused: another attempt may help, or not.
_SURROUNDINGS = re.compile(
    r"\b(?:Connection\w*Error|ConnectionError|Timeout\w*|\w*Timeout(?:Error|Exception)?|\w*RpcError|CommError"
    r"|CalledProcessError|ProtocolError|SSLError|URLError|HTTPError|RemoteError|NetworkError)\b"
    r"|\[Errno (?:32|101|103|104|110|111|113)\]"
    r"|\b(?:timed out|time-?out|UNAVAILABLE|DEADLINE_EXCEEDED|unreachable|temporar\w+|try again|heartbeats?"
    r"|lost connection|disconnected|preempt\w+|connection (?:refused|reset|closed|aborted|lost))\b",
    re.IGNORECASE,
)
# Answers that the same request receives again.
_FINAL_ANSWER = re.compile(
    r"\b4(?:0[0-79]|1\d|2[0-46-8]) (?:Client Error|\w+ https?:)|HTTP ?Error 4(?:0[0-79]|1\d)\b"
)
_AFTER = 6  # lines of an exception's message that may follow its first
# A program's end is at the end of its log; a progress bar may be one line of a megabyte.
_MOST_LINES = 5000
_LONGEST_LINE = 2000


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    at_s: float | None
    rank: int | None
    text: str


@dataclass(frozen=True, slots=True)
class _Progress:
    reports: tuple[int, ...]  # numbers of the lines that report a step for the first time
    advanced: int | None  # the first line whose step is not one of the first: steps before it were made

    def after(self, number: int) -> bool:
        return sum(report > number for report in self.reports) >= _PROGRESSED

    def before(self, number: int) -> bool:
        progressed = sum(report < number for report in self.reports) >= _PROGRESSED
        return progressed or (self.advanced is not None and self.advanced < number)


@dataclass(frozen=True, slots=True)
class _Block:
    """A chain of tracebacks, or one other line."""

    lines: tuple[_Line, ...]
    is_traceback: bool
    is_last: bool = False  # the last traceback of its rank: what the program ended with

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)


def read_log(log: Log, pod: Object) -> Sign | None:
    """The most telling sign in it."""
    lines = _lines(log.text)
    progress = _progress(lines)
    blocks = _without_chatter(list(_blocks(lines)))
    signs = [sign for block in blocks if (sign := _sign(block, log, pod, progress)) is not None]
    best = min(signs, key=_telling, default=None)
    if best is not None and best.failure is NCCL_TIMEOUT and _ranks_diverge(log.text):
        return replace(best, is_doubtful=True)
    return best


def _progress(lines: list[_Line]) -> "_Progress":
    first: dict[str, int] = {}
    for line in lines:
        match = _PROGRESS.search(line.text)
        if match is not None and not _RAISED.match(line.text):
            first.setdefault(match[1] or match[2], line.number)
    advanced = [number for step, number in first.items() if len(step) > 1 or int(step) >= _PROGRESSED]
    return _Progress(tuple(sorted(first.values())), min(advanced, default=None))


def _ranks_diverge(text: str) -> bool:
    """Whether ranks waited in different operations of one group: a mistake of the program, most likely."""
    last: dict[str, dict[str, tuple[int, str]]] = {}
    for group, rank, number, operation in _COLLECTIVE.findall(text):
        last.setdefault(group, {}).setdefault(rank, (int(number), operation))
    for waiting in last.values():
        numbers = [number for number, _ in waiting.values()]
        if max(numbers) - min(numbers) > _IN_FLIGHT:
            return True
        if len(set(numbers)) < len(set(waiting.values())):
            return True
    return False


def _without_chatter(blocks: list[_Block]) -> list[_Block]:
    """Keep the first and last of lines that differ in their numbers only, such as progress."""
    kept: dict[str | int, list[_Block]] = {}
    for number, block in enumerate(blocks):
        form = number if block.is_traceback else _NUMBER.sub("0", block.text)
        kept[form] = [*kept.get(form, [])[:1], block]
    return sorted(
        (block for blocks in kept.values() for block in blocks), key=lambda block: block.lines[0].number
    )


def _telling(sign: Sign) -> tuple[int, bool, bool]:
    return -sign.heaviness, sign.failure is USER_EXCEPTION, sign.is_doubtful


def _lines(text: str) -> list[_Line]:
    lines = []
    for number, raw in enumerate(text.splitlines()[-_MOST_LINES:]):
        at_s, rest = split_line(raw[-_LONGEST_LINE:] if len(raw) > _LONGEST_LINE else raw)
        for part in _unpacked(_COLOURS.sub("", rest)):
            prefix = _PREFIX.match(part)
            rank = int(prefix[1]) if prefix and prefix[1] else None
            message = part[prefix.end() :] if prefix else part
            if not any(word in message for word in _CHATTER):
                lines.append(_Line(number, at_s, rank, message))
    return lines


def _unpacked(line: str) -> list[str]:
    """The texts in a line of JSON, as structured loggers write it; escaped quotes become plain ones."""
    if line.lstrip().startswith("{"):
        try:
            value = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            value = None
        if isinstance(value, dict):
            texts = [text for text in value.values() if isinstance(text, str)]
            return [part for text in texts for part in text.splitlines()]
    return [line.replace('\\"', '"')]


def _blocks(lines: list[_Line]) -> Iterator[_Block]:
    """Rank by rank, because they write at the same time."""
    for rank in dict.fromkeys(line.rank for line in lines):
        rank_lines = [line for line in lines if line.rank == rank]
        blocks: list[_Block] = []
        at = 0
        while at < len(rank_lines):
            end = _end_of_chain(rank_lines, at) if _TRACEBACK.search(rank_lines[at].text) else at + 1
            blocks.append(_Block(tuple(rank_lines[at:end]), bool(_TRACEBACK.search(rank_lines[at].text))))
            at = end
        own = [n for n, block in enumerate(blocks) if block.is_traceback and not _is_of_others(block)]
        every = [n for n, block in enumerate(blocks) if block.is_traceback]
        last = max(own or every, default=-1)
        yield from (replace(block, is_last=number == last) for number, block in enumerate(blocks))


def _is_of_others(block: _Block) -> bool:
    """Whether it complains about a peer or a store, so that an earlier exception is the cause."""
    exception = _exception(block).text
    recognised = classify(exception, Source.LOG)
    is_consequence = recognised is not None and recognised.failure.weight is Weight.CONSEQUENCE
    return is_consequence or _OTHERS.search(exception) is not None


def _end_of_chain(lines: list[_Line], start: int) -> int:
    """Behind the message of the last exception that was raised out of the one that begins here."""
    at = start + 1
    while at < len(lines):
        while at < len(lines) and (lines[at].text.startswith((" ", "\t")) or not lines[at].text):
            at += 1  # frames
        end = min(at + 1 + _AFTER, len(lines))
        linked = next((n for n in range(at, end) if lines[n].text.startswith(_LINKS)), None)
        following = None if linked is None else _next_traceback(lines, linked)
        if following is None:
            return _end_of_message(lines, at, end)
        at = following + 1
    return at


def _next_traceback(lines: list[_Line], start: int) -> int | None:
    return next(
        (n for n in range(start, min(start + 4, len(lines))) if _TRACEBACK.search(lines[n].text)), None
    )


def _end_of_message(lines: list[_Line], start: int, end: int) -> int:
    if start < len(lines) and _RAY_TASK.search(lines[start].text):
        # The exception of the remote function follows its frames.
        while end < len(lines) and lines[end].text.startswith((" ", "\t")):
            end += 1
        end = min(end + 1, len(lines))
    for number in range(start + 1, end):
        if _TRACEBACK.search(lines[number].text) or _RECORD.match(lines[number].text):
            return number
    return end


def _sign(block: _Block, log: Log, pod: Object, progress: _Progress) -> Sign | None:
    recognised = _recognised(block, log)
    if recognised is None:
        return None
    values = dict(recognised.values)
    weight = _weight(recognised, block)
    if Source.LOG not in recognised.by.sources:
        # A call to the API that was refused: the cause only if the program ended with it.
        is_handled = block.is_traceback and not block.is_last
        if is_handled:
            weight = Weight.HINT
        elif not log.mixed:
            weight = min(weight, Weight.MASK)
    if progress.after(block.lines[-1].number):
        weight = Weight.NOTE  # the program continued
    telling = _line_of(block, recognised)
    has_progressed = progress.before(block.lines[0].number)
    is_doubtful = _is_doubtful(recognised.by.doubt, has_progressed=has_progressed)
    if recognised.failure is USER_EXCEPTION and (block.is_traceback or _RAISED.match(block.text)):
        message = _exception(block).text if block.is_traceback else block.text
        is_temporary = _SURROUNDINGS.search(message) is not None and _FINAL_ANSWER.search(message) is None
        is_doubtful = is_doubtful or is_temporary
    if recognised.failure is USER_EXCEPTION and block.is_traceback:
        telling = _exception(block)
        values["detail"] = _raised(block, telling)
        if _is_of_others(block):
            weight = Weight.CONSEQUENCE
            values.pop("at", None)
            values["detail"] = _silent_exit(log) or values["detail"]
        else:
            values["at"] = _source_line(block)
    rank = int(values["rank"]) if values.get("rank", "").isdigit() else block.lines[0].rank
    evidence = [f"log of {log.pod}: {telling.text.strip()}" if log.pod else telling.text.strip()]
    if recognised.failure is USER_EXCEPTION and values.get("at"):
        evidence.append(f"raised{values['at']}")
    return Sign(
        recognised.failure,
        tuple(evidence),
        telling.at_s,
        pod,
        values,
        rank,
        weight,
        is_doubtful=is_doubtful,
    )


def _is_doubtful(doubt: Doubt, *, has_progressed: bool) -> bool:
    match doubt:
        case Doubt.NONE:
            return False
        case Doubt.UNTIL_PROGRESS:
            return not has_progressed
        case Doubt.AFTER_PROGRESS:
            return has_progressed
        case Doubt.ALWAYS:
            return True


def _recognised(block: _Block, log: Log) -> Recognised | None:
    """Match a block; in text of unknown origin also cluster messages, on lines that no program writes."""
    is_program = (
        block.is_traceback or block.lines[0].rank is not None or _RAISED.match(block.text) is not None
    )
    if (is_program or not log.mixed) and _API_CLIENT.search(block.text):
        recognised = classify(block.text, Source.API)
        if recognised is not None:
            return recognised
    recognised = classify(block.text, Source.LOG) if is_program or not log.mixed else None
    return classify(block.text) if recognised is None and log.mixed else recognised


def _raised(block: _Block, telling: _Line) -> str:
    """The exception, and for one that Ray carries also the original one."""
    carried = _RAY_TASK.search(telling.text)
    message = telling.text.strip()
    if carried is None:
        return message
    behind = (line.text.strip() for line in block.lines if line.number > telling.number)
    original = next((text for text in behind if text.startswith(carried[1])), "")
    return f"{original} ({message.partition(':')[0]})" if original else message


def _source_line(block: _Block) -> str:
    """The innermost frame of the program's own files; that of a library if there is no other."""
    frames: list[tuple[str, str]] = _FRAME.findall(block.text)
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    chosen = (own or frames)[-1:]
    return f" at {chosen[0][0]}:{chosen[0][1]}" if chosen else ""


def _silent_exit(log: Log) -> str:
    """Exit code in torchrun's summary of a process that wrote no error."""
    root = first_failure([log])
    if root is None or root.exit_code is None:
        return ""
    return f"its process ended with exit code {root.exit_code}, and this log holds no error of its own"


def _weight(recognised: Recognised, block: _Block) -> Weight:
    weight = recognised.failure.weight if recognised.by.weight is None else recognised.by.weight
    if recognised.by.soft and not block.is_last:
        is_cut_off = not block.is_traceback and _RAISED.match(block.text) is not None
        return min(weight, Weight.MASK) if is_cut_off else Weight.HINT
    if recognised.failure is USER_EXCEPTION and not block.is_last and not _PRODUCT.match(block.text):
        # Handled, or cut off from its traceback: used only without a better sign.
        return Weight.HINT if block.is_traceback else min(weight, Weight.MASK)
    return weight


def _line_of(block: _Block, recognised: Recognised) -> _Line:
    return block.lines[min(block.text.count("\n", 0, recognised.where), len(block.lines) - 1)]


def _exception(block: _Block) -> _Line:
    """The first line of the last exception's message."""
    last = max(n for n, line in enumerate(block.lines) if _TRACEBACK.search(line.text))
    behind = (line for line in block.lines[last + 1 :] if line.text and not line.text.startswith((" ", "\t")))
    return next(behind, block.lines[-1])
