"""Which synchronization modes suit what a script prepared, and why the others do not.

The same rules apply before a run starts, to the facts that a probe has measured, and in every worker, to
what it has prepared.
"""

from collections.abc import Iterator

from paceline.core.errors import Problem, ScriptError, script_error
from paceline.plan.catalog import MODES, Channel, Mode
from paceline.plan.plan import Plan
from paceline.worker.script.facts import ScriptFacts

MODES_IN_TURN = tuple(mode.name for mode in MODES.values() if mode.steps_in_turn)
STREAM_MODES = tuple(mode.name for mode in MODES.values() if mode.reads_streams)


def is_meeting_mode(mode: Mode) -> bool:
    """Whether every worker makes all steps of the run, and can exchange values with the others."""
    return mode.channel not in (Channel.STORE, Channel.PEERS) and not mode.shares_differ


def unsuited(facts: ScriptFacts, mode: Mode, *, is_elastic: bool) -> list[Problem]:
    """Every reason why a script with these facts cannot run in this mode."""
    return list(_reasons(facts, mode, is_elastic))


def require_suited(facts: ScriptFacts, plan: Plan) -> None:
    """Raises ScriptError with every reason."""
    if plan.mode in MODES:
        problems = unsuited(facts, MODES[plan.mode], is_elastic=plan.elastic is not None)
        if problems:
            raise ScriptError(problems)


def _reasons(facts: ScriptFacts, mode: Mode, is_elastic: bool) -> Iterator[Problem]:
    is_served = mode.channel is Channel.STORE
    kind = f"an elastic run in mode {mode.name}" if is_elastic else mode.name
    meets = is_meeting_mode(mode) and not is_elastic
    if facts.turns > 1 and (is_elastic or not mode.steps_in_turn):
        yield Problem(
            f"{facts.turns} optimizers step in turn, and {kind} makes one update per batch",
            f"use --mode {', '.join(MODES_IN_TURN)} without --elastic; or run.prepare(model, [a, b]) if "
            "they step "
            "together",
            code="E121",
        )
    if facts.has_plateau and not meets:
        yield Problem(
            f"ReduceLROnPlateau needs a number on which all workers agree, and those of {kind} never meet",
            "use a schedule by steps or epochs, such as CosineAnnealingLR; or --mode ssgd without --elastic",
            code="E126",
        )
    if facts.meets and not meets:
        yield Problem(
            f"run.mean, run.gather and run.split need all workers at the same step, and those of {kind} "
            "are not",
            "use run.evaluate, which every worker may call at any time; or --mode ssgd without --elastic",
            code="E126",
        )
    if facts.has_scaler and (is_served or is_elastic):
        yield Problem(
            f"a GradScaler changes its scale with every update, and {kind} makes updates elsewhere",
            "use bf16, which needs no GradScaler; or --mode ssgd without --elastic",
            code="E122",
        )
    if facts.has_stream and not mode.reads_streams:
        yield Problem(
            f"a stream is read in order, and workers of {mode.name} take any share, or shares of any size",
            f"use --mode {', '.join(STREAM_MODES)}; or a map-style dataset",
            code="E125",
        )
    if facts.keeps_state and facts.has_after_update and is_elastic and not is_served and mode.name != "ssgd":
        yield Problem(
            f"after_update may change kept state, and a worker of {kind} makes the updates of several "
            "shards: a moving average would take each of them",
            "change it in run.on_commit, and leave after_update out; or use --mode ssgd",
            code="E134",
        )
    if facts.keeps_state and is_served:
        yield Problem(
            f"run.state and run.keep are saved with the model, and the server of {mode.name} does not run "
            "the loop",
            "use a mode without a server: --mode ssgd",
            code="E134",
        )


# Habits of a script that the probe sees, or a worker.


def refuse_rates(mode: str) -> ScriptError:
    return script_error(
        "E134",
        f"the script sets the learning rate by hand, and the server of {mode} has its own",
        "use a scheduler of torch and prepare it: LambdaLR(optimizer, fn); or use --mode ssgd",
    )


def refuse_changed_gradients(count: int) -> ScriptError:
    return script_error(
        "E122",
        f"the gradients of {count} parameters were changed after backward (clip_grad_norm_?): that "
        "would change each worker's own",
        "use run.clip_grad_norm_ or run.clip_grad_value_, which act on the agreed gradient",
    )


def refuse_changed_parameters(mode: str) -> ScriptError:
    return script_error(
        "E134",
        f"the script changes parameters outside of optimizer.step(), and in {mode} other processes make "
        "updates, too",
        "do it where the update is made:  run.prepare(…, after_update=fn)",
    )


def refuse_changed_state() -> ScriptError:
    return script_error(
        "E134",
        "the script changes kept state in the body of the loop, which not every worker of an elastic run "
        "runs in every step",
        "change it in  run.on_commit(fn)  or  run.prepare(…, after_update=fn)",
    )
