from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.verify import numbers_equal, parse_plain_number

READ = [
    ("42", 42), ("+42", 42), ("-42", -42), ("− 42", -42), ("42.", 42), ("42.0", 42), ("042", 42), (".5", "1/2"),
    ("5.", 5),
    ("1,234,567.5", "2469135/2"), ("1{,}234", 1234), (r"1,\!234", 1234), (r"1\,234", 1234), ("$42", 42), (r"\$42", 42),
    ("-$5", -5), ("$-5", -5), ("€3.20", "16/5"), ("$42$", 42), (r"\(42\)", 42), ("**42**", 42), ("1/3", "1/3"),
    ("-1/3", "-1/3"), (r"\frac{1}{3}", "1/3"), (r"-\dfrac{1}{3}", "-1/3"), (r"\frac{-1}{3}", "-1/3"),
    (r"\frac12", "1/2"),
    ("x = 42", 42), ("x_1=42", 42), ("4.2e4", 42000), (r"4.2\times 10^4", 42000), (r"4.2 \cdot 10^{-1}", "21/50"),
    ("1e400", 10**400), (r"42\text{ cm}", 42), (r"42\,\text{cm}^2", 42), ("42 apples", 42), ("42 km/h", 42),
    (r"90^\circ", 90), ("90°", 90), (r"\color{red}42", 42), (r"\text{42}", 42), (r"\mathbf{42}", 42), ("42 times", 42),
    ("42 thousand", 42_000), (r"4.2\text{ million}", 4_200_000), ("2 dozen", 24), ("1.5 million dollars", 1_500_000),
]  # fmt: skip

NOT_READ = [
    "", " ", "forty-two", "42!", "6*7", "1+2", r"\sqrt{4}", "42i", "42x", r"42\pi", "4 2", "1,23", "12,34", "0,123",
    "1,2345",
    "--42", "-$-5", "1/0", r"\frac{1}{0}", "1/2/3", "1//2", "42..", "1.2.3", "1e401", "1e999999999", "10^{10^{10}}",
    "42 %%",
    "7 % 42", "42 minus one", "42 or so", "42 halved", "42 in octal", r"42 \text{ or } 41", "101_2",
    "x+1=42", "=42",
    "٤٢", "４２", "42\x00", "\u200b42", "nan", "inf", "-", ".", "1" * 201, r"2^{10}", "$42$1$", "0x2a", "1_000",
    "42 pi",
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), READ)
def test_parse_plain_number_is_exact(text, value):
    assert parse_plain_number(text).value == Fraction(value)


@pytest.mark.parametrize("text", NOT_READ)
def test_parse_plain_number_gives_a_reason(text):
    number = parse_plain_number(text)
    assert number.value is None and number.reason in ("malformed", "too long", "no answer")


@given(st.integers(-(10**30), 10**30), st.integers(0, 10**6))
def test_parse_plain_number_agrees_with_python_decimals(whole, decimals):
    for text in (f"{whole}.{decimals}", f"{whole:,}.{decimals}", f"{whole}e3"):
        assert parse_plain_number(text).value == Fraction(text.replace(",", ""))


@given(st.fractions(max_denominator=10**9))
def test_parse_plain_number_agrees_with_python_fractions(value):
    assert parse_plain_number(str(value)).value == value
    assert parse_plain_number(f"\\frac{{{value.numerator}}}{{{value.denominator}}}").value == value
    assert numbers_equal(str(value), str(value)) and not numbers_equal(str(value + 1), str(value))


@settings(max_examples=300)
@given(st.one_of(st.text(max_size=30), st.text("0123456789.,-+/$%eE \\{}frac^x=times10", max_size=30)))
def test_parse_plain_number_never_raises(text):
    number = parse_plain_number(text)
    assert (number.value is None) == bool(number.reason)


def test_numbers_equal_is_exact_without_tolerance():
    assert not numbers_equal("0.333333", "1/3")
    assert numbers_equal("0.333333", "1/3", tolerance=1e-5)
    assert not numbers_equal("12345678901234567891", "12345678901234567890")
    assert not numbers_equal("0.42", "42") and not numbers_equal("forty", "40") and not numbers_equal("40", "forty")


def test_numbers_equal_on_percentages():
    assert (
        numbers_equal(r"42\%", "0.42")
        and numbers_equal("42%", "42%")
        and numbers_equal("0.42", "42%")
        and numbers_equal("42 percent", "42")
    )
    assert not numbers_equal("42%", "4.2") and not numbers_equal("0.42%", "42%") and not numbers_equal("42%", "0.42%")
