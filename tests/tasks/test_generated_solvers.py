"""Gold answers against another way to find them: by trying everything, or by reading the question as a person would."""

from __future__ import annotations

import itertools
import math
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.tasks import (
    Algebra,
    Counting,
    KnightsAndKnaves,
    Maze,
    NumberTheory,
    SatisfiabilityTask,
    Sorting,
    Strings,
    Sudoku,
    TicTacToe,
    TwentyFour,
    Zebra,
)
from ponder.tasks.generated import (
    algebra,
    knapsack,
    number_theory,
    satisfiability,
    strings,
    sudoku,
    tictactoe,
    zebra,  # fmt: skip
)

NUMBER = re.compile(r"-?[0-9]+")


def numbers(text):
    return [int(n) for n in NUMBER.findall(text)]


def brute(kind, n):
    """Number theory by counting."""
    divisors = [d for d in range(1, n[0] + 1) if n[0] % d == 0] if len(n) == 1 else []
    primes = [d for d in divisors if d > 1 and all(d % p for p in range(2, math.isqrt(d) + 1))]
    if kind == "gcd":
        return max(d for d in range(1, min(n) + 1) if n[0] % d == n[1] % d == 0)
    if kind == "lcm":
        return next(m for m in range(n[0], n[0] * n[1] + 1, n[0]) if m % n[1] == 0)
    if kind == "power":
        value = 1
        for _ in range(n[1]):
            value = value * n[0] % n[2]
        return value % n[2]
    if kind == "inverse":
        return next(x for x in range(1, n[1]) if n[0] * x % n[1] == 1)
    if kind == "remainders":
        pairs = list(zip(n[::2], n[1::2], strict=True))
        return next(x for x in itertools.count() if all(x % m == r for r, m in pairs))
    if kind == "prime-factors":
        return sum(p * max(k for k in range(1, 20) if n[0] % p**k == 0) for p in primes)
    if kind == "largest-prime":
        return max(primes)
    if kind == "totient":
        return sum(math.gcd(i, n[0]) == 1 for i in range(1, n[0] + 1))
    return len(divisors) if kind == "divisors" else sum(divisors)


@pytest.mark.parametrize("kind", number_theory.KINDS)
def test_number_theory(kind):
    task = NumberTheory(digits=3, kinds=(kind,))
    for problem in task.train[:25]:
        asked = numbers(problem.question.partition("\n")[0])
        if kind == "inverse":
            asked = [asked[2], asked[1]]
        if kind == "totient":
            asked = asked[1:2]
        if kind in ("divisor-sum", "prime-factors"):
            asked = [max(asked)]
        assert str(brute(kind, asked)) == problem.answer, problem


def test_factors_multiply_to_the_number():
    for n in range(2, 3000):
        result = number_theory.factors(n)
        assert math.prod(p**k for p, k in result.items()) == n
        assert all(all(p % d for d in range(2, math.isqrt(p) + 1)) for p in result)


@pytest.mark.parametrize("level", range(1, 7))
def test_algebra_satisfies_its_equations_and_only_so(level):
    task = Algebra(level=level)
    seen = set()
    for seed in range(60):
        story = task.draw(random.Random(seed))
        seen.add(story.template)
        values = algebra.solve(story.equations)
        assert all(value.denominator == 1 and value >= 1 for value in values), story
        for *coefficients, total in story.equations:
            assert sum(c * v for c, v in zip(coefficients, values, strict=True)) == total
        assert algebra._determinant([list(e[:-1]) for e in story.equations]) != 0
        text = {abs(n) for n in numbers(story.text)}
        if story.template.startswith("receipts"):  # the words say all that the equations do
            assert {abs(c) for e in story.equations for c in e} <= text
    assert len(seen) == len(algebra.TEMPLATES[task.unknowns])


