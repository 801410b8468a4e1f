"""Questions over a small shop's database, each with the query that answers it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ponder.tasks.environments.sql_guard import Table
from ponder.tasks.generated.word_lists import NAMES

CITIES = ("Accra", "Bergen", "Cusco", "Delhi", "Essen")
PRODUCTS = ("lamp", "chair", "kettle", "rope", "basket", "mirror")


class SqlQuestion(NamedTuple):
    database_seed: int
    text: str
    query: str  # whose one value is the answer


def make_tables(seed: int, people: int, orders: int) -> tuple[Table, ...]:
    """A database as a function of its seed and size."""
    rng = random.Random(f"shop {seed}")
    names = rng.sample(NAMES, people)
    person_rows = [(i + 1, name, rng.choice(CITIES), rng.randint(18, 80)) for i, name in enumerate(names)]
    product_rows = [(i + 1, name, rng.randint(2, 60)) for i, name in enumerate(PRODUCTS)]
    order_rows = [
        (i + 1, rng.randint(1, people), rng.randint(1, len(PRODUCTS)), rng.randint(1, 9)) for i in range(orders)
    ]
    return (
        Table("people", ("id INTEGER", "name TEXT", "city TEXT", "age INTEGER"), person_rows),
        Table("products", ("id INTEGER", "name TEXT", "price INTEGER"), product_rows),
        Table("orders", ("id INTEGER", "person_id INTEGER", "product_id INTEGER", "quantity INTEGER"), order_rows),
    )


WriteQuestion = Callable[[random.Random, tuple[Table, ...]], tuple[str, str]]


def _person(rng: random.Random, tables: tuple[Table, ...]) -> str:
    return str(rng.choice(tables[0].rows)[1])


def _city(rng: random.Random, tables: tuple[Table, ...]) -> str:
    return str(rng.choice(tables[0].rows)[2])


def _lookup_age(rng: random.Random, tables: tuple[Table, ...]) -> tuple[str, str]:
    name = _person(rng, tables)
    return f"How old is {name}?", f"SELECT age FROM people WHERE name = '{name}'"


def _lookup_city(rng: random.Random, tables: tuple[Table, ...]) -> tuple[str, str]:
    name = _person(rng, tables)
    return f"In which city does {name} live?", f"SELECT city FROM people WHERE name = '{name}'"


def _lookup_price(rng: random.Random, tables: tuple[Table, ...]) -> tuple[str, str]:
    product = rng.choice(PRODUCTS)
    return f"What is the price of a {product}?", f"SELECT price FROM products WHERE name = '{product}'"


def _count_city(rng: random.Random, tables: tuple[Table, ...]) -> tuple[str, str]:
    city = _city(rng, tables)
    return f"How many people live in {city}?", f"SELECT COUNT(*) FROM people WHERE city = '{city}'"


def _count_older(rng: random.Random, tables: tuple[Table, ...]) -> tuple[str, str]:
    age = rng.randint(20, 70)
    return f"How many people are older than {age}?", f"SELECT COUNT(*) FROM people WHERE age > {age}"


def _oldest_age(rng: random.Random, tables: tuple[Table, ...]) -> tuple[str, str]:
    city = _city(rng, tables)
    return (
        f"What is the age of the oldest person who lives in {city}?",
        f"SELECT MAX(age) FROM people WHERE city = '{city}'",
    )


def _count_orders(rng: random.Random, tables: tuple[Table, ...]) -> tuple[str, str]:
    name = _person(rng, tables)
    return (
        f"How many orders did {name} make?",
        f"SELECT COUNT(*) FROM orders JOIN people ON people.id = orders.person_id WHERE people.name = '{name}'",
    )


def _sum_quantity(rng: random.Random, tables: tuple[Table, ...]) -> tuple[str, str]:
    product = rng.choice(PRODUCTS)
    return (
        f"How many pieces of the product {product} were ordered in all orders together?",
        "SELECT COALESCE(SUM(quantity), 0) FROM orders JOIN products ON products.id = orders.product_id"
        f" WHERE products.name = '{product}'",
    )


def _spent(rng: random.Random, tables: tuple[Table, ...]) -> tuple[str, str]:
    name = _person(rng, tables)
    return (
        f"How much did {name} spend in all (price times quantity, over all orders)?",
        "SELECT COALESCE(SUM(quantity * price), 0) FROM orders JOIN people ON people.id = orders.person_id"
        f" JOIN products ON products.id = orders.product_id WHERE people.name = '{name}'",
    )


def _city_revenue(rng: random.Random, tables: tuple[Table, ...]) -> tuple[str, str]:
    city = _city(rng, tables)
    return (
        f"How much did the people who live in {city} spend in all (price times quantity, over all orders)?",
        "SELECT COALESCE(SUM(quantity * price), 0) FROM orders JOIN people ON people.id = orders.person_id"
        f" JOIN products ON products.id = orders.product_id WHERE people.city = '{city}'",
    )


def _top_spender(rng: random.Random, tables: tuple[Table, ...]) -> tuple[str, str]:
    return (
        "Who spent the most in all (price times quantity, over all orders)? Of equals, the first by the alphabet.",
        "SELECT people.name FROM orders JOIN people ON people.id = orders.person_id JOIN products ON"
        " products.id = orders.product_id GROUP BY people.id ORDER BY SUM(quantity * price) DESC, people.name LIMIT 1",
    )


def _regular_buyers(rng: random.Random, tables: tuple[Table, ...]) -> tuple[str, str]:
    least = rng.randint(2, 3)
    return (
        f"How many people made at least {least} orders?",
        f"SELECT COUNT(*) FROM (SELECT person_id FROM orders GROUP BY person_id HAVING COUNT(*) >= {least})",
    )


QUESTIONS: Mapping[str, tuple[WriteQuestion, ...]] = {
    "lookup": (_lookup_age, _lookup_city, _lookup_price),
    "aggregate": (_count_city, _count_older, _oldest_age),
    "join": (_count_orders, _sum_quantity),
    "group": (_spent, _city_revenue, _top_spender, _regular_buyers),
}
