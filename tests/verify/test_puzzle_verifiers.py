"""Games and puzzles: gold answers pass, wrong and malformed ones do not, a faulty problem is undecided."""

import asyncio
import itertools
import json
import os
import random
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bad_answers
from ponder.errors import UsageError
from ponder.protocols import Scorer
from ponder.runs.job_json import decode, encode
from ponder.types import Problem, Step, Trace, ids, user_messages
from ponder.verify import (
    CountdownVerifier,
    GameOf24Verifier,
    KnapsackVerifier,
    MazeVerifier,
    MultipleChoice,
    SatVerifier,
    SudokuVerifier,
    TicTacToeVerifier,
    ZebraVerifier,
)
from ponder.verify.puzzles.knapsack import optimal_value
from ponder.verify.puzzles.maze import Cell, shortest_path_length
from ponder.verify.puzzles.sat import read_literals
from ponder.verify.puzzles.sudoku import read_grid
from ponder.verify.puzzles.tictactoe import minimax_outcome


def tag(content):
    return f"<think>I wonder.</think><answer>{content}</answer>"


SOLVED = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
CLUES = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
DRAWN = "\n------+-------+------\n".join(
    "\n".join(" | ".join(" ".join(SOLVED[r * 9 + b : r * 9 + b + 3]) for b in (0, 3, 6)) for r in range(band, band + 3))
    for band in (0, 3, 6)
)
SWAPPED = SOLVED[9:18] + SOLVED[:9] + SOLVED[18:]  # still a valid grid, of other clues
FORMULA = {"clauses": [[1, -2], [2, 3], [-1, -3]]}
SACK = {"values": [60, 100, 120], "weights": [10, 20, 30], "capacity": 50}
HOUSES = {"1": {"name": "Eric", "pet": "fish"}, "2": {"name": "Ann", "pet": "sea horse"}}
TABLE = "| House | Name | Pet |\n|---|---|---|\n| 1 | eric | Fish |\n| 2 | Ann | sea  horse |"
WALLS = "#######\n#S..#.#\n#.#...#\n#...#G#\n#######"
WIN = "XX.OO...."  # X to move wins at 3

GOOD = [
    (CountdownVerifier(), {"numbers": [3, 4, 2], "target": 14}, ["(3 + 4) * 2", "2*(4+3) = 14"]),
    (GameOf24Verifier(), [4, 7, 8, 8], ["(7 - 8/8) * 4"]),
    (GameOf24Verifier(), "3 3 8 8", ["8 / (3 - 8/3)", "8/(3-8/3) = 24"]),
    (SudokuVerifier(), CLUES, [SOLVED, DRAWN,
     "[" + ",".join(f"[{','.join(SOLVED[i:i+9])}]" for i in range(0, 81, 9)) + "]"]),
    (SudokuVerifier(4), [[1, 0, 0, 0], [0] * 4, [0] * 4, [0] * 4], ["1234 3412 2143 4321",
     "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1"]),
    (SatVerifier(), FORMULA, ["1 2 -3", "x1 = true, x2 = true, x3 = false", '{"x1": true, "x2": true, "x3": false}',
                                 "x1 and x2 and not x3", "-1 -2 3"]),
    (SatVerifier(), {"clauses": [[1, 2], [-2, 1]]}, ["1", "x1 = true"]),
    (SatVerifier(), {"clauses": [[1], [-1]], "satisfiable": False}, ["unsatisfiable", "UNSAT"]),
    (KnapsackVerifier(), SACK, ["2, 3", "[3, 2]", "2 3"]),
    (KnapsackVerifier(), {**SACK, "items": ["lamp", "red book", "tent"]}, ["red book, tent", '["Tent", "Red Book"]']),
    (KnapsackVerifier(), {"values": [5], "weights": [9], "capacity": 1}, ["[]", "none"]),
    (ZebraVerifier(), HOUSES, [json.dumps(HOUSES), TABLE, '```json\n{"House 1": {"Name": "ERIC", "Pet": "fish"},'
                       ' "House 2": {"Name": "Ann", "Pet": "Sea Horse"}}\n```']),
    (MazeVerifier(), WALLS, ["RRDRRD", "right, right, down, right, right, down", "→→↓→→↓", "down up R R D R R D",
                     "east east south east east south", "R -> R -> D -> R -> R -> D",
                     "right → right → down → right → right → down", "1. R\n2. R\n3. D\n4. R\n5. R\n6. D"]),
    (MazeVerifier(shortest=True), WALLS.splitlines(), ["RRDRRD"]),
    (TicTacToeVerifier(), WIN, ["3", "1, 3", "(1,3)", "row 1, column 3", "cell 3", "3."]),
    (TicTacToeVerifier(optimal=False), {"board": WIN, "turn": "X"}, ["9"]),
    (TicTacToeVerifier(), {"board": [["X", "O", "X"], [".", "O", "."], [".", ".", "."]], "turn": "X"}, ["8"]),
    (MultipleChoice(), "B", ["B", "(B)", "b.", "B)", "Option B"]),
    (MultipleChoice(), {"choice": "B", "options": {"A": "a whale", "B": "a fish"}}, ["B", "A fish.", "(B) a fish"]),
]  # fmt: skip

