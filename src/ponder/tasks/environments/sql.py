"""Answer a question with SQL: the policy queries a small database, and then answers in plain text."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Literal

from ponder.protocols import Environment
from ponder.tasks.environments.answer_text import answer_text
from ponder.tasks.environments.environment_task import EnvironmentTask
from ponder.tasks.environments.sql_guard import Table, run_query
from ponder.tasks.environments.sql_questions import QUESTIONS, SqlQuestion, make_tables
from ponder.tasks.environments.tool_actions import (
    MAX_CALLS,
    call_text,
    is_unreadable_call,
    text_argument,
    tool_message,
    tool_schema,
    unreadable_call_message,
)
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.generated.word_lists import NAMES
from ponder.types import Action, FunctionCall, Message, Problem, Turn, user_messages
from ponder.verify.numeric.numbers import parse_plain_number

QUERY_TOOL = tool_schema(
    "query", "Run one SELECT statement of SQLite. Returns the rows, at most 20.", {"sql": "the statement"}
)
DATABASE_SEEDS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Sql(EnvironmentTask[SqlQuestion]):
    """Answer a question from a small database, which the tool `query(sql)` reads.

    The questions are of one `kind`, over so many `people` and `orders`. The reward is 1 for the right answer in plain
    text within `max_turns` turns.
    """

    LEVELS = (
        {"kind": "lookup", "people": 4, "orders": 6},
        {"kind": "aggregate", "people": 8, "orders": 12},
        {"kind": "join", "people": 8, "orders": 20},
        {"kind": "group", "people": 12, "orders": 30},
    )

    kind: Literal["lookup", "aggregate", "join", "group"] = "join"
    people: int = 8
    orders: int = 20
    max_turns: int = 5
    show_rules: bool = True  # and the tables, in the first message; a model that was trained on them needs none

    def check(self) -> None:
        require_at_least(2, people=self.people, max_turns=self.max_turns)
        require_at_most(len(NAMES), people=self.people)
        require_at_least(1, orders=self.orders)
        require_at_most(200, orders=self.orders)

    @property
    def name(self) -> str:
        return "sql"

    def draw(self, rng: random.Random) -> SqlQuestion:
        seed = rng.randrange(DATABASE_SEEDS)
        return SqlQuestion(seed, *rng.choice(QUESTIONS[self.kind])(rng, self._tables(seed)))

    def _tables(self, seed: int) -> tuple[Table, ...]:
        return make_tables(seed, self.people, self.orders)

    def key(self, item: SqlQuestion) -> str:
        return f"{item.database_seed} {item.query}"

    def problem(self, item: SqlQuestion, id: str) -> Problem:
        tables = self._tables(item.database_seed)
        schema = "\n".join(f"{table.schema};" for table in tables)
        rules = (
            f"Answer this question from a database that you can query: {item.text}\n{schema}\nWhen you know the answer,"
            " write it and nothing else."
        )
        text = rules if self.show_rules else item.text
        (row,) = run_query(tables, item.query).rows
        answer = {"database_seed": item.database_seed, "query": item.query, "value": row[0]}
        return Problem(id, user_messages(text, self.system), answer, {"kind": self.kind})

    def environment(self) -> Environment:
        return SqlEpisode(self.people, self.orders, self.max_turns)


@dataclass
class SqlEpisode:
    """One question. The problem's answer has the database's seed, the gold query and its value."""

    people: int
    orders: int
    max_turns: int
    tables: tuple[Table, ...] = ()
    query: str = ""
    value: Any = None
    turns: int = 0
    has_queried: bool = False

    def reset(self, problem: Problem, seed: int) -> Turn:
        self.tables = make_tables(problem.answer["database_seed"], self.people, self.orders)
        self.query, self.value = problem.answer["query"], problem.answer["value"]
        self.turns, self.has_queried = 0, False
        return Turn(tools=(QUERY_TOOL,))

    def act(self, action: Action) -> Turn:
        self.turns += 1
        if is_unreadable_call(action):
            return self._reply(unreadable_call_message(["query"]))
        if not action.tool_calls:
            right = is_value(answer_text(action), self.value)
            return Turn(reward=float(right), done=True, reason="right" if right else "wrong")
        self.has_queried = True
        return self._reply(*(self._run(at, call) for at, call in enumerate(action.tool_calls)))

    def _run(self, at: int, call: FunctionCall) -> Message:
        if at >= MAX_CALLS:
            return tool_message(f"error: at most {MAX_CALLS} calls in a turn; this one was not run")
        sql, fault = text_argument(call, "sql")
        return tool_message(fault if sql is None else run_query(self.tables, sql).text())

    def _reply(self, *messages: Message) -> Turn:
        if self.turns >= self.max_turns:
            return Turn(reward=0.0, done=True, reason=f"no answer in {self.turns} turns")
        return Turn(messages)

    def gold(self) -> str:
        """The gold query, and then its value."""
        return str(self.value) if self.has_queried else call_text("query", {"sql": self.query})

    def random_action(self, rng: random.Random) -> str:
        """A value out of the database."""
        return str(rng.choice(rng.choice(rng.choice(self.tables).rows)))

    def copy(self) -> SqlEpisode:
        return replace(self)

    def close(self) -> None:
        pass


def is_value(text: str, value: Any) -> bool:
    """Whether a text is this value: a number by its worth, a text without regard to case and a full stop."""
    if isinstance(value, str):
        return text.strip(" .\"'").casefold() == value.casefold()
    number = parse_plain_number(text.removesuffix("."))
    return number.value is not None and not number.percent and number.value == value
