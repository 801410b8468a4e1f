"""The SQL environment: answers against plain Python, and a guard that nothing gets past."""

from __future__ import annotations

import json
import random
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.tasks import Sql
from ponder.tasks.environments.scripted_play import action_of, gold_play, play
from ponder.tasks.environments.sql import QUERY_TOOL, is_value
from ponder.tasks.environments.sql_guard import MAX_RESULT_CHARS, MAX_ROWS, Table, run_query
from ponder.tasks.environments.sql_questions import QUESTIONS, make_tables
from ponder.tasks.environments.tool_actions import call_text

TABLES = make_tables(0, 8, 20)

EVIL = [
    "ATTACH DATABASE ':memory:' AS other", "ATTACH DATABASE '/tmp/stolen.db' AS other", "DETACH DATABASE main",
    "PRAGMA query_only = OFF", "PRAGMA database_list", "PRAGMA writable_schema = ON", "PRAGMA table_info(people)",
    "SELECT * FROM pragma_database_list", "SELECT * FROM pragma_table_info('people')",
    "SELECT load_extension('/lib/evil.so')", "SELECT readfile('/etc/passwd')", "SELECT writefile('/tmp/x', 'y')",
    "SELECT fts3_tokenizer('simple')", "SELECT edit('x')", "SELECT random()", "SELECT randomblob(10)",
    "SELECT date('now')", "SELECT current_timestamp", "SELECT sqlite_version()", "SELECT zeroblob(1000000000)",
    "SELECT printf('%1000000000d', 1)", "SELECT hex(zeroblob(1000000000))", "SELECT unixepoch()",
    "INSERT INTO people VALUES (99, 'Eve', 'Essen', 1)", "UPDATE people SET age = 0", "DELETE FROM people",
    "DROP TABLE people", "CREATE TABLE t (x)", "CREATE TEMP TABLE t (x)", "CREATE VIEW v AS SELECT 1",
    "CREATE VIRTUAL TABLE v USING fts5(x)", "ALTER TABLE people RENAME TO persons", "VACUUM INTO '/tmp/copy.db'",
    "REINDEX", "ANALYZE", "BEGIN", "COMMIT", "SAVEPOINT s", "SELECT 1; DROP TABLE people",
    "SELECT 1; ATTACH DATABASE ':memory:' AS other", "EXPLAIN SELECT 1; SELECT 1", "not sql", "", ";", "--", "/*",
    "SELECT", "SELECT '", "SELECT \x00", "SELECT '\ud800'", "SELECT * FROM nowhere", "SELECT ?", "SELECT :name",
    "SELECT * FROM sqlite_sequence", "SELECT * FROM sqlite_dbpage", "SELECT 9223372036854775807 + " * 60,
    "SELECT " + "(" * 500 + "1" + ")" * 500, "SELECT 1" + " UNION ALL SELECT 1" * 100, "SELECT " + "1," * 900 + "1",
    "SELECT '" + "x" * 100_000 + "'",
]  # fmt: skip

BOMBS = [
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c",
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT SUM(x) FROM c ORDER BY x",
    "WITH RECURSIVE c(x) AS (SELECT 'a' UNION ALL SELECT x || x FROM c) SELECT MAX(LENGTH(x)) FROM c",
    "SELECT COUNT(*) FROM orders a, orders b, orders c, orders d, orders e, orders f",
    "SELECT a.id FROM orders a, orders b, orders c, orders d, orders e ORDER BY a.id * b.id * c.id * d.id",
    "SELECT COUNT(*) FROM people WHERE 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab' LIKE '%a%a%a%a%a%a%a%a%a%a%a%a%a%a%a%c'",
    "SELECT GROUP_CONCAT(a.name) FROM people a, people b, people c, people d, people e, people f, people g",
    "SELECT REPLACE(REPLACE(REPLACE('aaaaaaaaaa', 'a', 'bbbbbbbbbb'), 'b', 'cccccccccc'), 'c', 'dddddddddddd')",
]


def query_turn(sql):
    return call_text("query", {"sql": sql})


@pytest.mark.parametrize("sql", EVIL, ids=range(len(EVIL)))
def test_guard_refuses_what_is_no_plain_select(sql):
    result = run_query(TABLES, sql)
    assert result.error or not result.rows
    assert run_query(TABLES, "SELECT COUNT(*) FROM people").rows == ((8,),)


@pytest.mark.parametrize("sql", BOMBS)
def test_guard_ends_a_query_that_would_not_end(sql):
    assert run_query(TABLES, sql).error or "LIKE" in sql