def parse_story(text):
    """Word problems solved again from their words, by trying whole numbers."""
    n = numbers(text)
    span = range(1, 400)
    if "thinks of a number" in text:
        return next(x for x in span if n[0] * x + n[1] == n[2])
    if "and a bag" in text:
        return next(x for x in span if n[0] * x + n[1] == n[2])
    if "times as old as" in text and "older" not in text:
        return next(x for x in span if x + n[0] == n[1] * (x - n[2]))
    if "consecutive" in text:
        return next(x for x in span if sum(range(x, x + n[0])) == n[1])
    if "trains" in text:
        return next(x for x in span if (n[1] + n[2]) * x == n[0])
    if "heads" in text:
        hens, rabbits = next((h, n[0] - h) for h in range(n[0] + 1) if 2 * h + 4 * (n[0] - h) == n[1])
        return hens if "How many hens" in text else rabbits
    if "theatre" in text:
        return next(a for a in range(n[0] + 1) if a * n[2] + (n[0] - a) * n[3] == n[1])
    if "rectangle" in text:
        more, times, around = n if len(n) == 3 else (n[0], 1, n[1])
        return next(w for w in span if 2 * (w + times * w + more) == around)
    if "Three numbers" in text:
        x, y, z = next((x, n[0] - x, n[2] - x) for x in range(n[0]) if (n[0] - x) + (n[2] - x) == n[1])
        return {"first": x, "second": y, "third": z}[re.search(r"What is the (\w+) number", text)[1]]
    return None


def test_algebra_says_what_it_means():
    solved = 0
    for level in range(1, 7):
        for problem in Algebra(level=level).train[:60]:
            answer = parse_story(problem.question.partition("\n")[0])
            solved += answer is not None
            assert answer is None or str(answer) == problem.answer, problem.question
    assert solved > 150


def test_counting():
    for problem in Counting(length=12).train[:300]:
        asked, kind = problem.question.removesuffix("\nPut the final number in \\boxed{}."), problem.tags["kind"]
        head, _, listed = asked.partition("? " if "\n" not in asked else "?\n")
        values = numbers(listed)
        quoted = re.search('"(.*?)"', head)
        if kind in ("letter", "vowels"):
            count = sum(c in (quoted[1] if quoted else "aeiou") for c in listed)
        elif kind == "word":
            count = listed.split(", ").count(quoted[1])
        elif kind == "even":
            count = len([v for v in values if not v & 1])
        elif kind == "above":
            count = len([v for v in values if v > numbers(head)[0]])
        elif kind == "multiples":
            count = len([v for v in values if v in range(0, 100, numbers(head)[0])])
        elif kind == "distinct":
            count = len(set(values))
        elif kind == "longest-run":
            count = max(len(list(group)) for _, group in itertools.groupby(values))
        else:
            count = sum(a > b for a, b in itertools.combinations(values, 2))
        assert str(count) == problem.answer, problem


def test_sorting():
    for problem in Sorting(length=7, digits=3).train[:200]:
        listed = re.search(r": (.*)\.\n", problem.question)[1].split(", ")
        assert sorted(problem.answer) == sorted(listed)
        pairs = list(itertools.pairwise(problem.answer))
        kind = problem.tags["kind"]
        rank = {
            "ascending": int, "descending": lambda n: -int(n), "alphabet": str,
            "last-letter": lambda w: w[-1] + w, "length": lambda w: (len(w), w),
            "digit-sum": lambda n: (sum(int(d) for d in n), int(n)),
        }[kind]  # fmt: skip
        assert all(rank(a) < rank(b) for a, b in pairs)


