"""Images with their build context: `FAULTY` has one fault each, `SOUND` none.

The faults lie between a Dockerfile and its context, or in what the container gets when it starts. They are
kept in tests/fixtures/images/contexts.yaml: name, the finding it must lead to, and the files.
"""

from pathlib import Path

import yaml

_FILE = Path(__file__).parent.parent / "fixtures" / "images" / "contexts.yaml"
_READ = yaml.safe_load(_FILE.read_text("utf-8"))

FAULTY: dict[str, tuple[str, dict[str, str]]] = {
    name: (item["finding"], item["files"]) for name, item in _READ["faulty"].items()
}
SOUND: dict[str, dict[str, str]] = _READ["sound"]
