"""Which settings exist? One table; flags, PACELINE_* variables, file keys and docs derive from it.

A key named `num_workers` is the flag `--num-workers`, the variable
`PACELINE_NUM_WORKERS` and the key `num_workers` of a YAML or TOML file.
`plan.resolve` checks ranges and choices against the same rows.
"""

from paceline.config.key import Key
from paceline.config.keys_of_models import MODEL_KEYS
from paceline.config.keys_of_modes import MODE_KEYS
from paceline.config.keys_of_places import PLACE_KEYS
from paceline.config.keys_of_runs import RUN_KEYS

KEYS: dict[str, Key] = {key.name: key for key in (*RUN_KEYS, *MODEL_KEYS, *MODE_KEYS, *PLACE_KEYS)}
