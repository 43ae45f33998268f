"""Does the script make what the template says, and take it away? With the real AWS CLI, on emulators."""

import json
from pathlib import Path

import pytest
from tests.aws_build.choices import OTHER, SOURCE, as_flags
from tests.aws_build.read_back import read_back
from tests.aws_build.template import parameters, says
from tests.aws_build.test_stack import NOTHING, as_ministack_keeps_it
from tests.fixtures.aws_cli import AwsCli, aws_cli
from tests.fixtures.emulator import moto
from tests.fixtures.ministack import ministack

SCRIPT = "aws-cli/build-infra.sh"


def test_every_choice_comes_out_as_cloudformation_has_it_and_goes_only_with_its_data(tmp_path: Path) -> None:
    pytest.importorskip("moto.server", reason="the script is NOT tested: pip install 'moto[server]'")
    from botocore.exceptions import ClientError

    with moto(tmp_path) as cloud, aws_cli(tmp_path) as cli:
        done = cli.run(SCRIPT, "create", *as_flags(OTHER), variables=cloud.variables)
        assert done.code == 0, done.err
        assert read_back(cloud) == says(OTHER)
        outputs = json.loads(done.out)
        assert outputs["webhook_url"].startswith("https://")
        assert len(outputs) == 7

        # Again, with other choices: nothing is made twice, and what was switched off is gone.
        otherwise = {
            **OTHER,
            "Webhook": "false",
            "Nightly": "false",
            "TimeoutMinutes": "45",
            "OldVersionDays": "5",
        }
        done = cli.run(SCRIPT, "create", *as_flags(otherwise), variables=cloud.variables)
        assert done.code == 0, done.err
        assert read_back(cloud) == says(otherwise)

        s3, report = cloud.client("s3"), {"Bucket": outputs["bucket"], "Key": "artifacts/report.json"}
        with pytest.raises(
            ClientError, match="Forbidden"
        ):  # the emulator speaks no TLS, and the policy wants it
            s3.put_object(**report, Body=b"one")
        s3.delete_bucket_policy(Bucket=outputs["bucket"])
        for text in (b"one", b"two"):  # two versions of one object
            s3.put_object(**report, Body=text)
        name = ["--name", OTHER["Name"]]
        refused = cli.run(SCRIPT, "teardown", *name, variables=cloud.variables)
        assert refused.code == 1
        assert "add --delete-data" in refused.err
        assert len(s3.list_object_versions(Bucket=outputs["bucket"])["Versions"]) == 2

        done = cli.run(SCRIPT, "teardown", *name, "--delete-data", variables=cloud.variables)
        assert done.code == 0, done.err
        assert read_back(cloud) == NOTHING


@pytest.mark.soak
def test_a_second_run_changes_nothing_on_another_emulator(tmp_path: Path) -> None:
    with ministack(tmp_path) as cloud, aws_cli(tmp_path) as cli:
        for _ in range(2):
            done = cli.run(SCRIPT, "create", "--source-url", SOURCE, variables=cloud.variables)
            assert done.code == 0, done.err
            told = says(parameters(SourceUrl=SOURCE))
            assert read_back(cloud) == as_ministack_keeps_it(told, by_template=False)
        done = cli.run(SCRIPT, "teardown", variables=cloud.variables)
        assert done.code == 0, done.err
        assert read_back(cloud) == NOTHING


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--name", "Capital"], "--name is 'Capital'"),
        (["--source-url", "https://me:token@github.com/a/b.git"], "without a user or token"),
        (["--image-dir", "../elsewhere"], "outside of the repository"),
        (["--timeout-minutes", "4"], "whole number from 5 to 480"),
        (["--timeout-minutes", "1e2"], "whole number from 5 to 480"),
        (["--log-days", "31"], "a number that CloudWatch knows"),
        (["--tag-mutability", "mutable"], "MUTABLE or IMMUTABLE"),
        (["--nightly-schedule", "every night"], "as EventBridge writes it"),
        (["--tag", 'a="b'], "KEY=VALUE"),
        (["--keep-images"], "--keep-images has no value"),
        (["--nonsense"], "there is no flag --nonsense"),
    ],
)
def test_what_cannot_be_is_refused_before_aws_is_asked(flags: list[str], words: str, tmp_path: Path) -> None:
    aws = tmp_path / "aws"
    aws.write_text("#!/bin/sh\necho asked >&2\nexit 9\n")
    aws.chmod(0o755)
    done = AwsCli(tmp_path).run(SCRIPT, "create", "--source-url", SOURCE, *flags, variables={})
    assert done.code == 1
    assert words in done.err
    assert done.err.startswith("error: ")
    assert "\nhint: " in done.err
    assert "asked" not in done.err
