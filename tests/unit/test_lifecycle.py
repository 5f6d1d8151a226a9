"""The life of an encoder replica. Needs nothing."""

import pickle

import pytest

from policies.lifecycle import MOVES, IllegalMove, Lifecycle, ReplicaState

S = ReplicaState

LEGAL = {
    (S.STARTING, S.WARMING),
    (S.STARTING, S.STOPPED),
    (S.WARMING, S.READY),
    (S.WARMING, S.FAILED),
    (S.WARMING, S.STOPPED),
    (S.READY, S.DRAINING),
    (S.READY, S.FAILED),
    (S.DRAINING, S.STOPPED),
    (S.FAILED, S.STOPPED),
}


@pytest.mark.parametrize("source", S)
@pytest.mark.parametrize("target", S)
def test_every_pair_of_states_is_legal_or_raises(source: S, target: S) -> None:
    """Exactly the moves of the table go through the door; every other pair is refused."""
    life = Lifecycle(source)
    if (source, target) in LEGAL:
        assert life.move(target, at_s=1.0, why="test").state is target
    else:
        with pytest.raises(IllegalMove):
            life.move(target, at_s=1.0, why="test")


def test_every_state_is_in_the_table() -> None:
    """The table has a row for every state, so that no move can fall through it."""
    assert set(MOVES) == set(S)


def test_a_move_leaves_the_old_value_alone() -> None:
    """A life is a value: moving on does not change what others hold."""
    life = Lifecycle()
    life.move(S.WARMING, at_s=1.0, why="loaded")
    assert life == Lifecycle(S.STARTING, ())


def test_an_illegal_move_tells_its_history_and_pickles() -> None:
    """The refusal says how the replica came to where it was, on the other side of a process border too."""
    life = Lifecycle().move(S.WARMING, at_s=1.0, why="weights loaded").move(S.FAILED, at_s=2.5, why="capture")
    with pytest.raises(IllegalMove) as caught:
        life.move(S.READY, at_s=3.0, why="hope")
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.history == life.history
    assert str(error) == str(caught.value)
    assert "starting -> warming at 1.000 (weights loaded); warming -> failed at 2.500 (capture)" in str(error)


@pytest.mark.rule("A11")
def test_failed_is_terminal() -> None:
    """From failed the only way is out: no path leads back to a state that takes work."""
    reachable, frontier = set(), {S.FAILED}
    while frontier:
        reachable |= frontier
        frontier = set().union(*(MOVES[state] for state in frontier)) - reachable
    assert reachable == {S.FAILED, S.STOPPED}
    assert not any(state.takes_work for state in reachable)


def test_only_ready_takes_work_and_leaving_states_never_do() -> None:
    """One state takes work, and it is none of those that are leaving."""
    assert [state for state in S if state.takes_work] == [S.READY]
    assert [state for state in S if state.is_leaving] == [S.DRAINING, S.FAILED, S.STOPPED]