@given(st.text("abcdez", min_size=1, max_size=12), st.integers(1, 5))
def test_rules_of_strings(text, k):
    def after(name, taken=""):
        return strings.solve(strings.StringItem(text, ((name, taken),)))

    assert after("reverse") == "".join(reversed(text))
    assert sorted(after("sort")) == sorted(text) and list(after("sort")) == sorted(text)
    assert after("double")[::2] == after("double")[1::2] == text
    assert after("mirror") == after("mirror")[::-1] and after("mirror").startswith(text)
    assert [ord(b) - ord(a) for a, b in zip(text, after("shift", str(k)), strict=True) if b > a] == [
        k for c in text if ord(c) + k <= ord("z")
    ]
    assert set(after("unique")) == set(text) and len(after("unique")) == len(set(text))
    assert after("swap")[1::2] == text[::2][: len(text) // 2]
    assert after("every", "2") == "".join(c for i, c in enumerate(text, 1) if i % 2 == 0)
    assert after("rotate", str(k)) == (text if k >= len(text) else text[k:] + text[:k])


def test_strings_change_at_each_step():
    for problem in Strings(level=4).train[:30]:
        assert problem.answer and f'text "{problem.answer}"' not in problem.question


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_sudokus_have_one_solution(level):
    task = Sudoku(level=level)
    for problem in task.train[:6]:
        cells = [0 if sign == "." else int(sign) for sign in problem.answer]
        result = list(itertools.islice(sudoku.solutions(cells), 2))
        assert len(result) == 1 and sum(map(bool, cells)) >= task.clues
        side = task.side
        assert all(sorted(result[0][r * side : (r + 1) * side]) == list(range(1, side + 1)) for r in range(side))
        assert len({problem.answer, *(p.answer for p in task.train[10:13])}) > 1


def test_sudoku_solutions_equal_brute_force():
    rows = list(itertools.permutations((1, 2, 3, 4)))
    grids = [
        sum(four, ())
        for four in itertools.product(rows, repeat=4)
        if all(len(set(column)) == 4 for column in zip(*four, strict=True))
        and all(len({*four[r][c : c + 2], *four[r + 1][c : c + 2]}) == 4 for r in (0, 2) for c in (0, 2))
    ]
    assert len(grids) == 288  # as is known
    assert set(sudoku.solutions([0] * 16)) == set(grids)
    for problem in Sudoku(level=2).train[:40]:
        fits = [g for g in grids if all(s in (".", str(n)) for s, n in zip(problem.answer, g, strict=True))]
        assert len(fits) == 1


def test_sudokus_that_contradict_themselves_have_no_solution():
    assert not list(sudoku.solutions([1, 1] + [0] * 14))


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=8), st.integers(0, 80))
def test_knapsack(things, capacity):
    values, weights = zip(*things, strict=True)
    chosen = knapsack.solve(values, weights, capacity)
    assert sum(weights[i] for i in chosen) <= capacity
    best = max(
        sum(values[i] for i in some)
        for n in range(len(things) + 1)
        for some in itertools.combinations(range(len(things)), n)
        if sum(weights[i] for i in some) <= capacity
    )
    assert sum(values[i] for i in chosen) == best


clause = st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True).flatmap(
    lambda vs: st.tuples(*(st.sampled_from([v, -v]) for v in vs))
)


@given(st.lists(clause, min_size=1, max_size=20))
@settings(max_examples=200)
def test_satisfiability(clauses):
    result = satisfiability.solve(clauses)
    every = any(
        all(any((n > 0) == values[abs(n) - 1] for n in c) for c in clauses)
        for values in itertools.product((True, False), repeat=5)
    )
    assert (result is not None) == every
    if result is not None:
        assert all(set(c) & set(result) for c in clauses) and not {-n for n in result} & set(result)


def test_some_formulas_can_be_satisfied_and_some_cannot():
    text = [p.answer["satisfiable"] for p in SatisfiabilityTask(level=3).train[:80]]
    assert 30 < sum(text) < 72


def test_tictactoe_gold_equals_full_search():
    def play(board, mark):  # the whole tree, without a table
        other = "O" if mark == "X" else "X"
        if any(all(board[i] == other for i in line) for line in tictactoe.LINES):
            return -1
        free = [i for i in range(9) if board[i] == "."]
        return max((-play([*board[:i], mark, *board[i + 1 :]], other) for i in free), default=0)

    for problem in TicTacToe(min_empty=2, max_empty=6).train[:10]:
        board, mark = list(problem.answer["board"]), problem.answer["turn"]
        other = "O" if mark == "X" else "X"
        values = {i: -play([*board[:i], mark, *board[i + 1 :]], other) for i, sign in enumerate(board) if sign == "."}
        best = [i for i, value in values.items() if value == max(values.values())]
        assert tictactoe.best_moves("".join(board)) == best and len(best) < len(values)


def test_rotated_and_mirrored_boards_share_a_key():
    task = TicTacToe()
    boards = {"X.O......", "O.X......", "..O.....X", "X.....O..", "O.....X..", "......O.X"}
    assert len({task.key(board) for board in boards}) == 1
    assert task.key("XO.......") != task.key("X...O....")


