"""Trainer of transformers whose training loop is a run's: every mode, elastic runs, each sample once.

    from paceline.hf import Trainer  # instead of transformers.Trainer

The loop is Paceline's; model, data, collator, loss, optimizer, schedule, evaluation, checkpoints and
callbacks are those of transformers. Callbacks are called once for each step of the run, in every mode: a
worker that had no share of a step calls them after its next one. `per_device_train_batch_size` is the batch
of the run, which its workers share, so steps and schedule do not depend on the number of workers.
See docs/guides/your-own-script.md.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader

from paceline.core.errors import script_error
from paceline.worker.script.run import join


class Trainer(transformers.Trainer):  # type: ignore[misc]  # transformers may be missing, and is not typed
    control: Any  # Any: a TrainerControl

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: those of transformers.Trainer
        self.run = join()
        super().__init__(*args, **kwargs)
        self._begun_step = -1  # of which on_step_begin was called
        self._own_loss = torch.zeros(())  # of shares computed here since the last record
        self._own_shares = 0

    def is_world_process_zero(self) -> bool:
        return self.run.is_main

    def is_local_process_zero(self) -> bool:
        return self.run.is_main

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: transformers.TrainingArguments | None = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,  # Any: of a hyper-parameter search, which is refused
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:  # Any: a TrainOutput
        """The loop that `transformers.Trainer.train` calls after its preparations."""
        args = args or self.args
        self._require_suited(args, resume_from_checkpoint, trial)
        loader = _plain(self.get_train_dataloader())
        lengths = self.set_initial_training_values(args, loader)
        num_epochs, self._steps_per_epoch, num_samples, max_steps = (lengths[i] for i in (0, 1, 3, 6))
        self._init_training_state(max_steps, self._steps_per_epoch, num_epochs, None, trial)
        model, batches = self._prepared(loader, max_steps)
        steps = self.run.steps(max_steps)
        first = next(steps, max_steps)  # a resumed run stands elsewhere
        self._begin_records(args, first)
        model.zero_grad()
        self.control = self.callback_handler.on_train_begin(args, self.state, self.control)
        if args.eval_on_start and first < max_steps:
            self._evaluate(trial, ignore_keys_for_eval, skip_scheduler=True)
        for step in chain([first] if first < max_steps else [], steps):
            grad_norm = self._train_share(model, step, batches)
            self._refresh_main()
            if self.run.committed:
                self._end_steps(step + 1, model, grad_norm, ignore_keys_for_eval)
        if not self.run.stopped:
            self._end_steps(max_steps, model, None, ignore_keys_for_eval)
        elif self.state.global_step % self._steps_per_epoch:
            self._end_epoch(model, None, ignore_keys_for_eval)
        return self._finalize_training(trial, num_samples, self._start_time)

    def _prepared(self, loader: "DataLoader[Any]", max_steps: int) -> tuple[nn.Module, Iterator[Any]]:
        """The model, and batches without an end; Any: what the collator makes."""
        self.create_optimizer()
        model: nn.Module = self.accelerator.prepare_model(self.model, evaluation_mode=True)  # mixed precision
        self.model_wrapped = model
        self.create_scheduler(num_training_steps=max_steps)
        prepared = (model, self.optimizer, self.lr_scheduler, loader)
        loader = self.run.prepare(*prepared, accumulate=self.args.gradient_accumulation_steps)[3]
        # What a subclass calls in a training_step of its own.
        self.accelerator.backward = lambda loss, **_: self._backward(loss)
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = loader
        return model, _endless(loader)

    def _begin_records(self, args: transformers.TrainingArguments, first: int) -> None:
        """What transformers.Trainer keeps for logs and for the end of the training."""
        self._start_time = transformers.trainer.time.time()
        self.state.global_step = first
        self.state.epoch = first / self._steps_per_epoch
        self._refresh_main()
        self._initial_num_input_tokens_seen = self.state.num_input_tokens_seen
        self._initial_global_step = first
        self._globalstep_last_logged = first
        self._tr_loss = torch.tensor(0.0, device=args.device)
        self._total_loss_scalar = 0.0
        self._own_loss = torch.tensor(0.0, device=args.device)
        self._own_shares = 0
        self._begun_step = first - 1

    def _train_share(
        self, model: nn.Module, step: int, batches: Iterator[Any]
    ) -> Any:  # Any: a norm, or None
        """Compute one share of a step: micro-batches, clip, optimizer, schedule."""
        micro_batches, num_items = self.get_batch_samples(
            batches, self.args.gradient_accumulation_steps, self.args.device
        )
        self.current_gradient_accumulation_steps = len(micro_batches)
        self._loss_weight = None if num_items is None else float(num_items) / len(micro_batches)
        if step == self.state.global_step:
            self._begin_step(step)
        for number, inputs in enumerate(micro_batches, start=1):
            is_last = number == len(micro_batches)
            self.accelerator.gradient_state._set_sync_gradients(is_last)
            self._own_loss += self.training_step(model, inputs, num_items)
            self.current_flos += float(self.floating_point_ops(inputs))
            self._track_num_input_tokens(inputs)
            if not is_last:
                self.control = self.callback_handler.on_substep_end(self.args, self.state, self.control)
        self._own_shares += 1
        grad_norm = self._clip_grad_norm(model) if self.args.max_grad_norm else None
        self.control = self.callback_handler.on_pre_optimizer_step(self.args, self.state, self.control)
        self.optimizer.step()
        self.control = self.callback_handler.on_optimizer_step(self.args, self.state, self.control)
        self._used_rate = self._get_learning_rate()
        self.lr_scheduler.step()
        model.zero_grad()
        return grad_norm

    def _backward(self, loss: Tensor) -> None:
        """The micro-batches' losses add up to the mean over the tokens of the share, if these are counted."""
        if self._loss_weight is None or not self.run.needs_weights:
            self.run.backward(loss)
        else:
            self.run.backward(loss * self.current_gradient_accumulation_steps, self._loss_weight)

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        return self.run.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)

    # Callbacks: once for each step of the run

    def _begin_step(self, step: int) -> None:
        if self._begun_step == step:
            return
        self._begun_step = step
        if step % self._steps_per_epoch == 0:
            self.control = self.callback_handler.on_epoch_begin(self.args, self.state, self.control)
        self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)

    def _end_steps(
        self, until: int, model: nn.Module, grad_norm: Tensor | None, ignore_keys_for_eval: list[str] | None
    ) -> None:
        """All steps before `until` are made: by this worker, or by others."""
        for step in range(self.state.global_step, until):
            self._begin_step(step)
            self.state.global_step = step + 1
            self.state.epoch = (step + 1) / self._steps_per_epoch
            self.control = self.callback_handler.on_step_end(self.args, self.state, self.control)
            self._record(model, grad_norm, ignore_keys_for_eval)
            if (step + 1) % self._steps_per_epoch == 0 or step + 1 == self.state.max_steps:
                self._end_epoch(model, grad_norm, ignore_keys_for_eval)
            if step + 1 < self.state.max_steps:
                self._obey()

    def _end_epoch(
        self, model: nn.Module, grad_norm: Tensor | None, ignore_keys_for_eval: list[str] | None
    ) -> None:
        self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
        self._record(model, grad_norm, ignore_keys_for_eval)

    def _record(
        self, model: nn.Module, grad_norm: Tensor | None, ignore_keys_for_eval: list[str] | None
    ) -> None:
        """Logs, evaluation and checkpoints that a callback wants now."""
        steps = self.state.global_step - self._globalstep_last_logged
        if self._own_shares:
            self._tr_loss = self._own_loss * (steps / self._own_shares)
        self._maybe_log_save_evaluate(
            self._tr_loss,
            grad_norm,
            model,
            None,
            self.state.epoch,
            ignore_keys_for_eval,
            self._start_time,
            learning_rate=self._used_rate,
        )
        if self._globalstep_last_logged == self.state.global_step:
            self._own_loss = torch.zeros_like(self._own_loss)
            self._own_shares = 0

    def _obey(self) -> None:
        """A callback may end the training: then all workers end it after the same step."""
        if self.control.should_epoch_stop:
            raise script_error(
                "E133",
                "a callback ended the epoch (should_epoch_stop), whose samples are used once by all workers",
                "end the training instead:  control.should_training_stop = True",
            )
        if self.control.should_training_stop:
            self.run.stop("a callback of the Trainer ended the training")

    def _refresh_main(self) -> None:
        """In an elastic run another worker may have become the main one."""
        self.state.is_world_process_zero = self.run.is_main
        self.state.is_local_process_zero = self.run.is_main

    # Files: the main worker's

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if self.run.is_main:
            super().save_model(output_dir, _internal_call)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:  # Any: see _inner_training_loop
        if self.run.is_main:
            super()._save_checkpoint(model, trial)

    def _load_best_model(self) -> None:
        if self.run.is_main:
            super()._load_best_model()

    def _require_suited(
        self, args: transformers.TrainingArguments, resume_from_checkpoint: str | None, trial: Any
    ) -> None:
        refused = [
            (resume_from_checkpoint is not None, "resume_from_checkpoint", "paceline run --resume RUN"),
            (trial is not None, "a hyper-parameter search", "search with  paceline tune"),
            (args.auto_find_batch_size, "auto_find_batch_size", "set per_device_train_batch_size"),
            (args.fp16, "fp16", "use bf16=True, which needs no gradient scaler"),
            (
                self.is_deepspeed_enabled or self.is_fsdp_enabled or args.world_size > 1,
                "DeepSpeed, FSDP or torch.distributed",
                "leave it out: the run distributes the training",
            ),
        ]
        for is_used, what, hint in refused:
            if is_used:
                raise script_error("E120", f"the Trainer was told to use {what}, which a run replaces", hint)


def _plain(loader: "DataLoader[Any]") -> "DataLoader[Any]":  # Any: batches
    """The loader without what Accelerate wrapped around it; the run moves samples to workers."""
    if not getattr(loader, "_is_accelerate_prepared", False):
        return loader
    batches: Any = loader.batch_sampler
    return DataLoader(
        loader.dataset,
        batch_size=batches.batch_size,
        sampler=batches.sampler,
        drop_last=batches.drop_last,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


def _endless(loader: "DataLoader[Any]") -> Iterator[Any]:  # Any: batches
    """Batches of epoch after epoch: only a step that has begun asks for one."""
    while True:
        yield from loader
