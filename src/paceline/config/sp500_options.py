"""Options of the task sp500, by the section of a configuration file.

One table for both ways to write them: `--task-option hidden=64`, and
`model: {hidden: 64}` of a file in sections. The task checks against it too.
"""

from paceline.config.key import Group, Key, Kind
from paceline.config.values import Unreadable, read

_ROWS = {
    "data": (
        Key(
            name="npz_path",
            group=Group.DATA,
            help="Output file of `paceline data prepare sp500`.",
            kind=Kind.TEXT,
            default="sp500_classification.npz",
            example="sp500_classification.npz",
        ),
        Key(
            name="valid_from_train",
            group=Group.DATA,
            help="Fraction of the training samples, the latest ones, used for validation.",
            kind=Kind.NUMBER,
            default="0.1",
            example="0.1",
            minimum=0,
            maximum=0.9,
        ),
        Key(
            name="shuffle_train",
            group=Group.DATA,
            help="Shuffle the training samples in every epoch; by default they are in chronological order.",
            kind=Kind.YES_NO,
            default="no",
            example="no",
        ),
        Key(
            name="norm",
            group=Group.DATA,
            help="Feature normalization; zscore uses mean and deviation of the training samples only.",
            kind=Kind.CHOICE,
            default="zscore",
            example="zscore",
            choices=("zscore", "none"),
        ),
    ),
    "model": (
        Key(
            name="hidden",
            group=Group.MODEL,
            help="Hidden size of the LSTM.",
            kind=Kind.INTEGER,
            default="64",
            example="64",
            minimum=1,
            maximum=65536,
        ),
        Key(
            name="layers",
            group=Group.MODEL,
            help="Number of LSTM layers.",
            kind=Kind.INTEGER,
            default="1",
            example="1",
            minimum=1,
            maximum=64,
        ),
        Key(
            name="dropout",
            group=Group.MODEL,
            help="Dropout after the LSTM and between its layers.",
            kind=Kind.NUMBER,
            default="0.1",
            example="0.1",
            minimum=0,
            maximum=0.99,
        ),
    ),
    "eval": (
        Key(
            name="threshold",
            group=Group.EVALUATION,
            help="Probability from which `up` is predicted.",
            kind=Kind.NUMBER,
            default="0.5",
            example="0.5",
            minimum=0,
            maximum=1,
        ),
        Key(
            name="save_cm",
            group=Group.EVALUATION,
            help="Write confusion_matrix.json and a plot of it to the run folder.",
            kind=Kind.YES_NO,
            default="no",
            example="yes",
        ),
    ),
}
BY_SECTION: dict[str, dict[str, Key]] = {
    section: {key.name: key for key in keys} for section, keys in _ROWS.items()
}
OPTIONS: dict[str, Key] = {name: key for keys in BY_SECTION.values() for name, key in keys.items()}


def read_sp500_option(key: Key, raw: str | int | float | bool) -> str | int | float | bool:
    """The option's value; raises Unreadable also for what is out of range."""
    value = read(key, raw)
    assert isinstance(value, str | int | float), "each of the options is a single value"
    if key.choices and value not in key.choices:
        raise Unreadable(f"it must be {key.allowed}")
    is_number = key.kind in (Kind.INTEGER, Kind.NUMBER)
    if is_number and not isinstance(value, str) and not key.contains(value):
        raise Unreadable(f"it must be {key.allowed}")
    return value
