"""Select a diverse subset of problems, as s1K did."""

from __future__ import annotations

import random
from collections.abc import Sequence


def select_diverse(domains: Sequence[str], lengths: Sequence[float], count: int, seed: int = 0) -> list[int]:
    """So many problems, spread over domains and leaning to long reasoning: the last stage of s1K's selection
    (Muennighoff et al. 2025, arXiv:2501.19393).

    Each draw takes a domain, all alike, then one of its problems with weight 2^-rank, the longest reasoning first.
    Returned in the order in which they were drawn.
    """
    rng = random.Random(seed)
    left: dict[str, list[int]] = {}
    for i in sorted(range(len(domains)), key=lambda i: -lengths[i]):
        left.setdefault(domains[i], []).append(i)
    order = sorted(left)
    taken: list[int] = []
    while order and len(taken) < count:
        domain = rng.choice(order)
        group = left[domain]
        (place,) = rng.choices(range(len(group)), weights=[0.5**rank for rank in range(len(group))])
        taken.append(group.pop(place))
        if not group:
            order.remove(domain)
    return taken
