"""Text becomes samples: tokens, windows, and the errors for unusable text."""

import fcntl
import hashlib
import json
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.fixtures.tasks.llama import train_tokenizer
from tests.fixtures.wording import Wording
from tokenizers import Tokenizer, decoders

from paceline.core.errors import ConfigError, PacelineError
from paceline.datasets import tokens as token_folder
from paceline.datasets import tokens as tokenizing
from paceline.datasets.tokens import TextTokenizer, open_tokens, pack_tokens, read_tokens_info
from paceline.tasks.llama import text as llama_text
from paceline.tasks.llama.task import LlamaTask
from paceline.tasks.llama.text import Windows, split, tokens_of


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PACELINE_DATA_FOLDER", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # other tests fork this process: no threads


def test_windows_do_not_overlap_and_include_the_next_token() -> None:
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
    kept = list((tmp_path / "cache" / "tokens").glob("*.u32"))
    assert len(kept) == 1
    before = kept[0].stat().st_mtime_ns
    assert np.array_equal(first, tokens_of(str(text), str(tmp_path), 0))  # its folder is as good as the file
    assert kept[0].stat().st_mtime_ns == before
    assert len(first) < len(text.read_text())
    text.write_text("another text\n" * 50)
    assert not np.array_equal(first, tokens_of(str(text), str(tokenizer), 0))


