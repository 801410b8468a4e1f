

def test_tables_agree_with_what_each_algorithm_learns_from():
    from ponder.train.algorithms import ALGORITHMS, OFFLINE, ON_POLICY, ONLINE

    assert {name for name, kind in ALGORITHMS.items() if kind.learns_from_samples} == set(ON_POLICY)
    assert {name for name, kind in ALGORITHMS.items() if kind.learns_from_given} == set(OFFLINE)
    assert set(ONLINE) == set(ON_POLICY) - set(OFFLINE)