SQL_TEXT = """
SELECT FROM WHERE people orders products id name age city price ( ) , * = ; || + - / 'x' "y" 1 9e99 x'00' NULL UNION ALL
WITH RECURSIVE AS t VALUES JOIN ON GROUP BY ORDER LIMIT HAVING COUNT SUM MAX REPLACE GROUP_CONCAT PRAGMA DROP
TABLE INSERT INTO SET CREATE TEMP VIEW EXPLAIN OVER PARTITION CASE WHEN THEN END CAST IN EXISTS NOT LIKE GLOB
"""
SQL_WORDS = SQL_TEXT.split()


@given(st.lists(st.sampled_from(SQL_WORDS) | st.text(max_size=5), max_size=25).map(" ".join))
@settings(max_examples=300, deadline=None)
def test_run_query_never_raises(sql):
    result = run_query(TABLES, sql)
    assert len(result.rows) <= MAX_ROWS and len(result.text()) <= MAX_RESULT_CHARS + 20


@given(st.lists(st.sampled_from(SQL_WORDS), max_size=25).map(" ".join))
@settings(max_examples=300, deadline=None)
def test_run_query_never_raises_after_select(sql):
    result = run_query(TABLES, "SELECT " + sql)
    assert len(result.rows) <= MAX_ROWS and len(result.text()) <= MAX_RESULT_CHARS + 20


def test_like_bomb_counts_no_row():
    assert run_query(TABLES, BOMBS[5]).rows in ((), ((0,),))


def test_guard_reads_what_it_should():
    assert run_query(TABLES, "SELECT UPPER(name) FROM people ORDER BY id LIMIT 1").rows[0][0].isupper()
    tables = run_query(TABLES, "SELECT name FROM sqlite_master ORDER BY name").rows
    assert tables == (("orders",), ("people",), ("products",))
    common = "WITH c AS (SELECT person_id, COUNT(*) AS n FROM orders GROUP BY person_id) SELECT SUM(n) FROM c"
    assert run_query(TABLES, common).rows == ((20,),)
    counting = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 5) SELECT SUM(x) FROM c"
    assert run_query(TABLES, counting).rows == ((15,),)


def test_rows_and_text_are_bounded():
    result = run_query(TABLES, "SELECT a.id, b.id FROM orders a, orders b")
    assert len(result.rows) == MAX_ROWS and result.more and result.text().endswith("(more rows)")
    wide = run_query(TABLES, f"SELECT '{'x' * 1900}' FROM orders")
    assert not wide.error and len(wide.text()) <= MAX_RESULT_CHARS + 20
    assert run_query(TABLES, "SELECT name FROM people WHERE id < 0").text() == "name\n(no rows)"
    assert run_query(TABLES, "SELECT NULL AS x").text() == "x\nNULL"


def test_nothing_is_written_by_an_attached_file(tmp_path):
    target = tmp_path / "stolen.db"
    for sql in (f"ATTACH DATABASE '{target}' AS o", f"VACUUM INTO '{target}'"):
        assert run_query(TABLES, sql).error
    assert not target.exists()


def test_schema_is_what_sqlite_makes_of_it():
    database = sqlite3.connect(":memory:")
    for table in TABLES:
        database.execute(table.schema)
        columns = database.execute(f"PRAGMA table_info({table.name})").fetchall()
        assert [f"{name} {kind}" for _, name, kind, *_ in columns] == list(table.columns)
        assert all(len(row) == len(table.columns) for row in table.rows)


def expected_value(question, tables):
    """The answer by plain Python, from the words of the question."""
    people, products, orders = (
        [dict(zip([c.split()[0] for c in t.columns], r, strict=True)) for r in t.rows] for t in tables
    )
    person = {p["id"]: p for p in people}
    price = {p["id"]: p["price"] for p in products}
    product = {p["id"]: p["name"] for p in products}
    words = question.replace("?", " ?").replace(".", "").split()

    def spent(chosen):
        return sum(o["quantity"] * price[o["product_id"]] for o in orders if chosen(person[o["person_id"]]))

    if question.startswith("How old is"):
        return next(p["age"] for p in people if p["name"] == words[3])
    if question.startswith("In which city"):
        return next(p["city"] for p in people if p["name"] == words[4])
    if question.startswith("What is the price"):
        return next(p["price"] for p in products if p["name"] == words[6])
    if "people live in" in question:
        return sum(p["city"] == words[5] for p in people)
    if "older than" in question:
        return sum(p["age"] > int(words[6]) for p in people)
    if "the oldest person" in question:
        return max(p["age"] for p in people if p["city"] == words[-2])
    if question.startswith("How many orders did"):
        return sum(person[o["person_id"]]["name"] == words[4] for o in orders)
    if "pieces of the product" in question:
        return sum(o["quantity"] for o in orders if product[o["product_id"]] == words[6])
    if question.startswith("Who spent"):
        buyers = {person[o["person_id"]]["name"] for o in orders}
        return min(buyers, key=lambda name: (-spent(lambda p: p["name"] == name), name))
    if "made at least" in question:
        made = [sum(o["person_id"] == p["id"] for o in orders) for p in people]
        return sum(n >= int(words[6]) for n in made)
    if "the people who live in" in question:
        return spent(lambda p: p["city"] == words[8])
    assert question.startswith("How much did"), question
    return spent(lambda p: p["name"] == words[3])


