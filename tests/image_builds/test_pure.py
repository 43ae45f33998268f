"""Engine command lines, logs, tags, destinations and refusals, without an engine."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.aws_build.ecr_lifecycle import Image, expired
from tests.fixtures.wording import Wording

from paceline.core.errors import ConfigError, ExitCode
from paceline.images.build.engine import Engine, EngineKind
from paceline.images.build.engine_cli import BuildOptions, ProgressParser, build_argv, push_argv, run_argv
from paceline.images.probe.checks import Expected, Verdict, advice_for, check_facts
from paceline.images.push.errors import (
    ForbiddenError,
    LoginExpiredError,
    NoRegistryError,
    NoRepositoryError,
    PushError,
    TagTakenError,
    classify_push_error,
)
from paceline.images.push.references import (
    Commit,
    EcrDestination,
    RegistryDestination,
    is_local,
    lifecycle_policy,
    parse_destination,
    tags_for,
)

DOCKER = Engine(kind=EngineKind.DOCKER, path="docker", version="28")
BUILDX = Engine(kind=EngineKind.DOCKER, path="docker", version="28", has_buildx=True)
PODMAN = Engine(kind=EngineKind.PODMAN, path="podman", version="4.3.1")
COMMIT = Commit(sha="0123456789abcdef0123", is_dirty=False)


@pytest.mark.parametrize(
    ("log", "reported"),
    [
        (
            ["STEP 1/2: FROM a", "STEP 2/2: RUN b", "--> Using cache 12"],
            ["step 1 of 2: FROM a", "step 2 of 2: RUN b", "step 2 of 2 is cached"],
        ),
        (["[1/2] STEP 3/8: COPY x"], ["step 3 of 8: COPY x"]),
        (["Step 4/8 : RUN pip"], ["step 4 of 8: RUN pip"]),
        (
            ["#9 [build 2/5] RUN pip", "#9 0.3 noise", "#9 DONE 0.7s", "#10 [3/5] COPY x", "#10 CACHED"],
            [
                "build step 2 of 5: RUN pip",
                "step 2 of 5 done in 0.7 s",
                "step 3 of 5: COPY x",
                "step 3 of 5 is cached",
            ],
        ),
    ],
)
def test_progress_is_read_in_every_dialect(log: list[str], reported: list[str]) -> None:
    reading = ProgressParser()
    assert [line for line in map(reading.read, log) if line is not None] == reported


def options(**more: object) -> BuildOptions:
    return BuildOptions(context=Path("/c"), dockerfile=Path("/d/Dockerfile"), tags=("x:1",), **more)  # type: ignore[arg-type]


def test_buildx_keeps_layers_in_a_registry_where_it_is_there() -> None:
    words = build_argv(BUILDX, options(cache="r/c"))
    assert words[:6] == ["docker", "buildx", "build", "--load", "--progress", "plain"]
    assert "type=registry,ref=r/c,mode=max,image-manifest=true,oci-mediatypes=true" in words, (
        "ECR needs these"
    )
    assert build_argv(PODMAN, options(cache="r/c"))[-5:] == ["--cache-from", "r/c", "--cache-to", "r/c", "/c"]
    assert "--cache-to" not in build_argv(DOCKER, options(cache="r/c"))


def test_no_argument_of_a_push_is_a_secret() -> None:
    words = push_argv(PODMAN, "r/x:1", digest_file=Path("/t/d"), auth_file=Path("/t/a"), insecure=False)
    assert words == [
        "podman",
        "push",
        "--digestfile",
        "/t/d",
        "--authfile",
        "/t/a",
        "--tls-verify=true",
        "r/x:1",
    ]


def test_inspecting_an_image_uses_no_network_unless_requested() -> None:
    words = run_argv(PODMAN, "x:1", ["python3", "-"], name="n")
    assert words[words.index("--network") + 1] == "none"
    assert words[-4:] == ["--entrypoint", "python3", "x:1", "-"]


def test_places_are_read() -> None:
    assert parse_destination("ecr:team/x") == EcrDestination(repository="team/x")
    assert parse_destination("123456789012.dkr.ecr.eu-west-1.amazonaws.com/x") == EcrDestination(
        repository="x", account="123456789012", region="eu-west-1"
    )
    assert parse_destination("127.0.0.1:5000/a/b") == RegistryDestination(
        host="127.0.0.1:5000", repository="a/b"
    )


@pytest.mark.parametrize("text", ["x", "team/x", "host.com/", "host.com/UPPER", "host.com/x:tag", "ecr:"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_destination(text)


def test_only_this_machine_is_reached_by_plain_http() -> None:
    assert is_local("127.0.0.1:5000")
    assert is_local("localhost")
    assert not is_local("127.example.com")
    assert not is_local("registry.example.com:443")


def test_tags_by_strategy() -> None:
    def of(
        *names: str, commit: Commit | None = COMMIT, version: str | None = None, moves: bool = True
    ) -> list[str]:
        return tags_for(names, commit=commit, version=version, may_move=moves)

    assert of("git-sha") == ["0123456789ab"]
    assert of("git-sha", commit=Commit(sha="f" * 40, is_dirty=True)) == ["f" * 12 + "-dirty"]
    assert of("auto") == ["0123456789ab"]
    released = Commit(sha="0" * 40, is_dirty=False, tags=("v1.4.2", "v1.10.0", "nightly"))
    assert of("auto", commit=released) == ["1.10.0"], "the newest version, not the last word"
    assert of("semantic", version="1.4.2") == ["1.4.2", "1.4", "1"]
    assert of("semantic", version="1.4.2", moves=False) == ["1.4.2"], "those that move are left out"
    assert of("semantic", version="2.0.0-rc1") == ["2.0.0-rc1"], "a candidate is never a default tag"
    assert of("semantic", "latest", "git-sha", version="1.0.0") == [
        "1.0.0",
        "1.0",
        "1",
        "latest",
        "0123456789ab",
    ]
    for refused in (("latest",), ("git-sha",)):
        with pytest.raises(ConfigError):
            of(*refused, commit=None, moves=False)
    for invalid in ("newest", "1.4", "01.4.2", "1.4.2-", "1.4.2\n", "1.4.٢"):
        with pytest.raises(ConfigError):
            of("semantic", version=invalid)


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("denied: Your authorization token has expired. Reauthenticate and try again.", LoginExpiredError, 9),
        ("error: 403 Forbidden: ExpiredTokenException", LoginExpiredError, 9),
        ("no basic auth credentials", LoginExpiredError, 9),
        ("unauthorized: authentication required", LoginExpiredError, 9),
        (
            "denied: User: arn:aws:iam::1:user/x is not authorized to perform: ecr:PutImage",
            ForbiddenError,
            10,
        ),
        ("error parsing HTTP 403 response body", ForbiddenError, 10),
        (
            "tag invalid: The image tag '1' already exists in the 'x' repository and cannot be overwritten "
            "because the repository is immutable.",
            TagTakenError,
            11,
        ),
        ("name unknown: The repository with name 'x' does not exist in the registry", NoRepositoryError, 13),
        ("dial tcp: lookup registry.example.com: no such host", NoRegistryError, 7),
        ("something else", PushError, 5),
        ("ProfileNotFound: The config profile (x) could not be found", LoginExpiredError, 9),
        ("pushing team/immutable-model: connection refused", NoRegistryError, 7),
    ],
)
def test_refusals_are_distinguished(text: str, kind: type[PushError], code: int) -> None:
    before = "Getting image source signatures\nCopying blob 403.1MiB / 512.0MiB\nCopying blob 401 done"
    push_error = classify_push_error(f"{before}\nError: {text}\n", "r/x:1")
    assert type(push_error) is kind
    assert push_error.exit_code == code
    assert push_error.hint


def test_a_refusal_hides_what_is_secret() -> None:
    text = classify_push_error(
        "error: 401 token=AKIAABCDEFGHIJKLMNOP password: hunter2hunter2hunter2", "r"
    ).what
    assert "AKIA" not in text
    assert "hunter2" not in text


def test_every_refusal_has_its_own_code() -> None:
    codes = [ExitCode.NO_LOGIN, ExitCode.FORBIDDEN, ExitCode.TAG_TAKEN, ExitCode.WRONG_ACCOUNT]
    assert len({*codes, ExitCode.NO_REPOSITORY, ExitCode.UNREACHABLE, ExitCode.GATE_FAILED}) == 7


tags = st.sampled_from(
    ["1.4.2", "v2.0.0", "10.0.1-rc1", "latest", "deployed-eu", "0123abcd4567", "main", "buildcache"]
)


@given(
    st.lists(
        st.tuples(st.lists(tags, max_size=3), st.floats(0, 2000)),
        max_size=140,
    )
)
def test_the_rules_never_take_a_release_or_what_is_deployed(stored: list[tuple[list[str], float]]) -> None:
    images = [Image(str(number), frozenset(names), age) for number, (names, age) in enumerate(stored)]
    gone = expired(json.loads(lifecycle_policy()), images)
    for image in images:
        if any(
            (tag[0].isdigit() and tag.count(".") == 2) or tag in ("latest", "v2.0.0", "deployed-eu")
            for tag in image.tags
        ):
            assert image.digest not in gone


def test_the_rules_do_take_what_is_old() -> None:
    builds = [Image(f"b{n}", frozenset([f"{n:012x}"]), n) for n in range(60)]
    loose = [Image("new", frozenset(), 1), Image("old", frozenset(), 8)]
    gone = expired(json.loads(lifecycle_policy(keep=50)), [*builds, *loose])
    # Of fifty that stay, two are without a tag: they count, though another rule decides on them.
    assert gone == {"old", *(f"b{n}" for n in range(48, 60))}
    assert len(json.loads(lifecycle_policy())["rules"]) == 6


FACTS: dict[str, object] = {
    "python": "3.11.7",
    "machine": "x86_64",
    "libc": "glibc 2.36",
    "uid": 1000,
    "markers": {"python_version": "3.11", "sys_platform": "linux", "extra": ""},
    "distributions": [],
    "missing": [],
    "imports": [],
    "torch": None,
    "shm_bytes": 1 << 31,
    "model": [],
}
TORCH: dict[str, object] = {
    "error": None,
    "version": "2.8.0",
    "cuda": "12.8",
    "hip": None,
    "arch": ["sm_75", "sm_90", "compute_90"],
    "cudnn": 91002,
    "nccl": "2.27.3",
    "gpus": [],
    "numpy_bridge": None,
    "vision_ops": None,
    "loaded": {"cudnn": [], "nccl": []},
}


def verdicts(expected: Expected, **facts: object) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in check_facts({**FACTS, **facts}, expected)}


def test_versions_are_held_against_each_other_by_the_images_own_markers(wording: Wording) -> None:
    listed = [
        {"name": "torchvision", "version": "0.20.1", "requires": ["torch==2.5.1"], "modules": []},
        {
            "name": "torch",
            "version": "2.6.0",
            "requires": ["x; python_version < '3'", "y; extra == 'z'"],
            "modules": [],
        },
    ]
    checks = check_facts({**FACTS, "distributions": listed}, Expected())
    (broken,) = (check for check in checks if check.verdict is Verdict.FAILED)
    wording(broken.detail)


def test_numpy_2_under_an_old_torch_is_detected_though_no_package_declares_it() -> None:
    listed = [
        {"name": name, "version": version, "requires": [], "modules": []}
        for name, version in (("torch", "2.1.2"), ("numpy", "2.2.6"))
    ]
    assert verdicts(Expected(), distributions=listed)["numpy"] is Verdict.FAILED


def test_what_the_gpu_needs_is_judged_without_one() -> None:
    assert verdicts(Expected(is_gpu=True, arch="sm_90"), torch=TORCH)["torch"] is Verdict.PASSED
    assert "sm_120" not in verdicts(Expected(arch="sm_120"), torch=TORCH), "PTX of an older one runs"
    old = {**TORCH, "arch": ["sm_75", "sm_90"]}
    assert verdicts(Expected(arch="sm_120"), torch=old)["sm_120"] is Verdict.FAILED
    assert "sm_89" not in verdicts(Expected(arch="sm_89"), torch={**TORCH, "arch": ["sm_80"]})
    cpu = {**TORCH, "cuda": None, "arch": []}
    assert verdicts(Expected(is_gpu=True), torch=cpu)["gpu build"] is Verdict.FAILED
    assert verdicts(Expected(is_gpu=False), torch=TORCH)["cpu build"] is Verdict.WARNING
    two = {**TORCH, "loaded": {"cudnn": ["/a/libcudnn.so.9", "/b/libcudnn.so.9"], "nccl": []}}
    assert verdicts(Expected(), torch=two)["two of cudnn"] is Verdict.WARNING


def test_every_failure_comes_with_advice() -> None:
    assert "headless" in advice_for("ImportError: libGL.so.1: cannot open shared object file")
    assert "libfoo.so.2" in advice_for("OSError: libfoo.so.2: cannot open shared object file")
    assert advice_for("whatever")
    failed = check_facts(
        {
            **FACTS,
            "missing": ["a"],
            "imports": [{"name": "b", "module": "b", "error": "crashed: SIGSEGV", "seconds": 0.0}],
            "model": [{"part": "forward", "detail": "", "error": "ValueError: nan", "seconds": 0.1}],
        },
        Expected(),
    )
    assert all(check.advice for check in failed if check.verdict is Verdict.FAILED)
    assert sum(check.verdict is Verdict.FAILED for check in failed) == 3
