"""How is a fix taken back? Its record is read from the end; what is not ours, or holds data, stays."""

from dataclasses import dataclass, replace

from paceline.app.cluster_fix import Workshop
from paceline.app.fix_record import Record, Step
from paceline.errors import ClusterWishError, Problem


@dataclass(frozen=True, slots=True)
class Undone:
    step: Step
    why: str  # empty: it is taken back


def undo(shop: Workshop, record: Record) -> list[Undone]:
    """Raises ApiError, HelmError, ConfigError. Doing it twice does nothing the second time."""
    if record.server != shop.api.server:
        what = f"fix {record.id} was made on {record.server}, and this is {shop.api.server}"
        raise ClusterWishError([Problem(what, "name its cluster: --context NAME", "--undo")])
    results: list[Undone] = []
    for number in range(len(record.steps) - 1, -1, -1):
        step = record.steps[number]
        if step.state == "undone":
            continue  # what was kept is looked at again: it may be empty by now
        why = _take_back(shop, step, record.id)
        record.steps[number] = replace(step, state="kept" if why else "undone")
        record.save()
        results.append(Undone(step, why))
    return results


def _take_back(shop: Workshop, step: Step, fix: str) -> str:
    """Why it stays as it is; empty: it is taken back."""
    if step.verb == "remove":
        return "a pod that had ended does not come back; what it was is in the record's folder"
    if step.verb == "install":
        return shop.helm.take_back(step.object, step.namespace, step.revision, step.made)
    if step.verb == "addon":
        from paceline.app.addon_fix import take_back_addon

        return take_back_addon(shop.aws, step)
    from paceline.cluster.fixing import why_kept
    from paceline.cluster.kinds import kind_of
    from paceline.cluster.port import NotThereError

    kind = kind_of({"kind": step.kind, "apiVersion": step.api_version})
    space = step.namespace if kind.is_namespaced else None
    try:
        made = shop.api.get(kind, step.object, space)
    except NotThereError:
        return ""  # somebody was quicker
    why = why_kept(shop.api, kind, made, fix)
    if not why:
        shop.api.delete(kind, step.object, space)
    return why