@pytest.mark.parametrize("kind", QUESTIONS)
def test_gold_query_gives_the_answer_that_python_gives(kind):
    task, rng = Sql(kind=kind), random.Random(0)
    seen = set()
    for _ in range(60):
        item = task.draw(rng)
        tables = make_tables(item.database_seed, task.people, task.orders)
        ((value,),) = run_query(tables, item.query).rows
        assert value == expected_value(item.text, tables), item
        assert task.problem(item, "x").answer["value"] == value
        seen.add(item.text.split()[0] + item.text.split()[2])
    assert len(seen) >= 2


def test_gold_queries_and_then_answers():
    task = Sql(level=4)
    episode = gold_play(task, task.test[0])
    assert len(episode.actions) == 2 and episode.turns[0].tools == (QUERY_TOOL,)
    (message,) = episode.turns[1].messages
    assert message["role"] == "tool" and str(task.test[0].answer["value"]) in message["content"]
    assert str(task.test[0].answer["value"]) == episode.actions[1]


def test_first_message_without_rules_is_the_question_alone():
    plain, shown = (Sql(level=1, show_rules=rules).test[0] for rules in (False, True))
    assert plain.answer == shown.answer and plain.bare_question in shown.bare_question
    assert plain.bare_question.endswith("?") and "CREATE TABLE" not in plain.bare_question


def episode_of(*texts, **settings):
    task = Sql(level=1, **settings)
    left = iter(texts)
    return play(task, task.test[0], lambda _: next(left), max_turns=len(texts))


@pytest.mark.parametrize(
    ("text", "fault"),
    [("<tool_call>select", "no call can be read"), ("<tool_call>{}</tool_call>", "no call can be read"),
     ('<tool_call>{"name": "drop", "arguments": {}}</tool_call>', "no call can be read"),
     ('<tool_call>{"name": "query", "arguments": {"sql": 7}}</tool_call>', 'must be {"sql": "..."}'),
     ('<tool_call>{"name": "query", "arguments": {"q": "x"}}</tool_call>', 'must be {"sql": "..."}'),
     ('<tool_call>{"name": "query", "arguments": {"sql": "SELECT', "arguments are not JSON"),
     (query_turn("SELEC 1"), "syntax error"), (query_turn("DROP TABLE people"), "only SELECT is allowed")],
)  # fmt: skip
def test_malformed_call_is_answered_and_costs_the_turn(text, fault):
    episode = episode_of(text)
    (message,) = episode.turns[1].messages
    assert message["role"] == "tool" and fault in message["content"] and not episode.done


def test_turns_run_out_without_an_answer():
    episode = episode_of(
        *[query_turn("SELECT 1")] * 9,
    )
    assert len(episode.actions) == 5 and episode.done and episode.reward == 0.0


def test_several_calls_in_a_turn_have_several_results():
    episode = episode_of("\n".join(query_turn(f"SELECT {n}") for n in range(6)))
    contents = [message["content"] for message in episode.turns[1].messages]
    assert contents[:4] == ["0\n0", "1\n1", "2\n2", "3\n3"] and all("at most 4" in text for text in contents[4:])


def test_answer_is_not_read_from_a_turn_with_a_call():
    task = Sql(level=1)
    value = str(task.test[0].answer["value"])
    assert not episode_of(f"{value} {query_turn('SELECT 1')}").done


@pytest.mark.parametrize(
    ("text", "value", "right"),
    [("42", 42, True), ("42.", 42, True), ("42.0", 42, True), ("42%", 42, False), ("41 or 42", 42, False),
     ("", 42, False), ("about 42", 42, False), ("essen", "Essen", True), ("Essen.", "Essen", True),
     ("Essen or Delhi", "Essen", False), ("", "Essen", False), ("4e1", 40, True), ("nan", 0, False)],
)  # fmt: skip
def test_is_value_takes_one_value(text, value, right):
    assert is_value(text, value) is right


def test_tool_schema_is_that_of_chat_templates():
    function = json.loads(json.dumps(QUERY_TOOL))["function"]
    assert function["name"] == "query" and function["parameters"]["required"] == ["sql"]
    assert action_of(query_turn("SELECT 1"), [QUERY_TOOL]).tool_calls[0].name == "query"


def test_tables_are_a_function_of_their_seed():
    assert make_tables(3, 4, 6) == make_tables(3, 4, 6) != make_tables(4, 4, 6)
    assert isinstance(TABLES[0], Table)
