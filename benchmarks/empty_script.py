"""A training script without work: prints the microseconds that a batch and an optimizer step take."""

import statistics
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

BATCH = 8

torch.set_num_threads(1)
run = paceline.join()
samples = torch.zeros(int(sys.argv[1]) * BATCH, 1)
loader = DataLoader(TensorDataset(samples), batch_size=BATCH, shuffle=True)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = run.prepare(model, optimizer, loader)
took_ns = []
for _ in run.epochs(1):
    began_ns = time.perf_counter_ns()
    for (x,) in loader:
        loading_ns = time.perf_counter_ns() - began_ns
        run.backward(model(x).sum())
        began_ns = time.perf_counter_ns()
        optimizer.step()
        took_ns.append(loading_ns + time.perf_counter_ns() - began_ns)
        began_ns = time.perf_counter_ns()
print(statistics.median(took_ns) / 1000)
