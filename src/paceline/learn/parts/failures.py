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
    RunFacts,
    exactly,
    is_expected_run,
    rounded,
)

FROM = (
    ("a", "from a checkpoint on disk"),
    ("b", "from the memory of a surviving worker"),
    ("c", "from nowhere: training started over"),
)


def _check(facts: Facts) -> list[Finding]:
    run = facts.run("struck")
    killed = Finding(
        bool(run.lost),
        f"killed in {run.folder}: {', '.join(run.lost) or 'no worker'}",
        "run it again, and run `paceline workers kill runs/… worker-1` while it trains",
    )
    rose = Finding(
        len(run.generations) > 1,
        f"generations of {run.folder}: {', '.join(map(str, run.generations))}",
        "wait until `paceline workers list` shows a new generation before you stop the run",
    )
    proofs = [
        Finding(ok, what, "this is a bug in paceline: please report it, and keep the folder")
        for ok, what in run.proofs
    ]
    return [is_expected_run("struck", run, mode="ssgd", workers=3, is_elastic=True), killed, rose, *proofs]


def _last(facts: Facts) -> Answer:
    generations = facts.run("struck").generations
    if not generations:
        raise NotSeenError("the run has no generations", "start it with --elastic, as on the page")
    return exactly(max(generations))


def _source(facts: Facts) -> Answer:
    run = facts.run("struck")
    if len(run.generations) < 2:
        raise NotSeenError(
            "no worker has been replaced yet", "kill one while the run trains, and wait for generation 3"
        )
    return ChoiceAnswer(key="b" if run.healed_from else "a")


KILLED_WORKER = Part(
    number=5,
    title="Kill a worker",
    minutes=10,
    page="part-5.md",
    see="An elastic run with three workers, and `kill -9` of one of them in the middle of a step.",
    prediction=Prediction(
        text="A worker is killed in the middle of a step. How many steps of the run are lost or repeated?",
        seen=lambda facts: (
            "0: every step was committed exactly once"
            if facts.run("struck").proofs and all(ok for ok, _ in facts.run("struck").proofs)
            else "see the findings below"
        ),
    ),
    runs=("struck",),
    new_runs=("struck",),
    check=_check,
    questions=(
        Question(
            text="What is the number of the last generation of the run?",
            right=_last,
            hint="the lines `enters generation` of `paceline events runs/struck`",
        ),
        Question(
            text="Where did the new worker get the parameters from?",
            right=_source,
            hint="the page explains it; `paceline events runs/struck` has no event that reads a checkpoint",
            options=FROM,
        ),
    ),
    moral="Work belongs to the run, not to a worker: a dead worker takes no work with it.",
)


def _kills(facts: Facts) -> list[KillFacts]:
    """Kills while the run trained, according to the log of the run as well."""
    run = facts.run("led")
    return [
        kill
        for kill in facts.kills
        if kill.at_unix_s > run.began_unix_s and run.steps_after(kill.at_unix_s) and _is_in_log(kill, run)
    ]


def _is_in_log(kill: KillFacts, run: RunFacts) -> bool:
    """Whether the run sampled the old leader and then a later term, or no leader at all.

    kills.jsonl is a text file; the samples are in the event log of the run.
    """
    samples = run.leaders
    if kill.leader is None:
        return any(sample.leader is None for sample in samples)
    before = [
        number
        for number, sample in enumerate(samples)
        if sample.leader == kill.node and sample.term == kill.term
    ]
    later = samples[before[0] :] if before else ()
    return any(sample.term is None or sample.term > kill.term for sample in later)


def _elected(facts: Facts) -> KillFacts:
    kills = [kill for kill in _kills(facts) if kill.was_leader and kill.leader is not None]
    if not kills:
        raise NotSeenError(
            "no leader was killed and replaced while the run `led` trained",
            "run the block of the page again: the run must be training during `paceline coordinator kill`",
        )
    return kills[-1]


def _killed_leader_check(facts: Facts) -> list[Finding]:
    run = facts.run("led")
    kill = _elected(facts)
    assert kill.new_term is not None, "a leader has a term"
    rose = Finding(
        kill.new_term > kill.term,
        f"node {kill.node}, leader of term {kill.term}, was killed; "
        f"node {kill.leader} became leader of term {kill.new_term}",
    )
    stayed = Finding(
        True,  # a run without steps after the kill was not training: see _kills
        f"the workers of {run.folder} made {run.steps_after(kill.at_unix_s)} more steps in that generation",
    )
    without = Finding(
        any(other.leader is None for other in _kills(facts)),
        "with two of three nodes dead there was no leader, and training continued",
        "kill a second node while the run trains: paceline coordinator kill",
    )
    proofs = [
        Finding(ok, what, "this is a bug in paceline: please report it, and keep the folder")
        for ok, what in run.proofs
    ]
    expected = is_expected_run("led", run, mode="ssgd", workers=2, is_elastic=True)
    return [expected, rose, stayed, without, *proofs]