BAD = [
    (CountdownVerifier(), {"numbers": [3, 4, 2], "target": 14}, ["14", "7 * 2", "(3 + 4) * 2 or 3 * 4 + 2"]),
    (GameOf24Verifier(), [4, 7, 8, 8], ["4 * 7 - 8 / 2", "24", "(7 - 8/8) * 4 = 25", "7 * 8 - 8 * 3", "(7-8/8)*4 + 0"]),
    (SudokuVerifier(), CLUES, [CLUES, SWAPPED, SOLVED[:-1], SOLVED + "1", SOLVED[:-1] + "1", SOLVED.replace("5", "٥")]),
    (SudokuVerifier(4), [[0] * 4] * 4, ["1234 1234 1234 1234", "1234 2341 3412 4123",
                                "1234 3412 2143 4325", "0000 0000 0000 0000"]),
    (SatVerifier(), FORMULA, ["1 -2 -3", "1 2 3", "1 -1 2 -3", "x1 = true, x1 = false", "unsat", "1 2 -3 4",
                                 "1 2 maybe -3", "x1 = true or false", "12-3", "1 = true", ""]),
    (SatVerifier(), {"clauses": [[1], [-1]], "satisfiable": False}, ["1", "-1", "satisfiable"]),
    (KnapsackVerifier(), SACK, ["1, 2", "1, 2, 3", "2, 2", "0, 2", "4", "2 and 3",
     "2, 3, 3", "none", "220", "()", "[,]"]),
    (ZebraVerifier(), HOUSES, [json.dumps({"1": {"name": "Eric"}}), TABLE.replace("eric", "Ann"),
                       TABLE + "\n| 3 | Bo | ox |",
                       '{"1": {"name": "Eric", "name": "Ann"}}', '{"1": {"name": ["Eric", "Ann"]}}', "[]",
                       TABLE + "\n| 1 | eric | Fish |"]),
    (MazeVerifier(), WALLS, ["RRR", "RRDRR", "UU", "RRDRRDD", "north", "to the goal", "RRDRRDx", "DDRRRR"]),
    (MazeVerifier(shortest=True), WALLS, ["DURRDRRD", "DDRRURRD" + "UD"]),
    (TicTacToeVerifier(), WIN, ["9", "1", "0", "10", "3 or 9", "(0, 2)", "1, 4", "X", "three", "３"]),
    (TicTacToeVerifier(optimal=False), WIN, ["1", "4"]),
    (MultipleChoice(), "B", ["A", "A or B", "A, B", "BB", "not B", "B and C", "В", "K", "", "both", "B C"]),
    (MultipleChoice(), {"choice": "B", "options": {"A": "a whale", "B": "a fish"}},
     ["C", "a whale", "B. a whale", "a bird"]),
]  # fmt: skip


@pytest.mark.parametrize(("scorer", "answer", "written"), GOOD, ids=lambda x: type(x).__name__)
def test_puzzle_verifiers_accept_gold(scorer, answer, written):
    for content in written:
        for text in (tag(content), f"So it is \\boxed{{{content}}}.", f"<answer>\n{content}\n</answer>\n"):
            assert scorer.grade(text, answer).value == 1.0, (text, scorer.grade(text, answer))


@pytest.mark.parametrize(("scorer", "answer", "written"), BAD, ids=lambda x: type(x).__name__)
def test_puzzle_verifiers_reject_wrong_and_malformed_answers(scorer, answer, written):
    for content in written:
        score = scorer.grade(tag(content), answer)
        assert score.value == 0.0 and score.reason, (content, score)


