"""Text from Hugging Face's hub: a streamed data set and a tokenizer by name, with their own clients."""

from pathlib import Path

from tests.fixtures.runs.torchrun import python
from tests.fixtures.servers.hub import hub, like_c4
from tests.fixtures.tasks.llama import train_tokenizer
from tokenizers import Tokenizer

from paceline.core.errors import ExitCode
from paceline.datasets.tokens import open_tokens

NAME = "hf-internal-testing/llama-tokenizer"


def test_a_data_set_is_streamed_and_its_tokenizer_fetched_by_name_once(tmp_path: Path) -> None:
    texts, tokenizer = like_c4(tmp_path / "c4", 20), train_tokenizer(tmp_path / "made")
    variables = {
        "PACELINE_DATA_FOLDER": str(tmp_path / "cache"),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
    words = ("-m", "paceline", "data", "tokens", f"hf://{tmp_path / 'c4'}:en", "--tokenizer", NAME)
    with hub(NAME, tokenizer) as address:
        online = {**variables, "HF_ENDPOINT": address}
        result = python(*words, "--out", "packed", folder=tmp_path, variables=online)
    assert result.code == 0, result.err
    made = Tokenizer.from_file(str(tokenizer))
    expected = [token for text in texts for token in [*made.encode(text).ids, *made.encode("\n\n").ids]]
    assert open_tokens(tmp_path / "packed")[1].tolist() == expected
    # The hub is gone: the tokenizer is still here, and a data set of the hub's is not.
    other = ("-m", "paceline", "data", "tokens", "hf://allenai/c4:en", "--tokenizer", NAME, "--out", "none")
    result = python(*other, folder=tmp_path, variables={**variables, "HF_HUB_OFFLINE": "1"})
    assert result.code == ExitCode.UNREACHABLE, result.err
    error, _, hint, _ = result.err.strip().splitlines()[-4:]
    assert error.startswith("error[E804]: hf://allenai/c4:en ")
    assert " FILE.jsonl" in hint
