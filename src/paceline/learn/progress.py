"""How far has a learner come? Kept as one small JSON; every change gives a new progress."""

from dataclasses import dataclass, field, replace

SCHEMA = "paceline.learn/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    value: str
    at_unix_s: float
    tries: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartProgress:
    begun_unix_s: float
    prediction: Said | None = None
    answers: dict[str, Said] = field(default_factory=dict)  # by question
    done_unix_s: float | None = None

    @property
    def state(self) -> str:
        if self.done_unix_s is not None:
            return "done"
        return "begun" if self.prediction is None else "predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    parts: dict[str, PartProgress] = field(default_factory=dict)
    schema: str = SCHEMA

    def of(self, number: int) -> PartProgress | None:
        return self.parts.get(str(number))

    def state(self, number: int) -> str:
        part = self.of(number)
        return "not begun" if part is None else part.state

    def is_done(self, number: int) -> bool:
        return self.state(number) == "done"

    def begin(self, number: int, now_s: float) -> "Progress":
        """A part that was begun before stays as it is."""
        return self if self.of(number) is not None else self._with(number, PartProgress(begun_unix_s=now_s))

    def predict(self, number: int, value: str, now_s: float) -> "Progress":
        part = self._begun(number)
        return self._with(number, replace(part, prediction=Said(value=value, at_unix_s=now_s)))

    def answer(self, number: int, question: int, value: str, now_s: float) -> "Progress":
        part = self._begun(number)
        before = part.answers.get(str(question))
        said = Said(value=value, at_unix_s=now_s, tries=1 if before is None else before.tries + 1)
        return self._with(number, replace(part, answers={**part.answers, str(question): said}))

    def judged(self, number: int, now_s: float, *, is_done: bool) -> "Progress":
        part = self._begun(number)
        done_s = (part.done_unix_s or now_s) if is_done else None
        return self._with(number, replace(part, done_unix_s=done_s))

    def _begun(self, number: int) -> PartProgress:
        part = self.of(number)
        assert part is not None, "a part is begun before anything else"
        return part

    def _with(self, number: int, part: PartProgress) -> "Progress":
        return replace(self, parts={**self.parts, str(number): part})
