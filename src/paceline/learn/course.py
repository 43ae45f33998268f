"""Course: starts parts, records predictions and answers, and checks them against the evidence."""

from dataclasses import dataclass
from pathlib import Path

from paceline.core.clock import SystemClock, boot_id, unix_now_s
from paceline.core.disk import write_durably
from paceline.core.errors import (
    ConfigError,
    DamagedRecordError,
    NothingRecordedError,
    Problem,
    UnreadableFileError,
)
from paceline.learn import progress as judge
from paceline.learn.lesson import Facts, Finding, NotSeenError, Options, Part, Question, readable
from paceline.learn.parts.failures import ALERT, KILLED_LEADER, KILLED_WORKER
from paceline.learn.parts.performance import FOUR_WORKERS, ONE_WORKER, REPORT, STALENESS, STRAGGLER
from paceline.learn.parts.ray import DECISION, MORE_WORKERS, RAY_DASHBOARD, STARTUP, TWO_WORKERS
from paceline.learn.parts.ray_failures import FIRST_RAY_RUN, KILLED_RAYLET, KILLED_TRAIN_WORKER
from paceline.learn.progress import Moment, Progress

PARTS = (
    ONE_WORKER,
    FOUR_WORKERS,
    STRAGGLER,
    STALENESS,
    KILLED_WORKER,
    KILLED_LEADER,
    ALERT,
    REPORT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A series of parts; each track stands alone."""

    name: str
    title: str
    parts: tuple[Part, ...]

    @property
    def first(self) -> int:
        return self.parts[0].number


BASICS = Track(name="basics", title="Strategies and failures, on this machine", parts=PARTS)
ON_RAY = Track(
    name="ray",
    title="Keras on a Ray cluster, with Minikube or without",
    parts=(
        FIRST_RAY_RUN,
        TWO_WORKERS,
        STARTUP,
        RAY_DASHBOARD,
        MORE_WORKERS,
        KILLED_TRAIN_WORKER,
        KILLED_RAYLET,
        DECISION,
    ),
)
TRACKS = (BASICS, ON_RAY)


NAME = "progress.json"


def page_path(page: str) -> Path:
    """The page in the installed package; in the repository if paceline runs from its sources."""
    package = Path(__file__).parent
    installed = package / "pages" / page
    return installed if installed.exists() else package.parents[2] / "docs" / "learn" / page


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    part: Part
    findings: tuple[Finding, ...]

    @property
    def is_done(self) -> bool:
        return all(finding.ok for finding in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    is_right: bool
    tries: int
    hint: str  # empty if the answer is right


class Course:
    """State of one learner: progress in `folder`, runs in its parent folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._run_root = folder.absolute().parent
        self.progress, self.is_valid = self._read()  # is_valid: the file's checksum is

    @staticmethod
    def reset(folder: Path) -> "Course":
        """Delete the progress; the runs stay."""
        (folder / NAME).unlink(missing_ok=True)
        return Course(folder)

    def part(self, number: int | None) -> Part:
        """The given part, else the first one of the track that is not done, else its last."""
        if number is None:
            return judge.current(self.track.parts, self.progress) or self.track.parts[-1]
        found = [part for track in TRACKS for part in track.parts if part.number == number]
        if not found:
            numbers = " or ".join(f"from {track.first} to {track.parts[-1].number}" for track in TRACKS)
            raise ConfigError([Problem(f"there is no part {number}", f"choose a part {numbers}", "PART")])
        return found[0]

    @property
    def track(self) -> Track:
        """The track of the part that was started last."""
        begun = {int(number): part.begun_unix_s for number, part in self.progress.parts.items()}
        newest = max(begun, key=lambda number: begun[number], default=BASICS.first)
        return track_of(newest)

    def start(self, part: Part) -> list[int]:
        """Start the part; returns the parts before it that are not done."""
        self._save(self.progress.begin(part.number, unix_now_s()))
        return judge.skipped(part.number, self.progress, track_of(part.number).first)

    def predict(self, part: Part, value: str) -> None:
        _readable(value, part.prediction.options, "GUESS")
        self.start(part)
        now = Moment(unix_s=unix_now_s(), monotonic_ns=SystemClock().now_ns(), boot_id=boot_id())
        self._save(self.progress.predict(part.number, value, now, self._existing(part)))

    def answer(self, part: Part, number: int, value: str) -> Answered:
        """Raises NothingRecordedError if the run of the question does not exist."""
        question = self._question(part, number)
        _readable(value, question.options, "VALUE")
        self.start(part)
        try:
            is_right = judge.verdict(question, value, self._facts(part))
        except NotSeenError as error:
            raise NothingRecordedError(
                f"the answer cannot be checked yet: {error.what}", error.hint
            ) from error
        self._save(self.progress.answer(part.number, number, value, unix_now_s()))
        recorded = self.progress.parts[str(part.number)].answers[str(number)]
        return Answered(is_right=is_right, tries=recorded.tries, hint="" if is_right else question.hint)

    def check(self, part: Part) -> Checked:
        recorded = self.progress.of(part.number)
        findings = judge.check(part, recorded, self._facts(part), is_valid=self.is_valid)
        checked = Checked(part=part, findings=tuple(findings))
        if recorded is not None:
            self._save(self.progress.judged(part.number, unix_now_s(), is_done=checked.is_done))
        return checked

    def _facts(self, part: Part) -> Facts:
        from paceline.learn.evidence import gather  # heavy import, not needed for a list

        return gather(self._run_root, part.runs, tries_rules=part.has_rules, benchmarks=part.benchmarks)

    def _existing(self, part: Part) -> list[str]:
        from paceline.learn.evidence import fingerprints  # as above

        return fingerprints(
            self._run_root, part.new_runs, is_compared=part.is_compared, benchmarks=part.new_benchmarks
        )

    @staticmethod
    def _question(part: Part, number: int) -> Question:
        if not 1 <= number <= len(part.questions):
            message = f"part {part.number} has no question {number}"
            hint = f"it has {len(part.questions)} questions: paceline learn start {part.number}"
            raise ConfigError([Problem(message, hint, "QUESTION")])
        return part.questions[number - 1]

    def _read(self) -> tuple[Progress, bool]:
        try:
            return judge.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Progress(), True
        except OSError as error:
            message = f"{self._path} cannot be read: {error.strerror}"
            raise UnreadableFileError(message, "name another folder with --dir") from error
        except ValueError as error:
            hint = f"start over: paceline learn --reset --dir {self._path.parent}"
            raise DamagedRecordError(f"{self._path} cannot be read: {error}", hint) from error

    def _save(self, progress: Progress) -> None:
        if progress != self.progress or not self._path.exists():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(self._path, [judge.dumps(progress, is_valid=self.is_valid).encode()])
        self.progress = progress


def track_of(number: int) -> Track:
    """The track with this part; the first one for an unknown number."""
    return next((track for track in TRACKS if any(part.number == number for part in track.parts)), BASICS)


def _readable(value: str, options: Options, where: str) -> None:
    if readable(value, options):
        return
    keys = ", ".join(key for key, _ in options)
    hint = f"choose one of: {keys}" if options else "enter a number, such as 3.5 or 51"
    raise ConfigError([Problem(f"{value!r} is not a valid answer", hint, where)])
