"""How is a command refused? With why, what was seen, and what to do; never with an exception."""

from paceline.coordinator.proto import cluster_pb2 as pb


def invalid(what: str, hint: str) -> pb.Refusal:
    return pb.Refusal(why=pb.INVALID, what=what, hint=hint)


def not_found(what: str, hint: str) -> pb.Refusal:
    return pb.Refusal(why=pb.NOT_FOUND, what=what, hint=hint)


def exists(what: str, hint: str) -> pb.Refusal:
    return pb.Refusal(why=pb.EXISTS, what=what, hint=hint)


def fenced(what: str, hint: str) -> pb.Refusal:
    return pb.Refusal(why=pb.FENCED, what=what, hint=hint)


def not_now(what: str, hint: str) -> pb.Refusal:
    return pb.Refusal(why=pb.NOT_NOW, what=what, hint=hint)


def no_session(what: str) -> pb.Refusal:
    hint = "open a new session; whether earlier commands were applied can be seen by reading"
    return pb.Refusal(why=pb.NO_SESSION, what=what, hint=hint)