@pytest.mark.parametrize(("scorer", "answer", "written"), GOOD, ids=lambda x: type(x).__name__)
def test_a_gold_answer_must_be_the_only_and_last_one(scorer, answer, written):
    good = f"<answer>{written[0]}</answer>"
    hacks = (good + good, f"<think>{good}</think>", f"<think>{good}", written[0] * 2, f"<answer>{written[0]}",
             good + " Wait, I take that back, it is not that.", f"{good} \\boxed{{1}}", good + "</think>")  # fmt: skip
    for text in hacks:
        assert scorer.grade(text, answer).value == 0.0, (text, scorer.grade(text, answer))


@pytest.mark.parametrize(("scorer", "answer", "written"), GOOD, ids=lambda x: type(x).__name__)
def test_puzzle_verifiers_are_fast_on_hostile_answers(scorer, answer, written):
    if "none" in written:
        pytest.skip("here, nothing is the right answer")
    bad_answers.refused(scorer.grade, answer)


FAULTY = [
    (CountdownVerifier(), [None, {}, {"numbers": [1], "target": "24"}, {"numbers": "12", "target": 3},
                   {"numbers": [], "target": 3}]),
    (GameOf24Verifier(), [None, 24, [], "", "1 2 x", [1.5, 2], [True, 2]]),
    (SudokuVerifier(), [None, "", CLUES[:-1], "55" + CLUES[2:], [[1] * 9] * 8, [["a"] * 9] * 9, 5,
                [[10] + [0] * 8] + [[0] * 9] * 8]),
    (SatVerifier(), [None, {}, {"clauses": []}, {"clauses": [[0]]}, {"clauses": [["x"]]}, {"clauses": [1]}, [[1]]]),
    (KnapsackVerifier(), [None, {}, {**SACK, "values": [1]}, {**SACK, "capacity": -1}, {**SACK, "weights": [1, "a", 2]},
                  {**SACK, "capacity": "1e999999999"}, {**SACK, "items": ["a", "a", "b"]},
                  {**SACK, "items": ["a, b", "c", "d"]}, {**SACK, "values": 7}]),
    (ZebraVerifier(), [None, {}, [], {"1": "Eric"}, {"1": {}}, {"1": {"name": ["a"]}}]),
    (MazeVerifier(), [None, "", 7, "###", "S.#", "#G#", "S#G", "SSG", "SGE", [1, 2], ["S" + "." * 50_000 + "G"]]),
    (TicTacToeVerifier(), [None, "", "XXXOO....", "XOXOXOOXO", "XXXX.....", "XX.......",
                   {"board": WIN, "turn": "O" * 3},
                   {"board": "X........", "turn": "X"}, 123456789, [[1, 2, 3]], {"board": None}, [None] * 9]),
    (MultipleChoice(), [None, "", "AB", 2, {"choice": "C", "options": {"A": "x"}}, {"options": {"A": "x"}},
                {"choice": "A", "options": {"A": 1}}]),
]  # fmt: skip


@pytest.mark.parametrize(("scorer", "answers"), FAULTY, ids=lambda x: type(x).__name__)
def test_bad_data_is_undecided(scorer, answers):
    for answer in answers:
        score = scorer.grade(tag("1"), answer)
        assert score.value is None and score.reason.startswith("bad data: "), (answer, score)


def test_puzzle_verifiers_are_scorers_and_serialize():
    for scorer, answer, written in GOOD:
        steps = [Step(None, "prompt", ids([])), Step(0, tag(written[0]), ids([])), Step(0, tag("nonsense"), ids([]))]
        trace = Trace(Problem("p", user_messages("?"), answer), steps)
        assert isinstance(scorer, Scorer) and decode(encode(scorer)) == scorer
        assert [s.value for s in asyncio.run(scorer(trace, [2, 1]))] == [0.0, 1.0]