def test_knights_and_knaves_solution_follows_from_the_text():
    """Read each sentence again, and try every assignment."""
    for problem in KnightsAndKnaves(people=5).train[:25]:
        names = re.findall(r"^(\w+): ", problem.question, re.MULTILINE)
        matches = re.findall(r'^\w+: "(.*)"$', problem.question, re.MULTILINE)
        fits = [
            kinds
            for kinds in itertools.product(("knight", "knave"), repeat=5)
            if all(
                (kinds[i] == "knight") == true(s, dict(zip(names, kinds, strict=True))) for i, s in enumerate(matches)
            )
        ]
        assert fits == [tuple(problem.answer)], problem.question


def true(text, kinds):
    named = [kinds[name] for name in kinds if name in text]
    knights = sum(kind == "knight" for kind in kinds.values())
    order = [kinds[name] for name in re.findall(r"[A-Z][a-z]+", text) if name in kinds]
    if result := re.fullmatch(r"(\w+) is a (knight|knave)\.", text):
        return kinds[result[1]] == result[2]
    if "both knights or both" in text:
        return len(set(named)) == 1
    if text.startswith("One of"):
        return len(set(named)) == 2
    if "are both" in text:
        return set(named) == {"knight" if "knights" in text else "knave"}
    if text.startswith("If"):
        return not (order[0] == "knight" and order[1] == "knight")
    if text.endswith("or both."):
        return order[0] == "knave" or order[1] == "knight"
    count = int(NUMBER.search(text)[0])
    return knights == count if text.startswith("Exactly") else len(kinds) - knights >= count


@pytest.mark.parametrize("level", [1, 2, 3])
def test_zebra_solutions_equal_brute_force(level):
    task = Zebra(level=level)
    size, attributes = task.houses, task.attributes
    for seed in range(2):
        item = task.draw(random.Random(seed))
        clues = zebra.select_clues(item)
        orders = list(itertools.permutations(range(size)))
        fits = [grid for grid in itertools.product(orders, repeat=attributes) if all(holds(c, grid) for c in clues)]
        assert fits == [item.houses]
        for left_out in range(len(clues)):  # none of them is idle
            assert not zebra.has_unique_grid(clues[:left_out] + clues[left_out + 1 :], size, attributes)


def holds(clue, grid):
    a = grid[clue.first[0]][clue.first[1]]
    if clue.kind in ("at", "not-at"):
        return (a == clue.house) == (clue.kind == "at")
    b = grid[clue.second[0]][clue.second[1]]
    return {"same": a == b, "other": a != b, "next": abs(a - b) == 1, "just-left": b - a == 1, "left": a < b}[clue.kind]


def test_mazes():
    for problem in Maze(side=4, extra_openings=3, shortest=True).train[:8]:
        lines = problem.answer
        open_ = {(r, c) for r, line in enumerate(lines) for c, s in enumerate(line) if s != "#"}
        (start,) = [(r, c) for r, c in open_ if lines[r][c] == "S"]
        (goal,) = [(r, c) for r, c in open_ if lines[r][c] == "G"]
        far = {start: 0}
        for _ in open_:  # Bellman and Ford: relax until nothing can change
            for r, c in open_:
                near = [far[n] for n in ((r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)) if n in far]
                if near:
                    far[r, c] = min(far.get((r, c), 999), min(near) + 1)
        assert set(far) == open_  # every room can be reached
        task = Maze(side=4, extra_openings=3, shortest=True)
        assert len(task.solution(problem)) == far[goal]


def test_twenty_four_has_as_many_puzzles_as_is_known():
    """1,362 of the 1,820 sets of four numbers from 1 to 13; counted for 1 to 6 here, in seconds."""
    some = [c for c in itertools.combinations_with_replacement(range(1, 7), 4)]

    def reach(values):
        if len(values) == 1:
            return abs(values[0] - 24) < 1e-9
        for i, j in itertools.permutations(range(len(values)), 2):
            a, b = values[i], values[j]
            rest = [v for k, v in enumerate(values) if k not in (i, j)]
            if any(reach([*rest, v]) for v in (a + b, a - b, a * b, *([a / b] if abs(b) > 1e-9 else []))):
                return True
        return False

    task = TwentyFour(largest=6)
    drawn = {tuple(sorted(task.draw(random.Random(seed)))) for seed in range(300)}
    assert drawn <= set(some) and all(reach(list(c)) for c in random.Random(0).sample(sorted(drawn), 8))
