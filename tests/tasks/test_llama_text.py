"""How does text become samples? Tokens, windows, and what is said when there is nothing to learn from."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.fixtures.llama import train_tokenizer

from paceline.app.tokens import pack
from paceline.datasets import token_folder
from paceline.datasets.token_folder import open_tokens, proved, read_about
from paceline.datasets.tokenizing import Words
from paceline.errors import ConfigError, PacelineError
from paceline.tasks.llama import LlamaTask
from paceline.tasks.llama_text import Windows, split, tokens_of


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PACELINE_DATA_FOLDER", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


def test_windows_do_not_overlap_and_know_what_follows() -> None:
    read, following = Windows(np.arange(11, dtype=np.uint32), 3).batch(np.array([2, 0]))
    assert read.tolist() == [[6, 7, 8], [0, 1, 2]]
    assert following.tolist() == [[7, 8, 9], [1, 2, 3]]
    assert len(Windows(np.arange(10, dtype=np.uint32), 3)) == 3
    assert len(Windows(np.arange(9, dtype=np.uint32), 3)) == 2  # the last would have nothing behind it


def test_no_token_is_in_training_and_validation() -> None:
    train, valid = split(np.arange(1000, dtype=np.uint32), 16)
    seen = {int(t) for i in range(len(train)) for part in train.batch(np.array([i])) for t in part.flatten()}
    held = {int(t) for i in range(len(valid)) for part in valid.batch(np.array([i])) for t in part.flatten()}
    assert len(valid) == 6
    assert not seen & held


def test_a_tokenizer_reads_a_file_once(tmp_path: Path) -> None:
    tokenizer, text = train_tokenizer(tmp_path), tmp_path / "text.txt"
    text.write_text("the quick brown fox\n" * 50)
    first = tokens_of(str(text), str(tokenizer), 0)
    kept = list((tmp_path / "cache" / "tokens").glob("*.npy"))
    assert len(kept) == 1
    before = kept[0].stat().st_mtime_ns
    assert np.array_equal(first, tokens_of(str(text), str(tmp_path), 0))  # its folder is as good as the file
    assert kept[0].stat().st_mtime_ns == before
    assert len(first) < len(text.read_text())
    text.write_text("another text\n" * 50)
    assert not np.array_equal(first, tokens_of(str(text), str(tokenizer), 0))


def _lines(path: Path, count: int) -> Path:
    rows = [{"body": f"document {i} about {i * i}", "other": i} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_stream_is_packed_as_its_documents_one_after_the_other(tmp_path: Path) -> None:
    source, out = _lines(tmp_path / "docs.jsonl", 30), tmp_path / "packed"
    about, was_there = pack(str(source), out, tokenizer="bytes", split="train", column="body", most=None)
    assert not was_there
    text = "".join(f"document {i} about {i * i}\n\n" for i in range(30))
    assert bytes(open_tokens(out)[1].astype(np.uint8)).decode() == text
    assert (about.documents, about.tokens) == (30, len(text))
    assert proved(out, about)
    assert pack(str(source), out, tokenizer="bytes", split="train", column="body", most=None) == (about, True)
    task = LlamaTask(seed=0, data=str(out), seq_len=16)
    assert task.samples().batch(np.array([1]))[0].tolist() == [list(text[16:32].encode())]


def test_packing_that_was_stopped_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, tokenizer = _lines(tmp_path / "docs.jsonl", 50), str(train_tokenizer(tmp_path))
    whole, out = tmp_path / "whole", tmp_path / "stopped"
    how = {"tokenizer": tokenizer, "split": "train", "column": "body", "most": 400}
    expected, _ = pack(str(source), whole, **how)  # type: ignore[arg-type]  # the names are pack's own
    assert expected.tokens == 400
    monkeypatch.setattr(token_folder, "DOCUMENTS_AT_ONCE", 7)
    written = token_folder._written

    def stops(*args: object) -> object:
        about = written(*args)  # type: ignore[arg-type]  # as it was called
        if about.documents >= 14:
            with (out / token_folder.TOKENS).open("ab") as file:
                file.write(b"half")  # of a stretch, as a sudden stop leaves it
            raise KeyboardInterrupt
        return about

    monkeypatch.setattr(token_folder, "_written", stops)
    with pytest.raises(KeyboardInterrupt):
        pack(str(source), out, **how)  # type: ignore[arg-type]  # likewise
    begun = read_about(out)
    assert begun is not None
    assert (begun.documents, begun.is_complete) == (14, False)
    with pytest.raises(PacelineError, match="are not complete"):
        open_tokens(out)
    monkeypatch.setattr(token_folder, "_written", written)
    about, _ = pack(str(source), out, **how)  # type: ignore[arg-type]  # likewise
    assert about == expected
    assert (out / "tokens.bin").read_bytes() == (whole / "tokens.bin").read_bytes()


def test_what_cannot_be_packed_is_said(tmp_path: Path) -> None:
    source, out = _lines(tmp_path / "docs.jsonl", 3), tmp_path / "packed"
    how = {"tokenizer": "bytes", "split": "train", "most": None}
    with pytest.raises(ConfigError, match="no column 'text'"):
        pack(str(source), out, column="text", **how)  # type: ignore[arg-type]  # the names are pack's own
    with pytest.raises(ConfigError, match="is no text but a int"):
        pack(str(source), tmp_path / "b", column="other", **how)  # type: ignore[arg-type]  # likewise
    with pytest.raises(ConfigError, match="there is no file"):
        pack(str(tmp_path / "none.txt"), tmp_path / "c", column="text", **how)  # type: ignore[arg-type]
    pack(str(source), tmp_path / "d", column="body", **how)  # type: ignore[arg-type]  # likewise
    with pytest.raises(ConfigError, match="begun with other words"):
        pack(str(source), tmp_path / "d", column="other", **how)  # type: ignore[arg-type]  # likewise
    (tmp_path / "d" / "tokens.bin").write_bytes(b"1234")
    with pytest.raises(PacelineError, match="has 4 bytes"):
        open_tokens(tmp_path / "d")


def test_tokens_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    source, tokenizer = _lines(tmp_path / "docs.jsonl", 30), train_tokenizer(tmp_path)
    pack(str(source), tmp_path / "p", tokenizer="bytes", split="train", column="body", most=None)
    with pytest.raises(ConfigError, match="another tokenizer"):
        LlamaTask(seed=0, data=str(tmp_path / "p"), seq_len=8, tokenizer=str(tokenizer))


def test_the_end_of_a_document_is_the_tokenizers_own(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(train_tokenizer(tmp_path)))
    made.add_special_tokens(["</s>"])
    made.save(str(tmp_path / "with-end.json"))
    assert Words(str(tmp_path / "with-end.json")).end.tolist() == [made.token_to_id("</s>")]
    assert Words("bytes").end.tolist() == [10, 10]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"model": "llama_v9"}, "there is no model 'llama_v9'"),
        ({"seq_len": 0}, "this model reads 1 to 1024"),
        ({"seq_len": 4096}, "this model reads 1 to 1024"),
        ({"dtype": "int8"}, "there is no dtype 'int8'"),
        ({"activation_checkpointing": "half"}, "there is no activation checkpointing 'half'"),
        ({"data": "nowhere.txt"}, "there is no such file"),
        ({"tokenizer": "nowhere.json"}, "there is no tokenizer at"),
    ],
)
def test_what_cannot_be_built_is_refused_in_words(options: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        LlamaTask(seed=0, **options)  # type: ignore[arg-type]  # that is the point


def test_texts_that_teach_nothing_are_refused(tmp_path: Path) -> None:
    empty, short, odd = tmp_path / "empty", tmp_path / "short", tmp_path / "odd"
    empty.write_text("")
    short.write_text("hello")
    odd.write_bytes(b"\xff\xfe" * 500)
    with pytest.raises(ConfigError, match="is empty"):
        LlamaTask(seed=0, data=str(empty))
    with pytest.raises(ConfigError, match="too short for one sample of 128"):
        LlamaTask(seed=0, data=str(short))
    tokenizer = str(train_tokenizer(tmp_path))
    with pytest.raises(ConfigError, match="vocabulary 256"):
        LlamaTask(seed=0, data=str(short), tokenizer=tokenizer)
    with pytest.raises(ConfigError, match="reads UTF-8 text"):
        LlamaTask(seed=0, data=str(odd), tokenizer=tokenizer, model="llama_v3_1b")


def test_validation_of_many_windows_at_once_is_that_of_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    task = LlamaTask(seed=0, seq_len=64, dtype="float64")
    torch.manual_seed(0)
    model, rows = task.model(), range(3, 25)
    with torch.no_grad():
        together = task.validate(model, rows)["valid_loss"]
        monkeypatch.setattr("paceline.tasks.llama.VALIDATED_AT_ONCE", 64)
        assert task.validate(model, rows)["valid_loss"] == pytest.approx(together, rel=1e-12)