# --- against independent references --------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([4, 9, 16]))
def test_sudoku_by_definition(seed, size):
    rng, side = random.Random(seed), int(size**0.5)
    grid = [[(r * side + r // side + c) % size + 1 for c in range(size)] for r in range(size)]
    rows = [band * side + r for band in rng.sample(range(side), side) for r in rng.sample(range(side), side)]
    signs = rng.sample(range(1, size + 1), size)
    grid = [[signs[n - 1] for n in grid[r]] for r in rows]
    clues = [[n if rng.random() < 0.4 else 0 for n in row] for row in grid]
    written = "\n".join(" ".join(map(str, row)) for row in grid)
    assert read_grid(written, size) == grid
    assert SudokuVerifier(size).grade(tag(written), clues).value == 1.0
    r, c = rng.randrange(size), rng.randrange(size)
    grid[r][c] = grid[r][c] % size + 1  # one wrong cell breaks its row
    written = "\n".join(" ".join(map(str, row)) for row in grid)
    assert SudokuVerifier(size).grade(tag(written), clues).value == 0.0


CLAUSES = st.lists(st.lists(st.integers(-4, 4).filter(bool), min_size=1, max_size=3), min_size=1, max_size=8)


@given(CLAUSES, st.tuples(*[st.booleans()] * 4))
def test_sat_verifier_equals_a_truth_table(clauses, values):
    used = sorted({abs(n) for clause in clauses for n in clause})
    literals = [n if values[n - 1] else -n for n in used]
    truth = all(any((n > 0) == values[abs(n) - 1] for n in clause) for clause in clauses)
    for written in (" ".join(map(str, literals)), ", ".join(f"x{abs(n)} = {n > 0}" for n in literals)):
        assert SatVerifier().grade(tag(written), {"clauses": clauses}).value == float(truth)


@given(st.sets(st.integers(1, 30), min_size=1), st.randoms(use_true_random=False))
def test_read_literals_round_trip(variables, rng):
    literals = {n if rng.random() < 0.5 else -n for n in variables}
    assert read_literals(", ".join(map(str, literals))) == literals
    assert read_literals(" ∧ ".join(f"x{n}" if n > 0 else f"¬x{-n}" for n in literals)) == literals


AMOUNTS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=8)


@settings(deadline=None)
@given(AMOUNTS, st.integers(0, 50), st.data())
def test_knapsack_by_enumeration(items, capacity, data):
    values, weights = [v for v, _ in items], [w for _, w in items]
    subsets = [s for n in range(len(items) + 1) for s in itertools.combinations(range(len(items)), n)]
    fitting = [s for s in subsets if sum(weights[i] for i in s) <= capacity]
    best = max(sum(values[i] for i in s) for s in fitting)
    assert optimal_value(tuple(map(Fraction, values)), tuple(map(Fraction, weights)), Fraction(capacity)) == best
    chosen = data.draw(st.sampled_from(subsets))
    answer = {"values": values, "weights": weights, "capacity": capacity}
    worth = sum(values[i] for i in chosen) if chosen in fitting else None
    written = ", ".join(str(i + 1) for i in chosen) or "none"
    assert KnapsackVerifier().grade(tag(written), answer).value == float(worth == best)
    share = KnapsackVerifier(partial_credit=True).grade(tag(written), answer).value
    assert share == pytest.approx(0.0 if worth is None else worth / best if best else 1.0)


def test_knapsack_with_decimals_an_optimum_and_too_many_items():
    sack = {"values": [0.1, 0.2], "weights": [0.1, 0.2], "capacity": 0.3}  # 0.1 + 0.2 > 0.3 in floats
    assert KnapsackVerifier().grade(tag("1, 2"), sack).value == 1.0
    many = {"values": [2**i for i in range(60)], "weights": [2**i for i in range(60)], "capacity": 2**59}
    assert KnapsackVerifier().grade(tag("1"), many).reason.startswith("bad data: 60 items are too many")
    assert KnapsackVerifier().grade(tag("1"), {**many, "optimum": 2**59}).value == 0.0
    assert "fits" in KnapsackVerifier().grade(tag("2, 3"), {**SACK, "optimum": 100}).reason
    assert KnapsackVerifier().grade(tag("2, 3"), {**SACK, "optimum": 100}).value is None


def test_zebra_cell_by_cell():
    assert ZebraVerifier(partial_credit=True).grade(tag(TABLE.replace("eric", "Bo")), HOUSES).value == 0.75
    assert ZebraVerifier(partial_credit=True).grade(tag(json.dumps({"1": {"pet": "fish"}})), HOUSES).value == 0.25
    assert (
        ZebraVerifier(partial_credit=True)
        .grade(tag(json.dumps({"1": {"pet": "fish"}, "3": {"pet": "ox"}})), HOUSES)
        .value
        == 0.0
    )


@settings(deadline=None)
@given(
    st.lists(st.text("#....", min_size=5, max_size=5), min_size=5, max_size=5),
    st.text("UDDLRR", min_size=1, max_size=12),
)
def test_maze_verifier_equals_another_walk(lines, moves):
    lines = ["S" + lines[0][1:], *lines[1:4], lines[4][:4] + "G"]
    near = shortest_path_length(tuple(lines), Cell(0, 0), Cell(4, 4))
    # Bellman-Ford over cells, with complex numbers for places
    cost = {complex(0, 0): 0}
    free = {complex(r, c) for r in range(5) for c in range(5) if lines[r][c] != "#"}
    for _ in range(25):
        for place in free:
            around = [cost[place + d] + 1 for d in (1, -1, 1j, -1j) if place + d in cost]
            if around:
                cost[place] = min([cost.get(place, 99), *around])
    assert near == cost.get(complex(4, 4))
    if near is None:
        assert MazeVerifier().grade(tag("R"), lines).reason == "bad data: no path leads from S to G"
        return
    at, alive = complex(0, 0), True
    for move in moves:
        at += {"U": -1, "D": 1, "L": -1j, "R": 1j}[move]
        alive = alive and at in free
    assert MazeVerifier().grade(tag(moves), lines).value == float(alive and at == complex(4, 4))


def test_minimax_outcome_at_known_positions():
    assert minimax_outcome("." * 9, "X") == 0  # a draw with best play
    for corner in "1379":  # against a corner, only the centre holds
        board = "".join("X" if str(i) == corner else "." for i in range(1, 10))
        held = [c for c in "123456789" if TicTacToeVerifier().grade(tag(c), board).value == 1.0]
        assert held == ["5"]
    board = "X...O...X"  # the famous trap: O must play an edge
    assert [c for c in "2346 78".replace(" ", "") if TicTacToeVerifier().grade(tag(c), board).value == 1.0] == list(
        "2468"
    )
    assert all(TicTacToeVerifier().grade(tag(c), "." * 9).value == 1.0 for c in "123456789")


def test_minimax_outcome_equals_an_uncached_search():
    def value(cells, player):
        other = "XO"[player == "X"]
        if any(all(cells[i] == other for i in t) for t in ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7),
                                                         (2, 5, 8), (0, 4, 8), (2, 4, 6))):  # fmt: skip
            return -1
        free = [i for i in range(9) if cells[i] == "."]
        return max((-value([*cells[:i], player, *cells[i + 1 :]], other) for i in free), default=0)

    rng = random.Random(1)
    for _ in range(40):
        cells, player = ["."] * 9, "X"
        for _ in range(rng.randint(3, 6)):
            cells[rng.choice([i for i in range(9) if cells[i] == "."])] = player
            player = "XO"[player == "X"]
        assert minimax_outcome("".join(cells), player) == value(cells, player)


