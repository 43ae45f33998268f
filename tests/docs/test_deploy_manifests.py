"""The folder examples/deploy equals the output of `paceline cluster deploy render`."""

from docs.manifests import EXAMPLES, deploy_manifests


def test_the_example_is_what_the_renderer_writes() -> None:
    written = {
        path.relative_to(EXAMPLES).as_posix(): path.read_text(encoding="utf-8")
        for path in EXAMPLES.glob("deploy/*/*.yaml")
    }
    assert written == deploy_manifests(), "examples/deploy is out of date: run `make examples`"
