"""Launchers: start the participants of a run, supervise them, and report their results.

The process of the command never imports torch. Locally it starts one helper process in a session of its own
(the zygote, worker/entry/zygote.py), which forks the participants. Both sides are single-threaded event
loops that exchange JSON lines over one socket pair: the launcher sends orders, the helper sends the messages
of the participants and their ends. When the socket closes, the helper kills its children; when the helper
is lost, the launcher kills what tasks have started and raises TrainingError.

On Ray each participant is an actor, and the launcher polls all actors in turn. With torchrun the rank 0
process supervises. Decisions (cause of a failure, restarts, resizing) are pure and in supervision.py; in an
elastic run `ElasticSupervisor` carries them out. It is called by the launcher's loop only.
"""
