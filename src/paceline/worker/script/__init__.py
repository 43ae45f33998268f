"""Training loops of users: a script drives the step loop of worker/loop.py instead of being called by it.

    run.prepare    the script's objects are recorded; nothing else happens
    first batch    the host opens the loop: the model is laid out in the arena, the worker is built
    next batch     the loop goes to its next Computation: a share of samples, and parameters for it
    optimizer.step the gradient is collected, the loop goes to its StepEnd: exchange, update, record

`ScriptSteps` (steps.py) is this state machine, and `ScriptSession` (session.py) all that a script calls. What
differs between a script that Python started, one worker of a run and a virtual worker is in its `ScriptHost`
(port.py, hosts.py). `paceline run` first starts the script in a process that makes one step alone, and builds
the plan from what it prepared (facts.py).
"""
