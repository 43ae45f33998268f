"""Parts of the course about failures: a killed worker, a killed leader, a lost majority, alerts."""

from paceline.learn.lesson import (
    Answer,
    ChoiceAnswer,
    Facts,
    Finding,
    KillFacts,
    NotSeenError,
    Part,
    Prediction,
    Question,
    RuleFacts,
    exactly,
    is_expected_run,
    rounded,
)

FROM = (
    ("a", "from a checkpoint on disk"),
    ("b", "from the memory of a worker that lived"),
    ("c", "from nobody: it began anew"),
)


def _check(facts: Facts) -> list[Finding]:
    run = facts.run("struck")
    killed = Finding(
        bool(run.lost),
        f"killed in {run.folder}: {', '.join(run.lost) or 'nobody'}",
        "run it again, and `paceline workers kill runs/… worker-1` while it trains",
    )
    rose = Finding(
        len(run.generations) > 1,
        f"generations of {run.folder}: {', '.join(map(str, run.generations))}",
        "wait until `paceline workers list` shows a new generation before you stop the run",
    )
    proofs = [
        Finding(ok, what, "this is a fault of paceline itself; keep the folder") for ok, what in run.proofs
    ]
    return [is_expected_run("struck", run, mode="ssgd", workers=3, is_elastic=True), killed, rose, *proofs]


def _last(facts: Facts) -> Answer:
    generations = facts.run("struck").generations
    if not generations:
        raise NotSeenError("that run has no generations", "begin it with --elastic, as on the page")
    return exactly(max(generations))


def _source(facts: Facts) -> Answer:
    run = facts.run("struck")
    if len(run.generations) < 2:
        raise NotSeenError("no worker was replaced yet", "kill one while the run trains, and wait a moment")
    return ChoiceAnswer(key="b" if run.healed_from else "a")


KILLED_WORKER = Part(
    number=5,
    title="Kill a worker",
    minutes=10,
    page="part-5.md",
    see="kill -9 of a worker while it trains: the others go on, and a new one takes its place.",
    prediction=Prediction(
        text="A worker is killed in the middle of a step. How many steps of the run are lost?",
        seen=lambda facts: (
            "none: every step counts exactly once"
            if facts.run("struck").proofs and all(ok for ok, _ in facts.run("struck").proofs)
            else "see below"
        ),
    ),
    runs=("struck",),
    new_runs=("struck",),
    check=_check,
    questions=(
        Question(
            text="Which generation was the last of the run?",
            right=_last,
            hint="the lines `enters generation` of `paceline events runs/struck`",
        ),
        Question(
            text="Where did the new worker get the parameters from?",
            right=_source,
            hint="is a checkpoint read before the new generation? docs/concepts/generations.md, point 3",
            options=FROM,
        ),
    ),
    moral="Work belongs to the run and not to a worker: who dies takes nothing along.",
)


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


def _killed_leader_check(facts: Facts) -> list[Finding]:
    run = facts.run("led")
    kill = _elected(facts)
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
    asked = is_expected_run("led", run, mode="ssgd", workers=2, is_elastic=True)
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
    check=_killed_leader_check,
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


YES_NO = (("a", "yes"), ("b", "no"))


def _own(facts: Facts) -> RuleFacts:
    """The learner's rule that does best: most conditions, then whatever fires."""
    if not facts.rules:
        raise NotSeenError(facts.rules_problem or "there is no rule in rules.yaml", "see the page")
    return max(facts.rules, key=lambda rule: (bool(rule.fired["slow"]), rule.conditions))


def _alert_check(facts: Facts) -> list[Finding]:
    facts.run("slow"), facts.run("four")  # it is tried on both
    rule = _own(facts)
    fired = rule.fired["slow"]
    return [
        Finding(
            rule.conditions >= 2,
            f"{rule.name} has {rule.conditions} condition{'s' if rule.conditions > 1 else ''}",
            "it must look at the state of the run too, as on the page: a run that is over has no slow worker",
        ),
        Finding(
            "worker-1" in fired,
            f"{rule.name} on the record of `slow`: {_fired(fired)}",
            "see how slow worker-1 was (the column `speed` of `paceline status runs/slow`), and for how long",
        ),
        Finding(
            set(fired) <= {"worker-1"},
            f"{rule.name} accuses nobody but worker-1",
            "the others were as fast as the median: a speed of 1",
        ),
        Finding(
            len(fired) == len(set(fired)),
            f"{rule.name} fires once, not again and again",
            "let it look at an average over a window, or keep it firing for a while (keep_firing_for)",
        ),
        Finding(
            not rule.fired["four"],
            f"{rule.name} on the record of `four`: {_fired(rule.fired['four'])}",
            "nobody is slow in `four`: your limit is too high",
        ),
    ]


def _fired(workers: tuple[str, ...]) -> str:
    return f"fires for {', '.join(workers)}" if workers else "silent"


def _speed(facts: Facts) -> Answer:
    speed = facts.run("slow").speeds.get(1)
    if speed is None:
        raise NotSeenError("the record of `slow` says nothing of worker-1", "make that run again (part 3)")
    return rounded(speed, 0.1)


ALERT = Part(
    number=7,
    title="Write an alert",
    minutes=10,
    page="part-7.md",
    see="A rule of yours finds the slow worker in the record of part 3, and says nothing about part 2.",
    prediction=Prediction(
        text="Of the rule on the page: does it fire on the run `slow` as it stands?",
        options=YES_NO,
        seen=lambda facts: f"your rule now: {_fired(_own(facts).fired['slow'])}",
    ),
    runs=("four", "slow"),
    new_runs=(),
    check=_alert_check,
    questions=(
        Question(
            text="At which share of the median speed did worker-1 of `slow` work (one digit after "
            "the point)?",
            right=_speed,
            hint="the column `speed` of `paceline status runs/slow`",
        ),
        Question(
            text="For how many different workers does your rule fire on `slow`?",
            right=lambda facts: exactly(len(set(_own(facts).fired["slow"]))),
            hint="paceline alerts list runs/slow --all --rules rules.yaml",
        ),
    ),
    has_rules=True,
    moral="A rule is a sentence about metrics that was true for a while; try it on runs that are over.",
)
