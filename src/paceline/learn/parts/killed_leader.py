"""Part 6: who decides when the one who decides is killed?"""

from paceline.learn.asked_for import is_as_asked
from paceline.learn.facts import Facts, KillFacts, NotSeenError
from paceline.learn.judge import exactly
from paceline.learn.lesson import Answer, Finding, Part, Prediction, Question


def _kills(facts: Facts) -> list[KillFacts]:
    """Those that struck while the run trained."""
    run = facts.run("led")
    return [
        kill for kill in facts.kills if kill.at_unix_s > run.began_unix_s and run.steps_after(kill.at_unix_s)
    ]


def _elected(facts: Facts) -> KillFacts:
    found = [kill for kill in _kills(facts) if kill.was_leader and kill.leader is not None]
    if not found:
        raise NotSeenError(
            "no leader was killed and followed by another while the run `led` trained",
            "type the block of the page again: the run must be training when you type coordinator kill",
        )
    return found[-1]


def _check(facts: Facts) -> list[Finding]:
    run, kill = facts.run("led"), _elected(facts)
    assert kill.new_term is not None, "who leads does so in a term"
    rose = Finding(
        kill.new_term > kill.term,
        f"node {kill.node} led term {kill.term} and is dead; node {kill.leader} leads term {kill.new_term}",
    )
    stayed = Finding(
        True,  # whoever made none after the kill was not training: see _kills
        f"then the workers of {run.folder} made {run.steps_after(kill.at_unix_s)} steps in their generation",
    )
    without = Finding(
        any(other.leader is None for other in _kills(facts)),
        "with two of three nodes dead nobody led, and training went on",
        "kill a second node while the run trains: paceline coordinator kill",
    )
    proofs = [
        Finding(ok, what, "this is a fault of paceline itself; keep the folder") for ok, what in run.proofs
    ]
    asked = is_as_asked("led", run, mode="ssgd", workers=2, is_elastic=True)
    return [asked, rose, stayed, without, *proofs]


def _leader(facts: Facts) -> Answer:
    leader = _elected(facts).leader
    assert leader is not None, "somebody was elected"
    return exactly(leader)


def _majority(facts: Facts) -> Answer:
    if facts.nodes == 0:
        raise NotSeenError("there is no coordinator in runs/coordinator", "type the block of the page")
    return exactly(facts.nodes // 2 + 1)


KILLED_LEADER = Part(
    number=6,
    title="Kill the leader",
    minutes=10,
    page="part-6.md",
    see="Three coordinators agree on who trains. Their leader is killed, then a second node.",
    prediction=Prediction(
        text="The coordinator's leader is killed while two workers train. For how many steps does "
        "training stop?",
        seen=lambda facts: (
            f"the workers made {facts.run('led').steps_after(_elected(facts).at_unix_s)} more steps while "
            f"node {_elected(facts).leader} was elected and led"
        ),
    ),
    runs=("led",),
    new_runs=("led",),
    check=_check,
    questions=(
        Question(
            text="Which node led after the first one was killed?",
            right=_leader,
            hint="`paceline coordinator kill` said it; so does runs/coordinator/kills.jsonl",
        ),
        Question(
            text="How many generations had the run?",
            right=lambda facts: exactly(len(facts.run("led").generations)),
            hint="count the different numbers after `enters generation` in `paceline events runs/led`",
        ),
        Question(
            text="How many of the nodes must live so that anything can be agreed on?",
            right=_majority,
            hint="more than half of them",
        ),
    ),
    moral="The coordinator is not on the path of a step: it is needed when somebody comes or goes.",
)
