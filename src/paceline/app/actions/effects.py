"""Effects of actions, reported only when the run's own log, or the kernel, shows them."""

from paceline.app.actions.look import Look, state_of
from paceline.app.actions.wanted import Deed, Wanted
from paceline.plan.plan import Plan

STEPS_JUDGED = 20  # that a slowed worker has made since: some of them fall between two stops


def seen(wanted: Wanted, plan: Plan, look: Look, since_ns: int, generation: int) -> str:
    """In words; empty: nothing yet. `generation` was the newest before."""
    match wanted.deed:
        case Deed.KILL:
            return _of_kill(wanted, plan, look, since_ns, generation)
        case Deed.SLOW:
            return _of_slow(wanted, look, since_ns)
        case Deed.PAUSE:
            is_stopped = state_of(look.pids.get(wanted.worker, 0)) == "T"
            return f"the kernel has stopped {wanted.worker}" if is_stopped else ""
        case Deed.RESUME:
            state = state_of(look.pids.get(wanted.worker, 0))
            return f"{wanted.worker} runs" if state and state != "T" else ""
        case Deed.CHECKPOINT:
            saved = look.since("checkpoint", since_ns)
            return f"step {saved[-1].fields['step']} is on disk" if saved else ""
        case _:
            ended = look.since("run_finished", since_ns)
            return f"the run is over: {ended[-1].fields['outcome']}" if ended else ""


def _of_slow(wanted: Wanted, look: Look, since_ns: int) -> str:
    """Steps must take clearly longer: at least half of the slowdown that was asked for."""
    before_s = look.mean_step_s(before_ns=since_ns)
    now_s = look.mean_step_s(since_ns=since_ns, least=STEPS_JUDGED)
    if before_s is None or now_s is None or before_s <= 0:
        return ""
    ratio = now_s / before_s
    if ratio < 1 + (wanted.factor - 1) / 2:
        return ""
    return f"steps of {wanted.worker} take {ratio:.1f} times as long: {now_s:.3g} s, {before_s:.3g} s before"


def _of_kill(wanted: Wanted, plan: Plan, look: Look, since_ns: int, generation: int) -> str:
    if ended := look.since("run_finished", since_ns):
        return f"the run is over: {ended[-1].fields['outcome']}"
    if wanted.worker.startswith("server-"):
        return _of_replacement(wanted, look, since_ns)
    for event in look.since("generation_entered", since_ns):
        number = int(str(event.fields["number"]))
        if number > generation:
            took_s = (event.at_ns - since_ns) / 1e9
            workers = str(event.fields["workers"]).split(",")
            return f"generation {number} with {len(workers)} workers, after {took_s:.2f} s"
    return _of_replacement(wanted, look, since_ns) if plan.elastic is not None else ""


def _of_replacement(wanted: Wanted, look: Look, since_ns: int) -> str:
    """Where there are no generations: behind parameter servers."""
    found = [event for event in look.since("worker_started", since_ns) if event.who == wanted.worker]
    has_generations = any(event.kind == "generation_entered" for event in look.events)
    if not found or has_generations:
        return ""
    return f"{wanted.worker} was replaced after {(found[0].at_ns - since_ns) / 1e9:.2f} s"
