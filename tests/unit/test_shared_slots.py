"""Memory shared with workers: values come back whole, and a slot is free again when nobody reads it."""

import multiprocessing
from typing import Any

import numpy as np
import pytest

from deployments.encoders import shared_slots
from deployments.encoders.shared_slots import SharedSlots, Stored


def value(seed: int = 0) -> dict[str, Any]:
    """Views of one array, as a picture's strips are, an array of another type and one without bytes."""
    rng = np.random.default_rng(seed)
    strips = rng.integers(0, 256, (9, 3, 14, 101), dtype=np.uint8)
    return {"strips": list(strips), "levels": rng.random((3, 256), np.float32), "none": np.zeros((0, 4))}


def test_values_come_back_whole_and_without_a_copy() -> None:
    """What is loaded equals what was stored, and its arrays lie in the shared memory itself."""
    slots = SharedSlots(2)
    slot = slots.take()
    stored = slots.store(slot, value())
    assert isinstance(stored, Stored)
    loaded = slots.loaded(stored)
    np.testing.assert_equal(loaded, value())
    begin, _ = stored.places[0]
    slots._slot(stored.slot)[begin] ^= 255
    assert loaded["strips"][0].flat[0] == value()["strips"][0].flat[0] ^ 255


def test_a_slot_is_free_when_the_last_array_is_gone() -> None:
    """One strip of a picture keeps its slot from being written over; without it another may have it."""
    slots = SharedSlots(1)
    loaded = slots.loaded(slots.store(slots.take(), value()))  # type: ignore[arg-type]
    one = loaded["strips"][4].reshape(-1)[5:].view(np.int8)
    del loaded
    assert slots.take() is None
    del one
    assert slots.take() == 0


def test_what_has_no_room_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a slot, and where the arrays are larger than one, the value itself goes the old way."""
    monkeypatch.setattr(shared_slots, "SLOT_BYTES", 4096 * 4)
    slots = SharedSlots(1)
    large = value()
    assert slots.store(None, large) is large
    assert slots.store(slots.take(), large) is large
    slots.give(0)
    assert isinstance(slots.store(slots.take(), {"a": np.zeros(4096 * 4, np.uint8)}), Stored)


def stored_elsewhere(slots: SharedSlots, results: Any) -> None:
    """In another process."""
    results.put(slots.store(1, value(7)))


def test_a_spawned_process_writes_to_the_same_memory() -> None:
    """What another process stores is loaded here."""
    context = multiprocessing.get_context("spawn")
    slots, results = SharedSlots(2), context.SimpleQueue()
    writer = context.Process(target=stored_elsewhere, args=(slots, results))
    writer.start()
    np.testing.assert_equal(slots.loaded(results.get()), value(7))
    writer.join(60)
    assert writer.exitcode == 0
