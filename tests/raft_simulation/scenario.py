"""Scenario files: comments, commands, `----`, and the transcript; an empty line ends a scenario.

cluster 3                     three voters; `cluster 3 spare 1 one-entry` for more nodes and small messages
log 2 term 3: 1 1 3           before anything happens: node 2 is in term 3 and has entries of these terms
elect 1                       node 1 leads: campaigns, and all messages are delivered
campaign 1                    it loses patience
tick 1 x 10                   its clock goes on
deliver                       all that waits, and what follows; `deliver 1->2 2->1` only what waits there
drop 1->2                     what waits there is lost
propose 1 x=1
read 1
change 1 voters 1 2 3 learners 4
transfer 1 2
compact 1
crash 1
restart 1
cut 1 | 2 3                   nothing passes between these, until `heal`
show                          every node, or `show 1 2`
quietly deliver               without what was said: only what changed
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from tests.raft_simulation.stage import Stage

from paceline.coordinator.raft.core import Timing
from paceline.coordinator.raft.types import Membership, NodeId, Term

MARK = "----"


@dataclass(frozen=True, slots=True)
class Block:
    """Comments and commands, and the transcript that belongs to them."""

    before: list[str]
    transcript: list[str]


def blocks(text: str) -> Iterator[Block]:
    for part in text.strip().split("\n\n"):
        lines = part.split("\n")
        at = lines.index(MARK) if MARK in lines else len(lines)
        yield Block(lines[:at], lines[at + 1 :])


def rewritten(text: str) -> str:
    """The scenario with the transcript that it has now."""
    scenario = Scenario()
    parts = []
    for block in blocks(text):
        commands = [line for line in block.before if line and not line.startswith("#")]
        result = scenario.run(commands)
        parts.append("\n".join([*block.before, MARK, *result] if commands else block.before))
    return "\n\n".join(parts) + "\n"


class Scenario:
    def __init__(self) -> None:
        self._stage: Stage | None = None

    @property
    def stage(self) -> Stage:
        assert self._stage is not None, "a scenario begins with `cluster`"
        return self._stage

    def run(self, commands: list[str]) -> list[str]:
        lines: list[str] = []
        for command in commands:
            is_quiet = command.startswith("quietly ")
            words = command.removeprefix("quietly ").split()
            if words[0] != "cluster":
                self.stage.is_quiet = is_quiet
            self._one(words[0], words[1:])
            lines += self.stage.lines
            self.stage.lines = []
        return lines or ["ok"]

    def _one(self, verb: str, words: list[str]) -> None:
        simple: dict[str, Callable[[NodeId], None]] = {}
        if self._stage is not None:
            stage = self._stage
            simple = {
                "elect": stage.elect,
                "campaign": stage.campaign,
                "read": stage.read,
                "compact": stage.compact,
                "crash": stage.crash,
                "restart": stage.restart,
            }
        if verb in simple:
            simple[verb](NodeId(int(words[0])))
            return
        getattr(self, f"_{verb}")(words)

    def _cluster(self, words: list[str]) -> None:
        spares = int(words[words.index("spare") + 1]) if "spare" in words else 0
        append_bytes = 1 if "one-entry" in words else 1 << 20
        self._stage = Stage(int(words[0]), spares, Timing(append_bytes=append_bytes))

    def _log(self, words: list[str]) -> None:
        node, term = NodeId(int(words[0])), Term(int(words[2].rstrip(":")))
        self.stage.put_on(node, [Term(int(word)) for word in words[3:]], term)

    def _tick(self, words: list[str]) -> None:
        self.stage.tick(NodeId(int(words[0])), int(words[2]) if len(words) > 1 else 1)

    def _deliver(self, words: list[str]) -> None:
        self.stage.deliver(_pairs(words) if words else None)

    def _drop(self, words: list[str]) -> None:
        self.stage.drop(_pairs(words))

    def _hold(self, words: list[str]) -> None:
        self.stage.hold(_pairs(words))

    def _release(self, words: list[str]) -> None:
        assert not words, "everything is released at once"
        self.stage.release()

    def _propose(self, words: list[str]) -> None:
        self.stage.propose(NodeId(int(words[0])), words[1])

    def _change(self, words: list[str]) -> None:
        at = words.index("learners") if "learners" in words else len(words)
        voters, learners = _nodes(words[2:at]), _nodes(words[at + 1 :])
        self.stage.change(NodeId(int(words[0])), Membership(frozenset(voters), frozenset(learners)))

    def _transfer(self, words: list[str]) -> None:
        self.stage.transfer(NodeId(int(words[0])), NodeId(int(words[1])))

    def _cut(self, words: list[str]) -> None:
        at = words.index("|")
        for one, other in product(_nodes(words[:at]), _nodes(words[at + 1 :])):
            self.stage.cut |= {(one, other), (other, one)}

    def _heal(self, words: list[str]) -> None:
        assert not words, "everything heals at once"
        self.stage.cut.clear()

    def _show(self, words: list[str]) -> None:
        self.stage.show(_nodes(words) or sorted(self.stage.actors))


def _nodes(words: list[str]) -> list[NodeId]:
    return [NodeId(int(word)) for word in words]


def _pairs(words: list[str]) -> set[tuple[NodeId, NodeId]]:
    results = (re.fullmatch(r"(\d+)->(\d+)", word) for word in words)
    return {(NodeId(int(m[1])), NodeId(int(m[2]))) for m in results if m is not None}
