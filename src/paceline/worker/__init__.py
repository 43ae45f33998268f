"""Participants of a run: workers and parameter servers.

A participant is a process (in virtual time a thread, entry/virtual.py) with one training thread, which alone
owns the replica, the strategy and its event log. On one machine the zygote (entry/zygote.py), which has no
threads, imports torch once and forks the participants; with Ray and torchrun another program starts them.
Other threads serve the training thread and never touch the replica: the checkpoint writer takes over finished
copies (checkpoints/writer.py), the self-monitor writes samples to a log of its own, and the membership of an
elastic run talks to the coordinator.

Requests of the supervisor (stop, pause, leave, save) and the progress of each worker are numbers in shared
memory without locks (control.py). In a run with a fixed set of workers the first failure ends the run; in an
elastic run (`elastic/`, `server/`) the others continue, and the launcher decides whether the lost one is
replaced. When the zygote dies, the kernel kills its children; when the command dies, the zygote kills them.
"""
