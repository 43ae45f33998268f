"""Client sessions: a command that is sent twice is applied once (exactly-once semantics).

A client numbers its commands in a session and acknowledges the answers that it has received
(`first_open`). A repeated command gets its first answer again. A nonce makes opening idempotent:
opened twice, it is one session. Everything is bounded: beyond MAX_SESSIONS the least recently
used session is dropped, beyond MAX_TOTAL_BYTES of answers the session that holds most of them.
"""

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import results
from paceline.coordinator.state.model import CoordinatorRecords, SessionRecord
from paceline.coordinator.state.results import ApplyContext

SESSION_TIMEOUT_MS = 3_600_000
MAX_SESSIONS = 10_000
MAX_ANSWERS = 1_000  # per session
MAX_ANSWER_BYTES = 8 << 20  # per session
MAX_TOTAL_BYTES = 64 << 20  # in all sessions


def open_session(context: ApplyContext, request: pb.OpenSession) -> pb.Session | pb.Refusal:
    if not request.nonce:
        return results.invalid(
            "a session was opened without a nonce", "send a random one, the same on every attempt"
        )
    state = context.state
    existing = state.nonces.get((context.by, request.nonce))
    if existing is not None:
        _use(state, state.sessions[existing])
        return _session_message(state.sessions[existing])
    session = SessionRecord(context.index, request.client, request.nonce, context.by, state.elapsed_ms)
    state.sessions[context.index] = session
    state.nonces[context.by, request.nonce] = context.index
    while len(state.sessions) > MAX_SESSIONS:
        _drop(state, next(iter(state.sessions)))
    return _session_message(session)


def close_session(context: ApplyContext, _: pb.CloseSession) -> pb.Session | pb.Refusal:
    session = context.state.sessions.get(context.session)
    if session is None:
        return results.invalid("a session was closed without its number", "send its number with the command")
    _drop(context.state, session.session)
    return _session_message(session)


def drop_expired(state: CoordinatorRecords) -> None:
    while state.sessions:
        oldest = next(iter(state.sessions.values()))
        if state.elapsed_ms - oldest.used_elapsed_ms <= SESSION_TIMEOUT_MS:
            return
        _drop(state, oldest.session)


def earlier_answer(state: CoordinatorRecords, command: pb.Command) -> pb.Outcome | pb.Refusal | None:
    """The answer of a command that must not be applied; None: it is new."""
    number = command.session
    sequence = command.sequence
    session = state.sessions.get(number)
    if session is None or session.by != command.by:
        return results.no_session(f"session {number} is unknown, expired, closed, or owned by another client")
    _use(state, session)
    # A command never acknowledges its own answer, so a wrong number cannot cause a second application.
    _forget_below(state, session, min(command.first_open, sequence))
    if sequence in session.answers:
        return pb.Outcome.FromString(session.answers[sequence])
    if sequence < session.first_open:
        return results.invalid(
            f"command {sequence} of session {number} was answered, and its answer was acknowledged",
            f"number new commands from {session.first_open} on",
        )
    if len(session.answers) >= MAX_ANSWERS or session.answer_bytes >= MAX_ANSWER_BYTES:
        return results.not_now(
            f"session {number} holds {len(session.answers)} answers that were not acknowledged",
            "send the lowest command number without an answer as first_open",
        )
    return None


def remember(state: CoordinatorRecords, command: pb.Command, outcome: pb.Outcome) -> None:
    session = state.sessions.get(command.session)
    if session is None:  # it was just closed
        return
    answer = outcome.SerializeToString(deterministic=True)
    session.answers[command.sequence] = answer
    session.answer_bytes += len(answer)
    state.answer_bytes += len(answer)
    while state.answer_bytes > MAX_TOTAL_BYTES:
        largest = max(state.sessions.values(), key=lambda held: held.answer_bytes)
        _drop(state, largest.session)


def _use(state: CoordinatorRecords, session: SessionRecord) -> None:
    session.used_elapsed_ms = state.elapsed_ms
    state.sessions.move_to_end(session.session)


def _forget_below(state: CoordinatorRecords, session: SessionRecord, first_open: int) -> None:
    if first_open <= session.first_open:
        return
    answers = session.answers
    if first_open - session.first_open <= len(answers):
        acknowledged = [sequence for sequence in range(session.first_open, first_open) if sequence in answers]
    else:
        acknowledged = [sequence for sequence in answers if sequence < first_open]
    freed = sum(len(answers.pop(sequence)) for sequence in acknowledged)
    session.first_open = first_open
    session.answer_bytes -= freed
    state.answer_bytes -= freed


def _drop(state: CoordinatorRecords, number: int) -> None:
    session = state.sessions.pop(number)
    state.answer_bytes -= session.answer_bytes
    del state.nonces[session.by, session.nonce]


def _session_message(session: SessionRecord) -> pb.Session:
    """The session without its responses, which may be many."""
    return pb.Session(
        session=session.session,
        client=session.client,
        nonce=session.nonce,
        used_elapsed_ms=session.used_elapsed_ms,
        first_open=session.first_open,
        by=session.by,
    )
