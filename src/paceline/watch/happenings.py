"""How is an event told in a line? A sign and a sentence for each kind."""

from collections.abc import Mapping

from paceline.plan.codec import Json

# kind: (sign, sentence with the event's fields)
_WORDS: dict[str, tuple[str, str]] = {
    "run_started": ("▶", "the run begins"),
    "run_resumed": ("▶", "the run goes on from version {version}"),
    "worker_started": ("◐", "{who} is ready (process {pid})"),
    "worker_finished": ("✔", "{who} ended after {steps} steps: {reason}"),
    "worker_lost": ("✕", "a process was lost: {cause}"),
    "stop_requested": ("■", "asked to stop by {by}"),
    "checkpoint": ("✚", "checkpoint of step {step} by {who}"),
    "checkpoint_failed": ("✕", "the checkpoint of step {step} failed: {reason}"),
    "checkpoint_skipped": ("▲", "no checkpoint of step {step}: earlier ones are still being written"),
    "evaluated": ("◇", "evaluated after step {step}: {metrics}"),
    "early_stop": ("■", "stopped early after step {step}: {reason}"),
    "adapted": ("⇄", "after step {step} from {from} to {to}: {reason}"),
    "generation_entered": ("■", "{who} enters generation {number}: {why}"),
    "generation_lost": ("▲", "{who} leaves generation {number}: {why}"),
    "server_started": ("◐", "{who} serves part {part} from version {version}"),
    "server_promoted": ("▲", "{who} took over part {part} from {instead_of}"),
    "server_restored": ("▲", "part {part} goes back to version {version}"),
    "backup_placed": ("✚", "{backup} is the backup of part {part}"),
    "push_refused": ("▲", "{who}: the share at {position} was given up meanwhile"),
    "supervision": ("●", "{decision}"),
    "slow_worker": ("▲", "{worker}: {reason}"),
    "shards_dealt": ("⇄", "shards are dealt out anew from step {step}: {reason}"),
    "step_skipped": ("▲", "step {step} was left out: the gradient of {shards} was not finite"),
    "alert_silenced": ("●", "{by} silenced {rule}: {comment}"),
    "notified": ("●", "{alerts} alerts by {notifier}: {outcome}"),
    "action": ("⚡", "{action} {target}: {phase}, {note}"),
    "fault_injected": ("⚡", "{by} injects {fault} into {target}"),
    "run_finished": ("■", "the run is over: {outcome}"),
}


def in_words(kind: str, who: str, fields: Mapping[str, object]) -> tuple[str, str]:
    """(sign, sentence). A kind of a newer version is told by its name."""
    sign, words = _WORDS.get(kind, ("●", f"{kind} by {{who}}"))
    return sign, words.format_map(_Known({"who": who, **fields}))


class _Known(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return "?"


def told(seq: int, kind: str, who: str, at_s: float, fields: Mapping[str, Json]) -> dict[str, Json]:
    sign, words = in_words(kind, who, fields)
    return {
        "seq": seq,
        "t_s": at_s,
        "kind": kind,
        "who": who,
        "glyph": sign,
        "text": words,
        "fields": dict(fields),
    }
