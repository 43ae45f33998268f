"""Errors of training scripts (`paceline run`), E120 to E138."""

from paceline.core.errors import ErrorEntry, ExitCode

_BAD = ExitCode.BAD_CONFIG

SCRIPT_ERRORS = (
    ErrorEntry(
        "E120",
        _BAD,
        "paceline.core.errors:ScriptError",
        "a training script cannot be run",
        (
            "the file does not exist, or failed before its second batch",
            "the script calls neither paceline.join() nor run.prepare(…)",
            "an object was prepared that Paceline cannot prepare",
        ),
        (
            "run it alone: python train.py",
            "see the lines to add: docs/guides/your-own-script.md",
        ),
        "train.py ended before the second batch of its training",
    ),
    ErrorEntry(
        "E121",
        _BAD,
        "",
        "a training script has optimizers that step in turn, in a mode that makes one update per batch",
        (
            "each optimizer was prepared on its own, as for a GAN, and the mode has a server, or is elastic",
            "two optimizers train parameters of the same module",
        ),
        (
            "use --mode single, ssgd, localsgd, diloco or gossip without --elastic",
            "if they step together, prepare them as a list: run.prepare(model, [first, second], loader)",
        ),
        "2 optimizers step in turn, and asgd makes one update per batch",
    ),
    ErrorEntry(
        "E122",
        _BAD,
        "",
        "a training script changes gradients between backward and step",
        (
            "torch.nn.utils.clip_grad_norm_ would clip the gradient of one worker, before the workers agree",
            "a GradScaler that was not prepared would scale each worker's gradient by its own factor",
            "the mode has a server, or the run is elastic, and a GradScaler changes its scale with every "
            "update",
        ),
        (
            "use run.clip_grad_norm_ or run.clip_grad_value_",
            "prepare the GradScaler, or use bf16, which needs none",
        ),
        "the gradients of 16 parameters were changed after backward (clip_grad_norm_?)",
    ),
    ErrorEntry(
        "E123",
        _BAD,
        "",
        "a training script evaluates its loss inside of optimizer.step",
        (
            "the optimizer is LBFGS",
            "optimizer.step got a closure",
        ),
        ("use an optimizer that makes one update per gradient, such as SGD or AdamW",),
        "LBFGS evaluates the loss inside of step()",
    ),
    ErrorEntry(
        "E124",
        _BAD,
        "",
        "a mode does not run training scripts",
        (
            "onebit needs an optimizer of Paceline",
            "ddp and fsdp wrap the module, and a script calls its own",
        ),
        ("use --mode ssgd, or another mode that the message lists",),
        "ddp wraps the module for torch.distributed, and a script calls its own module",
    ),
    ErrorEntry(
        "E125",
        _BAD,
        "",
        "the stream of a training script cannot be continued where it was left",
        (
            "the IterableDataset has no state_dict and load_state_dict",
            "the DataLoader reads it in processes of its own",
            "workers of the mode take any share, or shares of any size",
            "run.epochs was called, and a stream has no length",
        ),
        (
            "add state_dict and load_state_dict, and use num_workers=0",
            "use --mode ssgd, and count steps: for step in run.steps(5000)",
            "use a map-style dataset, which has __getitem__ and __len__",
        ),
        "Stream has no state_dict: after a loss nothing says which of its records were used",
    ),
    ErrorEntry(
        "E126",
        _BAD,
        "",
        "a training script needs a number on which all workers agree, and they do not",
        (
            "ReduceLROnPlateau, run.mean, run.gather or run.split is used in a mode whose workers do not "
            "all make the "
            "same steps, or in an elastic run",
            "each worker gives ReduceLROnPlateau a number that it measured on its own",
            "two schedulers of one optimizer were prepared",
        ),
        (
            "give it run.mean(number), or the result of run.evaluate",
            "use a schedule by steps or epochs",
            "combine two schedulers with SequentialLR or ChainedScheduler",
        ),
        "ReduceLROnPlateau needs a number on which all workers agree, and those of asgd never meet",
    ),
    ErrorEntry(
        "E127",
        _BAD,
        "",
        "a training script makes sparse gradients",
        ("an Embedding was created with sparse=True",),
        ("create it with sparse=False",),
        "0 of Sequential makes sparse gradients",
    ),
    ErrorEntry(
        "E128",
        _BAD,
        "",
        "a training script prepared a lazy module before its first forward pass",
        ("parameters of LazyLinear and others have no shape before",),
        ("call the model once with a batch before run.prepare",),
        "0.weight of Sequential has no shape yet (a lazy module)",
    ),
    ErrorEntry(
        "E129",
        _BAD,
        "",
        "the workers of a training script cannot share a step",
        (
            "batch_size of the loader is the batch of the whole run",
            "run.backward got a weight, and the workers' shares are not of equal size",
        ),
        (
            "use a larger batch_size or fewer workers",
            'use run.prepare(…, batch="per-worker")',
            "for weights: a batch_size that is a multiple of the number of workers, and no mode adaptive",
        ),
        "a step has 6 samples for 8 workers with 1 micro-batch each",
    ),
    ErrorEntry(
        "E130",
        _BAD,
        "",
        "the length of a training script is not known",
        ("the loop counts epochs or steps with range()",),
        (
            "write  for epoch in run.epochs(30):",
            "write  for step in run.steps(5000):",
        ),
        "the length of the training is not known: the loop counts without run",
    ),
    ErrorEntry(
        "E131",
        _BAD,
        "",
        "the loader of a training script cannot be shared by workers",
        (
            "it has a batch_sampler, or an __iter__ of its own",
            "a second loader was prepared",
        ),
        ("prepare one plain DataLoader, that of the training data",),
        "the DataLoader has a batch_sampler, or makes no batches",
    ),
    ErrorEntry(
        "E132",
        _BAD,
        "",
        "workers of a training script built different things",
        (
            "the model or the data depends on the rank, the time, or an unseeded generator",
            "the script was changed after the run began",
        ),
        (
            "seed every generator, and use run.seed instead of run.rank",
            "restore the script, or start a new run",
        ),
        "worker-1 prepared model 1f3a9c, and the run was planned with 77b012",
    ),
    ErrorEntry(
        "E133",
        _BAD,
        "",
        "a worker of a training script left its loop early",
        (
            "the loop has a break that only some workers reach",
            "the script ended with an error that it hides",
        ),
        ("call run.stop() instead: all workers leave their loops after the same step",),
        "worker-2 left its loop at step 40, and the run has 100 steps",
    ),
    ErrorEntry(
        "E134",
        _BAD,
        "",
        "a training script changes what the server of its mode updates",
        (
            "the learning rate is set by hand",
            "some parameters are clipped, but not all",
            "parameters are changed outside of optimizer.step(), such as by clamp_",
            "run.state or run.keep is used, and the server does not run the loop",
            "run.state or run.keep is used with after_update, and a worker updates several shards (elastic "
            "runs that average every few steps)",
        ),
        (
            "prepare a scheduler of torch, such as LambdaLR",
            "change parameters in run.prepare(…, after_update=fn)",
            "use a mode without a server: --mode ssgd",
        ),
        "the script sets the learning rate by hand, and the server of asgd has its own",
    ),
    ErrorEntry(
        "E135",
        _BAD,
        "",
        "a training script does not make one optimizer.step for each batch",
        (
            "gradients are accumulated over several batches",
            "a batch is skipped with continue",
            "the prepared loader is iterated again, for an evaluation",
        ),
        (
            "declare the accumulation: run.prepare(…, accumulate=4)",
            "call optimizer.step() once for each batch",
            "evaluate with a DataLoader that is not prepared",
        ),
        "2 batches were taken before optimizer.step()",
    ),
    ErrorEntry(
        "E136",
        _BAD,
        "",
        "a training script does not report its loss",
        ("loss.backward() is called instead of run.backward(loss)",),
        ("write run.backward(loss)",),
        "optimizer.step() was called, but run.backward was not",
    ),
    ErrorEntry(
        "E137",
        _BAD,
        "",
        "a training script trains something that was not prepared",
        (
            "one model and optimizer of a GAN were prepared, and the others not",
            "a module without an optimizer is not frozen",
        ),
        (
            "prepare every module that the loss trains, and its optimizer",
            "freeze other modules: module.requires_grad_(False)",
        ),
        "an optimizer that was not prepared makes a step in the training loop: Adam",
    ),
    ErrorEntry(
        "E138",
        _BAD,
        "",
        "a training script keeps state that a checkpoint cannot hold",
        (
            "run.state, or the state_dict of an object given to run.keep, holds more than tensors and "
            "plain values",
        ),
        ("keep tensors, numbers, strings, and lists and dicts of these",),
        "run.state holds a Path, which a checkpoint cannot hold",
    ),
)
