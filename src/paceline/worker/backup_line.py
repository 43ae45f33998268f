"""When is what a primary has done safe? Once its backup has it; alone, while the coordinator stands by it.

Who the backup is, is agreed on with the coordinator, in this order: its
confirmation is waited for, then it is named. And the other way round: it is
struck out, then nothing is waited for. So whoever is promoted has everything
that was ever safe, and of two servers that both think they are primary, one
finds nothing of its own safe any more.
"""

from paceline.clock import monotonic_s
from paceline.coordinator.client import RefusedError, UnreachableError
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.transport.elastic_host import Link
from paceline.transport.elastic_wire import Frame
from paceline.worker.place_membership import FencedError, Places


class BackupLine:
    def __init__(self, *, name: str, part: int, membership: Places) -> None:
        self._name, self._part, self._membership = name, part, membership
        self.link: Link | None = None
        self._is_guarded = False  # nothing is safe without the backup
        self._confirmed = 0

    def safe(self, ordered: int) -> int:
        """Of so many orders, how many are safe now?"""
        if self._is_guarded:
            return self._confirmed
        return ordered if self._may_answer_alone() else 0

    def begin(self, link: Link) -> None:
        """This server is told everything from here on; it counts when it confirms that it has the state."""
        self.link, self._is_guarded = link, False

    def tell(self, frame: Frame, payload: memoryview | None = None) -> None:
        if self.link is None:
            return
        try:
            self.link.send(frame, payload)
        except OSError:
            self.link.close()  # its thread reports that it is gone, and only then do we go on without it

    def confirm(self, number: int) -> bool:
        """The backup has all orders up to this one; was it named just now?"""
        self._confirmed = number
        if self._is_guarded or self.link is None:
            return False
        self._is_guarded = True
        self._agree_on(self.link.name)
        return self.link is not None

    def lose(self) -> None:
        """Its connection is gone; it may live, so the coordinator must know before we go on alone."""
        if self._is_guarded:
            self._agree_on("")
        self._let_go()

    def look(self) -> None:
        """Are we still primary, and is our backup still the backup? FencedError: we are not."""
        place = self._membership.standing.place(self._part)
        if self._membership.is_fenced or place.primary != self._name:
            raise self._fenced(place)
        if self._is_guarded and self.link is not None and place.backup != self.link.name:
            self._let_go()

    def _let_go(self) -> None:
        if self.link is not None:
            self.link.close()
        self.link, self._is_guarded = None, False

    def _may_answer_alone(self) -> bool:
        # Half a lease: if we stood still for longer, another may be primary by now.
        standing, membership = self._membership.standing, self._membership
        place, me = standing.places.get(self._part), standing.living.get(self._name)
        is_ours = place is not None and place.primary == self._name and not place.backup
        is_me = me is not None and me.incarnation == membership.number
        return is_ours and is_me and monotonic_s() - standing.taken_s < membership.lease_s / 2

    def _agree_on(self, backup: str) -> None:
        """The coordinator knows who our backup is, or that we have none, when this returns."""
        while True:
            place = self._membership.standing.place(self._part)
            if place.primary != self._name:
                raise self._fenced(place)
            if place.backup == backup:
                return
            try:
                self._membership.put(self._part, primary=self._name, backup=backup, epoch=place.epoch)
            except RefusedError as error:
                if backup and error.why == pb.Why.Name(pb.NOT_FOUND):  # it is lost already
                    self._let_go()
                    return
                self._read_again()  # the place has changed meanwhile: decide anew
            except UnreachableError:
                self._read_again()

    def _read_again(self) -> None:
        """What the coordinator says now; without it nothing can be decided."""
        while True:
            try:
                self._membership.look()
                return
            except UnreachableError:
                if self._membership.standing.is_alone:
                    raise
                if self._membership.is_fenced:
                    raise self._fenced(self._membership.standing.place(self._part)) from None

    def _fenced(self, place: pb.ServerPlace) -> FencedError:
        who = place.primary or "nobody"
        return FencedError(
            f"{self._name} is not primary of part {self._part} any more: {who} is, in epoch {place.epoch}",
            "its successor goes on; a new process starts under this name",
        )
