"""Leases: a batch slot is freed once, and its stamp is erased before that."""

import pytest

from snapexport.serving.dynamo.handover import END, HOLD, Leases, note, parse


class Slots:
    """Notes which requests were released, and what the stamps were then."""

    def __init__(self) -> None:
        self.released: list[int] = []
        self.leases = Leases(2, 10, self.release)

    def release(self, request_id: int) -> None:
        assert self.leases.stamps.tolist().count(0) >= 1, "the stamp was still there"
        self.released.append(request_id)


def granted(slots: Slots, request_id: int) -> tuple[int, int]:
    slots.leases.grant(request_id, now=0)
    found = slots.leases.of(request_id)
    assert found
    return found


def test_lease_ends_once_and_erases_its_stamp() -> None:
    slots = Slots()
    lease, stamp = granted(slots, 7)
    assert slots.leases.stamps[stamp] == lease != 0
    slots.leases.end(lease)
    slots.leases.end(lease)
    assert slots.leases.of(7) is None
    assert slots.released == [7] and not slots.leases.stamps.any() and not len(slots.leases)


def test_lease_that_nobody_extends_expires() -> None:
    slots = Slots()
    slots.leases.grant(1, now=0)
    lease, _ = granted(slots, 2)
    slots.leases.extend(lease, now=5)
    slots.leases.expire(now=10)
    assert slots.released == [1] and slots.leases.expired == 1
    slots.leases.expire(now=14.9)
    assert slots.released == [1]
    slots.leases.expire(now=15)
    assert slots.released == [1, 2]


def test_later_lease_of_the_same_stamp_has_another_value() -> None:
    slots = Slots()
    lease, stamp = granted(slots, 1)
    other, other_stamp = granted(slots, 2)
    assert stamp != other_stamp
    slots.leases.end(lease)
    again, stamp_again = granted(slots, 3)
    assert stamp_again == stamp and len({lease, other, again}) == 3


@pytest.mark.parametrize("verb", [HOLD, END])
def test_note_is_read_as_written(verb: str) -> None:
    assert parse(note(verb, (1 << 63) - 1)) == (verb, (1 << 63) - 1)


@pytest.mark.parametrize(
    "text", [b"", b"end", b"end -1", b"end 1 2", b"free 1", b"\xff", b"end 1\n"]
)
def test_other_notes_are_nothing(text: bytes) -> None:
    assert parse(text) == ("", 0)
