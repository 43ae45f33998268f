"""How long is this run in epochs, when is it evaluated, and what follows? In words, for `explain`."""

from paceline.plan.plan import Evaluation, Plan


def length_in_words(plan: Plan) -> str:
    """Of a run whose samples were counted; empty for others."""
    if plan.num_samples is None:
        return ""
    seen = f"{plan.total_samples / plan.num_samples:.3g} times all {plan.num_samples:,} training samples"
    return f"; {seen}" if plan.epochs is None else f"; {plan.epochs:g} epochs asked for, {seen} seen"


def evaluation_in_words(evaluation: Evaluation) -> str:
    when = "at the end of every epoch" if evaluation.every is None else f"every {evaluation.every} steps"
    text = f"on the validation data {when}, each worker a part of it, and after the last step"
    if evaluation.patience is None:
        return text
    metric = evaluation.metric or "valid_loss (or test_loss)"
    better = "fell" if evaluation.lower_is_better else "rose"
    times = "1 evaluation" if evaluation.patience == 1 else f"{evaluation.patience} evaluations in a row"
    return f"{text}; all stop when {metric} {better} no further for {times}, and the best weights are kept"


def scaling_in_words(plan: Plan) -> str:
    """What `--scale-lr linear` did to the rate; empty when it did nothing."""
    if plan.lr_scale <= 1.0:
        return ""
    return (
        f"times {plan.lr_scale:g} (linear rule: {plan.global_batch} samples per update instead of"
        f" {plan.global_batch // plan.num_workers})"
    )


def scaling_announced(plan: Plan) -> str:
    """The same as a whole sentence, for whoever starts the run."""
    warmup = 0 if plan.lr_schedule is None else plan.lr_schedule.warmup
    rises = f"reached over the first {warmup} steps" if warmup else "from the first step on"
    scaled = scaling_in_words(plan)
    return f"the learning rate is its own {scaled}, {rises}" if scaled else ""
