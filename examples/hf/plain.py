"""Fine-tuning of a small BERT on made reviews, with the Trainer of transformers: one process."""

import argparse
import random

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--reviews", type=int, default=768)
options = parser.parse_args()
GOOD = ["good", "great", "fine", "moving"]
BAD = ["bad", "dull", "weak", "silly"]
OTHER = ["the", "film", "is", "plot", "actors", "and", "music", "a"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *OTHER]
tokenizer = BertTokenizerFast(vocab={word: number for number, word in enumerate(WORDS)})


class Reviews(Dataset[dict[str, object]]):
    """Of other words, and of one good or bad one, which is the label."""

    def __init__(self, count: int, seed: int) -> None:
        rng = random.Random(seed)
        self.labels = [rng.randrange(2) for _ in range(count)]
        texts = []
        for label in self.labels:
            words = rng.choices(OTHER, k=rng.randint(3, 10))
            words.insert(rng.randrange(len(words)), rng.choice(GOOD if label else BAD))
            texts.append(" ".join(words))
        self.tokens = tokenizer(texts)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, object]:
        columns = {name: rows[index] for name, rows in self.tokens.items()}
        return {**columns, "labels": self.labels[index]}


torch.manual_seed(0)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
)
arguments = TrainingArguments(
    "out",
    num_train_epochs=options.epochs,
    per_device_train_batch_size=16,
    gradient_accumulation_steps=2,
    learning_rate=3e-3,
    warmup_steps=8,
    max_grad_norm=1.0,
    eval_strategy="epoch",
    save_strategy="no",
    logging_steps=8,
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(
    model=model,
    args=arguments,
    data_collator=DataCollatorWithPadding(tokenizer),
    train_dataset=Reviews(options.reviews, seed=1),
    eval_dataset=Reviews(256, seed=2),
    compute_metrics=lambda result: {"right": (result.predictions.argmax(1) == result.label_ids).mean()},
)
print("steps", trainer.train().global_step)
print("right", trainer.evaluate()["eval_right"])
