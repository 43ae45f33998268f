"""Train from Python: four workers, one of them three times slower, under two strategies.

`ssgd` (synchronous SGD, all-reduce) waits for the straggler at every step; `asgd`
(asynchronous SGD) does not, at the cost of stale gradients.
"""

import paceline

for mode in ("ssgd", "asgd"):
    result = paceline.train(
        "digits",
        mode=mode,
        workers=4,
        steps=50,
        pace="5ms",  # minimum duration of a step, so that four workers can share two cores
        straggler="worker=1,factor=3",
        name=f"straggler-{mode}",
    )
    print(f"{mode}: {result.samples_per_s:.0f} samples/s, accuracy {result.metrics['test_accuracy']:.1%}")

    losses = result.losses()  # NumPy arrays, read from the event log
    print(f"  loss {losses.values[:5].mean():.2f} -> {losses.values[-5:].mean():.2f}")

    weights = result.weights()  # the model's state_dict, as NumPy arrays
    print(f"  {len(weights)} tensors, {sum(array.size for array in weights.values())} parameters")
    print(f"  run folder: {result.run_dir}")