def test_a_text_of_one_endless_line_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a line without an end, nor a text without one, need fit into memory."""
    monkeypatch.setattr(llama_text, "_AT_ONCE", 64)
    tokenizer, text = train_tokenizer(tmp_path), tmp_path / "text.txt"
    text.write_text("thé quick brown föx " * 200)
    longest = 0

    class Watched(TextTokenizer):
        def of(self, piece: str) -> NDArray[np.uint32]:
            nonlocal longest
            longest = max(longest, len(piece))
            return super().of(piece)

    monkeypatch.setattr(llama_text, "TextTokenizer", Watched)
    tokens = tokens_of(str(text), str(tokenizer), 0)
    assert 64 <= longest <= 128
    made = Tokenizer.from_file(str(tokenizer))
    made.decoder = decoders.ByteLevel()
    assert made.decode(tokens.tolist()) == text.read_text()


def test_a_text_that_stops_being_one_leaves_nothing_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    monkeypatch.setattr(llama_text, "_AT_ONCE", 64)
    tokenizer, text = train_tokenizer(tmp_path), tmp_path / "text.txt"
    text.write_bytes(b"good\n" * 4000 + b"\xff\xfe\n")
    with wording.raises(ConfigError):
        tokens_of(str(text), str(tokenizer), 0)
    assert not list((tmp_path / "cache" / "tokens").iterdir())


def test_validation_of_a_large_text_is_no_larger_than_is_soon_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_text, "MAX_VALIDATED", 50)
    train, valid = split(np.arange(1000, dtype=np.uint32), 8)
    assert (len(train), len(valid)) == ((950 - 1) // 8, (50 - 1) // 8)
    train, valid = split(np.arange(1000, dtype=np.uint32), 100)  # one sample at the least
    assert (len(train), len(valid)) == (8, 1)


def test_a_separate_validation_text_leaves_the_whole_of_the_other_for_training(
    tmp_path: Path, wording: Wording
) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(200)))
    (tmp_path / "b.txt").write_bytes(bytes(range(100, 133)))
    task = LlamaTask(seed=0, seq_len=16, data=str(tmp_path / "a.txt"), validation=str(tmp_path / "b.txt"))
    assert len(task.samples()) == 12
    assert task.validation_size() == 2
    source = _lines(tmp_path / "docs.jsonl", 30)
    pack_tokens(
        str(source),
        tmp_path / "p",
        tokenizer=str(train_tokenizer(tmp_path)),
        split="train",
        column="body",
        most=None,
    )
    with wording.raises(ConfigError):
        LlamaTask(
            seed=0,
            seq_len=8,
            model="llama_v2_7b",
            data=str(tmp_path / "p"),
            validation=str(tmp_path / "b.txt"),
        )


def test_paragraphs_of_a_text_are_its_documents(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one\ntwo\n\nthree\n")
    about, _ = pack_tokens(
        str(tmp_path / "text.txt"),
        tmp_path / "p",
        tokenizer="bytes",
        split="train",
        column="text",
        most=None,
    )
    assert about.documents == 2
    assert bytes(open_tokens(tmp_path / "p")[1].astype(np.uint8)) == b"one\ntwo\n\nthree\n\n\n"


def test_a_folder_without_results_may_be_started_with_other_settings(
    tmp_path: Path, wording: Wording
) -> None:
    how = {"tokenizer": "bytes", "split": "train", "most": None}
    source, out = _lines(tmp_path / "docs.jsonl", 3), tmp_path / "p"
    with wording.raises(ConfigError):
        pack_tokens(str(source), out, column="none", **how)  # type: ignore[arg-type]  # the names are pack's own
    assert pack_tokens(str(source), out, column="body", **how)[0].documents == 3  # type: ignore[arg-type]  # likewise


def test_two_do_not_write_into_the_same_folder_at_once(tmp_path: Path, wording: Wording) -> None:
    source, out = _lines(tmp_path / "docs.jsonl", 3), tmp_path / "p"
    out.mkdir()
    with (out / "tokens.bin").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with wording.raises(PacelineError):
            pack_tokens(str(source), out, tokenizer="bytes", split="train", column="body", most=None)


def _lines(path: Path, count: int) -> Path:
    rows = [{"body": f"document {i} about {i * i}", "other": i} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_stream_is_packed_as_its_documents_one_after_the_other(tmp_path: Path) -> None:
    source, out = _lines(tmp_path / "docs.jsonl", 30), tmp_path / "packed"
    about, was_there = pack_tokens(
        str(source), out, tokenizer="bytes", split="train", column="body", most=None
    )
    assert not was_there
    text = "".join(f"document {i} about {i * i}\n\n" for i in range(30))
    assert bytes(open_tokens(out)[1].astype(np.uint8)).decode() == text
    assert (about.documents, about.tokens) == (30, len(text))
    assert hashlib.sha256((out / token_folder.TOKENS).read_bytes()).hexdigest() == about.sha256
    assert pack_tokens(str(source), out, tokenizer="bytes", split="train", column="body", most=None) == (
        about,
        True,
    )
    task = LlamaTask(seed=0, data=str(out), seq_len=16)
    assert task.samples().batch(np.array([1]))[0].tolist() == [list(text[16:32].encode())]


def test_packing_that_was_stopped_resumes_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    source, tokenizer = _lines(tmp_path / "docs.jsonl", 50), str(train_tokenizer(tmp_path))
    whole, out = tmp_path / "whole", tmp_path / "stopped"
    how = {"tokenizer": tokenizer, "split": "train", "column": "body", "most": 400}
    expected, _ = pack_tokens(str(source), whole, **how)  # type: ignore[arg-type]  # the names are pack's own
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
        pack_tokens(str(source), out, **how)  # type: ignore[arg-type]  # likewise
    begun = read_tokens_info(out)
    assert begun is not None
    assert (begun.documents, begun.is_complete) == (14, False)
    with wording.raises(PacelineError):
        open_tokens(out)
    monkeypatch.setattr(token_folder, "_written", written)
    about, _ = pack_tokens(str(source), out, **how)  # type: ignore[arg-type]  # likewise
    assert about == expected
    assert (out / "tokens.bin").read_bytes() == (whole / "tokens.bin").read_bytes()


def test_a_text_that_cannot_be_packed_is_reported(tmp_path: Path, wording: Wording) -> None:
    source, out = _lines(tmp_path / "docs.jsonl", 3), tmp_path / "packed"
    how = {"tokenizer": "bytes", "split": "train", "most": None}
    with wording.raises(ConfigError):
        pack_tokens(str(source), out, column="text", **how)  # type: ignore[arg-type]  # the names are pack's own
    with wording.raises(ConfigError):
        pack_tokens(str(source), tmp_path / "b", column="other", **how)  # type: ignore[arg-type]  # likewise
    with wording.raises(ConfigError):
        pack_tokens(str(tmp_path / "none.txt"), tmp_path / "c", column="text", **how)  # type: ignore[arg-type]
    pack_tokens(str(source), tmp_path / "d", column="body", **how)  # type: ignore[arg-type]  # likewise
    with wording.raises(ConfigError):
        pack_tokens(str(source), tmp_path / "d", column="other", **how)  # type: ignore[arg-type]  # likewise
    (tmp_path / "d" / "tokens.bin").write_bytes(b"1234")
    with wording.raises(PacelineError):
        open_tokens(tmp_path / "d")


def test_tokens_of_another_tokenizer_are_refused(tmp_path: Path, wording: Wording) -> None:
    source, tokenizer = _lines(tmp_path / "docs.jsonl", 30), train_tokenizer(tmp_path)
    pack_tokens(str(source), tmp_path / "p", tokenizer="bytes", split="train", column="body", most=None)
    with wording.raises(ConfigError):
        LlamaTask(seed=0, data=str(tmp_path / "p"), seq_len=8, tokenizer=str(tokenizer))


def test_the_end_of_a_document_is_the_tokenizers_own(tmp_path: Path) -> None:
    made = Tokenizer.from_file(str(train_tokenizer(tmp_path)))
    made.add_special_tokens(["</s>"])
    made.save(str(tmp_path / "with-end.json"))
    assert TextTokenizer(str(tmp_path / "with-end.json")).end.tolist() == [made.token_to_id("</s>")]
    assert TextTokenizer("bytes").end.tolist() == [10, 10]


@settings(max_examples=25)
@given(st.lists(st.text(max_size=12), max_size=9), st.integers(1, 4), st.integers(1, 20))
def test_texts_that_are_taken_together_have_the_tokens_of_each(
    texts: list[str], at_once: int, characters: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizing, "TEXTS_AT_ONCE", at_once)
        patch.setattr(tokenizing, "CHARACTERS_AT_ONCE", characters)
        for words in (TextTokenizer("bytes"), _trained()):
            results = [part.tolist() for part in words.of_each(texts)]
            assert results == [words.of(text).tolist() for text in texts]


@cache
def _trained() -> TextTokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return TextTokenizer(str(train_tokenizer(Path(folder))))


def test_a_vocabulary_is_as_large_as_its_highest_token(tmp_path: Path) -> None:
    from tokenizers import models

    model = models.WordLevel({"a": 0, "b": 500}, unk_token="a")
    Tokenizer(model).save(str(tmp_path / "gaps.json"))
    assert TextTokenizer(str(tmp_path / "gaps.json")).count == 501


@pytest.mark.parametrize(
    "options",
    [
        {"model": "llama_v9"},
        {"seq_len": 0},
        {"seq_len": 4096},
        {"dtype": "int8"},
        {"activation_checkpointing": "half"},
        {"data": "nowhere.txt"},
        {"data": "hf://allenai/c4:en"},
        {"tokenizer": "nowhere.json"},
    ],
)
def test_an_invalid_model_is_refused_with_the_reason(options: dict[str, object], wording: Wording) -> None:
    with wording.raises(ConfigError):
        LlamaTask(seed=0, **options)  # type: ignore[arg-type]  # that is the point


def test_texts_that_teach_nothing_are_refused(tmp_path: Path, wording: Wording) -> None:
    empty, short, odd = tmp_path / "empty", tmp_path / "short", tmp_path / "odd"
    empty.write_text("")
    short.write_text("hello")
    odd.write_bytes(b"\xff\xfe" * 500)
    with wording.raises(ConfigError):
        LlamaTask(seed=0, data=str(empty))
    with wording.raises(ConfigError):
        LlamaTask(seed=0, data=str(short))
    tokenizer = str(train_tokenizer(tmp_path))
    with wording.raises(ConfigError):
        LlamaTask(seed=0, data=str(short), tokenizer=tokenizer)
    with wording.raises(ConfigError):
        LlamaTask(seed=0, data=str(odd), tokenizer=tokenizer, model="llama_v3_1b")


def test_validation_of_many_windows_at_once_is_that_of_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    task = LlamaTask(seed=0, seq_len=64, dtype="float64")
    torch.manual_seed(0)
    model, rows = task.model(), range(3, 25)
    with torch.no_grad():
        together = task.validate(model, rows)["valid_loss"]
        monkeypatch.setattr("paceline.tasks.llama.task.VALIDATED_AT_ONCE", 64)
        assert task.validate(model, rows)["valid_loss"] == pytest.approx(together, rel=1e-12)
