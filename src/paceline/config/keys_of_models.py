"""Which model of a task that has several, how long its samples are, and how it fits into memory?"""

from paceline.config.key import Key, Kind

MODEL_KEYS = (
    Key(
        name="model",
        help="Which of the task's models: for llama llama_tiny, llama_v2_7b, llama_v2_13b, llama_v3_1b, "
        "llama_v3_3b, llama_v3_8b, llama_v3_70b, mistral_7b, mistral_v01_7b, mixtral_tiny or mixtral_8x7b.",
        kind=Kind.TEXT,
        default="llama_tiny for llama",
        example="llama_v3_1b",
    ),
    Key(
        name="seq_len",
        help="llama: how many tokens one sample has.",
        kind=Kind.INTEGER,
        default="128",
        example="2048",
        minimum=1,
    ),
    Key(
        name="tokenizer",
        help="llama: a tokenizer.json of Hugging Face's, or its folder; `bytes` takes each byte for a token.",
        kind=Kind.TEXT,
        default="bytes",
        example="tokenizer.json",
    ),
    Key(
        name="activation_checkpointing",
        help="llama: keep less for backward and compute it again: all but matrix products and attention "
        "(selective), or whole layers (full).",
        kind=Kind.CHOICE,
        default="none",
        example="selective",
        choices=("none", "selective", "full"),
    ),
    Key(
        name="compile",
        help="llama: compile the layers with torch.compile. Only on a GPU.",
        kind=Kind.YES_NO,
        default="yes on a GPU",
        example="yes",
    ),
    Key(
        name="grad_accumulation",
        help="Parts into which a worker cuts its batch: computed one after the other, they make one update.",
        kind=Kind.INTEGER,
        default="1",
        example="4",
        minimum=1,
        maximum=2**31,
    ),
)
