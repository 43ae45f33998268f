"""Do the Hugging Face packages that are pinned fit each other? (17)"""

from collections.abc import Iterator

from packaging.specifiers import SpecifierSet

from paceline.images.changing import respelled
from paceline.images.matrix import matrix
from paceline.images.project import Finding
from paceline.images.rules.pattern import Pattern
from paceline.images.view import Place

SKEW = Pattern(
    number=17,
    id="hugging-face-skew",
    what="transformers is pinned beside a tokenizers or huggingface-hub that it refuses.",
    fix="the neighbour's pin becomes the range that the pinned transformers asks for",
)
PATTERNS = (SKEW,)


def hugging_face_skew(place: Place) -> Iterator[Finding]:
    main = place.find("transformers")
    if main is None or main.asked.pin is None or main not in place.own:
        return
    stack = matrix().stack(main.asked.pin)
    for name, said in ({} if stack is None else stack.needs).items():
        neighbour = place.find(name)
        pin = None if neighbour is None else neighbour.asked.pin
        if neighbour is None or pin is None or SpecifierSet(said).contains(pin, prereleases=True):
            continue
        new = neighbour.asked.with_range(lower_bound_first(said))
        yield SKEW.found(
            place,
            neighbour.asked,
            f"transformers {main.asked.pin} refuses {name} {pin}: pip finds no solution",
            f"transformers {main.asked.pin} needs {name}{said} (wheel metadata of {matrix().dated})",
            f"write {new}",
            respelled(place, neighbour.asked, new),
        )


def lower_bound_first(said: str) -> str:
    """`<2,>=1` as people write it: `>=1,<2`."""
    return ",".join(
        sorted((part.strip() for part in said.split(",")), key=lambda p: (not p.startswith(">"), p))
    )


RULES = (hugging_face_skew,)