def _leader(facts: Facts) -> Answer:
    leader = _elected(facts).leader
    assert leader is not None, "a leader was elected"
    return exactly(leader)


def _majority(facts: Facts) -> Answer:
    if facts.nodes == 0:
        raise NotSeenError("there is no coordinator in runs/coordinator", "run the block of the page")
    return exactly(facts.nodes // 2 + 1)


KILLED_LEADER = Part(
    number=6,
    title="Kill the leader",
    minutes=10,
    page="part-6.md",
    see="Three coordinator nodes manage the membership of a run. You kill their leader, then a second node.",
    prediction=Prediction(
        text="The coordinator's leader is killed while two workers train. For how many steps does "
        "training stop?",
        seen=lambda facts: (
            f"0: the workers made {facts.run('led').steps_after(_elected(facts).at_unix_s)} more steps "
            "in the same generation"
        ),
    ),
    runs=("led",),
    new_runs=("led",),
    check=_killed_leader_check,
    questions=(
        Question(
            text="Which node became leader after the first one was killed?",
            right=_leader,
            hint="the output of `paceline coordinator kill`; also in runs/coordinator/kills.jsonl",
        ),
        Question(
            text="How many generations did the run have?",
            right=lambda facts: exactly(len(facts.run("led").generations)),
            hint="count the different numbers after `enters generation` in `paceline events runs/led`",
        ),
        Question(
            text="How many of the three nodes must be alive to elect a leader?",
            right=_majority,
            hint="Raft needs a majority of all nodes, dead ones included",
        ),
    ),
    moral="The coordinator is not on the path of a step: it is needed when a worker joins or leaves.",
)


YES_NO = (("a", "yes"), ("b", "no"))


def _own(facts: Facts) -> RuleFacts:
    """The learner's best rule: one that fires on `slow`, then the one with most conditions."""
    if not facts.rules:
        raise NotSeenError(
            facts.rules_problem or "there is no rule in rules.yaml", "save the rule of the page as rules.yaml"
        )
    return max(facts.rules, key=lambda rule: (bool(rule.fired["slow"]), rule.conditions))


def _alert_check(facts: Facts) -> list[Finding]:
    facts.run("slow")
    facts.run("four")
    rule = _own(facts)
    fired = rule.fired["slow"]
    return [
        Finding(
            rule.conditions >= 2,
            f"{rule.name} has {rule.conditions} condition{'s' if rule.conditions > 1 else ''}",
            "add the condition on the state of the run, as on the page: a finished run has no slow worker",
        ),
        Finding(
            "worker-1" in fired,
            f"{rule.name} on the run `slow`: {_fired(fired)}",
            "compare the threshold with the column `speed` of `paceline status runs/slow`",
        ),
        Finding(
            set(fired) <= {"worker-1"},
            f"{rule.name} fires only for worker-1",
            "the other workers have the median speed, 1: lower the threshold",
        ),
        Finding(
            len(fired) == len(set(fired)),
            f"{rule.name} fires once, not repeatedly",
            "average over a window (reduce: avg, window: 10s), or set keep_firing_for",
        ),
        Finding(
            not rule.fired["four"],
            f"{rule.name} on the run `four`: {_fired(rule.fired['four'])}",
            "no worker is slow in `four`: lower the threshold",
        ),
    ]


def _fired(workers: tuple[str, ...]) -> str:
    return f"fires for {', '.join(workers)}" if workers else "does not fire"


def _speed(facts: Facts) -> Answer:
    speed = facts.run("slow").speeds.get(1)
    if speed is None:
        raise NotSeenError("the run `slow` has no speed of worker-1", "run the command of part 3 again")
    return rounded(speed, 0.1)


ALERT = Part(
    number=7,
    title="Write an alert",
    minutes=10,
    page="part-7.md",
    see="An alerting rule, evaluated on the recorded runs of parts 2 and 3.",
    prediction=Prediction(
        text="Does the rule on the page fire on the run `slow`?",
        options=YES_NO,
        seen=lambda facts: f"your rule now: {_fired(_own(facts).fired['slow'])}",
    ),
    runs=("four", "slow"),
    new_runs=(),
    check=_alert_check,
    questions=(
        Question(
            text="What was the speed of worker-1 in `slow`, relative to the median worker (one decimal)?",
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
    moral="A rule is a condition on metrics that held for some time; test it on recorded runs.",
)
