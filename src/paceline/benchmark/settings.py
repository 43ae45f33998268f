"""Which settings does `paceline benchmark torch` read? What the others have too, or what only ours need."""

READ = (
    *("task", "task_options", "data", "num_workers", "steps", "epochs", "batch_size", "seed", "dtype"),
    *(
        "optimizer",
        "lr",
        "weight_decay",
        "threads_per_worker",
        "timeout",
        "transport",
        "address",
        "placement",
    ),
    *("staleness", "staleness_range", "asgd", "dc_lambda", "max_staleness", "sync_every", "elasticity"),
    *("clients_per_round", "outer_lr", "outer_momentum", "backup_workers", "compress", "gossip", "topology"),
)
