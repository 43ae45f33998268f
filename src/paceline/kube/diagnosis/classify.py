"""Which failure does a piece of text tell of? The first words of the table that fit it."""

from dataclasses import dataclass
from functools import lru_cache

from paceline.kube.diagnosis.failure import Doubt, Failure, Source, Text
from paceline.kube.diagnosis.table import TEXTS

_TRIED: dict[Source | None, tuple[Text, ...]] = {
    None: TEXTS,
    **{source: tuple(text for text in TEXTS if source in text.sources) for source in Source},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognised:
    failure: Failure
    values: dict[str, str]
    by: Text
    where: int  # of the words, from the beginning of the text

    @property
    def is_doubtful(self) -> bool:
        """Outside a log nothing is known of progress."""
        return self.by.doubt is Doubt.ALWAYS


@lru_cache(maxsize=4096)  # a follower reads the same events and log lines at every look
def classify(text: str, source: Source | None = None) -> Recognised | None:
    """`source` is where the text was found; without it, all words are tried."""
    for known in _TRIED[source]:
        found = known.words.search(text)
        if found is not None:
            values = {name: value.strip() for name, value in found.groupdict().items() if value}
            failure = known.failure if known.choose is None else known.choose(values)
            return Recognised(failure=failure, values=values, by=known, where=found.start())
    return None
