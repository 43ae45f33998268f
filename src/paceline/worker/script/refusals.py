"""Errors of habits of a script that some modes cannot follow: seen by the probe, or by a worker.

They import no torch, because the command that starts a run raises them, too.
"""

from paceline.core.errors import ScriptError, script_error


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
