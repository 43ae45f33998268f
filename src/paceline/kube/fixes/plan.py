"""Which fixes follow from the findings of a check, and from what was asked for? In the order of doing them.

Only what is wrong is mended: a note is no reason to write. What cannot be done safely is a command to read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.kube.checks.finding import Finding, Level
from paceline.kube.checks.need import Target
from paceline.kube.checks.snapshot import Snapshot, name_of
from paceline.kube.fixes import manifests
from paceline.kube.fixes.action import ByHand, ChangeAddon, Create, Fix, Install, RemovePod, called
from paceline.kube.fixes.charts import EFA_PLUGIN, GPU_PLUGIN, KUBERAY, TRAINER
from paceline.kube.fixes.devices import why_no_efa_plugin, why_no_gpu_plugin
from paceline.kube.fixes.manifests import ClaimAsked
from paceline.kube.parts import Object
from paceline.kube.reading import mapping

NAMES = (
    *("namespace", "claim", "secret", "rights", "runtime", "helpers"),
    *("kuberay", "trainer", "gpu-plugin", "efa-plugin", "addon", "by-hand"),
)
_CHARTS = {"kuberay": KUBERAY, "trainer": TRAINER, "gpu-plugin": GPU_PLUGIN, "efa-plugin": EFA_PLUGIN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user wants beside what the check finds."""

    claims: tuple[ClaimAsked, ...] = ()
    account: str | None = None
    target: Target = Target.JOB
    image: str | None = None  # of the runtime
    hf_token: str | None = None
    only: tuple[str, ...] = ()  # empty: all of NAMES


def plan(seen: Snapshot, findings: Sequence[Finding], asked: Asked) -> list[Fix]:
    wrong = [one for one in findings if one.level in (Level.PROBLEM, Level.WARNING)]
    cures = {one.cure: one for one in wrong if one.cure}
    found = [*_namespace(seen, cures), *_asked(seen, asked)]
    if "runtime" in cures:
        found.append(_runtime(seen, cures["runtime"], asked))
    installs = [fix for name in _CHARTS if name in cures for fix in _install(seen, name, cures[name])]
    addons = [fix for one in wrong for fix in _addon(one)]
    hands = [_by_hand(one) for one in wrong if one.cure == "" and one.command and not _covered(one, addons)]
    # Two findings may name one command, and what is typed once is enough.
    everything = list({(fix.name, fix.what): fix for fix in [*found, *installs, *addons, *hands]}.values())
    return [fix for fix in everything if not asked.only or fix.name in asked.only]


def finished_helpers(pods: Sequence[Object]) -> list[Fix]:
    """`pods`: those with the labels of transfer/helper.py. One that is at work is left alone."""
    return [
        Fix(
            name="helpers",
            what=f"remove Pod {name_of(pod)}, which carried files and has ended",
            why="it holds a volume and a place in the quota",
            action=RemovePod({"apiVersion": "v1", "kind": "Pod", **pod}),
        )
        for pod in pods
        if mapping(pod, "status").get("phase") in ("Succeeded", "Failed")
    ]


def _namespace(seen: Snapshot, cures: dict[str, Finding]) -> Iterator[Fix]:
    if "namespace" in cures:
        yield _create("namespace", manifests.namespace(seen.namespace), cures["namespace"].what)


def _asked(seen: Snapshot, asked: Asked) -> Iterator[Fix]:
    there = {name_of(one) for one in seen.of("persistentvolumeclaims")}
    for claim in asked.claims:
        if claim.name not in there:
            yield _create(
                "claim", manifests.claim(claim, seen.namespace), "it was asked for, and is not there"
            )
    if asked.hf_token is not None:
        secret = manifests.hugging_face(asked.hf_token, seen.namespace)
        yield _create("secret", secret, "it was asked for: the token of your login on this machine")
    if asked.account is not None:
        for one in manifests.identity(asked.account, seen.namespace, asked.target):
            yield _create("rights", one, f"{asked.account} shall run a {asked.target.value}")


def _runtime(seen: Snapshot, finding: Finding, asked: Asked) -> Fix:
    if asked.image is None:  # Trainer's own runtimes come with its chart
        return Fix(
            name="trainer", what=_installs(TRAINER.deployed), why=finding.what, action=Install(TRAINER)
        )
    return _create("runtime", manifests.runtime(asked.image, seen.namespace), finding.what)


def _install(seen: Snapshot, name: str, finding: Finding) -> Iterator[Fix]:
    chart = _CHARTS[name]
    against = {"gpu-plugin": why_no_gpu_plugin, "efa-plugin": why_no_efa_plugin}.get(name)
    reason = "" if against is None else against(seen)
    if reason:
        what = f"{finding.what}; nothing is installed: {reason}"
        yield Fix(name="by-hand", what=what, why=finding.why, action=ByHand(finding.command))
        return
    yield Fix(name=name, what=_installs(chart.deployed), why=finding.what, action=Install(chart))


def _addon(finding: Finding) -> Iterator[Fix]:
    if finding.addon is not None:
        wanted = finding.addon
        verb = f"update {wanted.name} from {wanted.before}" if wanted.before else f"install {wanted.name}"
        what = f"{verb} to {wanted.version}" if wanted.before else f"{verb} {wanted.version}"
        where = f"as an add-on of {wanted.cluster}"
        yield Fix(name="addon", what=f"{what}, {where}", why=finding.what, action=ChangeAddon(wanted))


def _covered(finding: Finding, addons: Sequence[Fix]) -> bool:
    """What is planned need not be typed by a person as well."""
    names = [fix.action.wanted.name for fix in addons if isinstance(fix.action, ChangeAddon)]
    return any(f"--addon-name {name}" in finding.command for name in names)


def _by_hand(finding: Finding) -> Fix:
    return Fix(name="by-hand", what=finding.what, why=finding.why, action=ByHand(finding.command))


def _create(name: str, manifest: Object, why: str) -> Fix:
    return Fix(name=name, what=f"create {called(manifest)}", why=why, action=Create(manifest))


def _installs(chart: str) -> str:
    return f"install {chart} for the whole cluster"