def test_multiple_choice_extracts_the_letter():
    assert MultipleChoice().extract_answer("\\boxed{(b)}") == MultipleChoice().extract_answer("The answer is B.") == "B"
    assert MultipleChoice().extract_answer("B or C") is None
    assert MultipleChoice(forms=("bare",)).extract_answer("<think>A?</think> (C)") == "C"
    assert MultipleChoice(forms=("bare",)).grade("I think B", "B").value == 0.0
    swapped = {"choice": "A", "options": {"A": "B", "B": "A"}}  # a letter is a letter first
    assert (
        MultipleChoice().grade(tag("A"), swapped).value == 1.0
        and MultipleChoice().grade(tag("B"), swapped).value == 0.0
    )


@pytest.mark.parametrize("size", [0, 3, 8, 10, 36])
def test_sudoku_refuses_sizes_without_boxes(size):
    with pytest.raises(UsageError, match="size"):
        SudokuVerifier(size)


def test_the_published_puzzles_of_24_have_exact_solutions():
    folder = os.environ.get("PONDER_DATA")
    path = Path(folder or "") / "game24" / "24.csv"
    if not folder or not path.exists():
        pytest.skip("PONDER_DATA names no folder with game24/24.csv")
    from ponder.tasks.generated.countdown import solve

    rows = [line.split(",")[1] for line in path.read_text().splitlines()[1:]]
    for puzzle in rows[::40]:
        expression = solve([int(n) for n in puzzle.split()], 24)
        assert expression and GameOf24Verifier().grade(tag(expression), puzzle).value == 1.0
        assert GameOf24Verifier().grade(tag(expression + " + 1"), puzzle).value == 0.0
