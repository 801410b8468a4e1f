"""`TurnBridge`: the tokens between two turns equal those of the whole conversation, or there is no bridge."""

from __future__ import annotations

import string

import numpy as np
import pytest

from ponder.models import chat_templates
from ponder.models.tokenizer import Tokenizer
from ponder.models.turn_bridge import TurnBridge, random_talks
from ponder.types import ids

CHATML = (
    "{%- if messages[0].role != 'system' %}{{ '<s>system\nYou help.<eos>\n' }}{% endif %}"
    "{%- for m in messages %}{{ '<s>' + m.role + '\n' + m.content + '<eos>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
HEADERS = (
    "{{- bos_token }}{%- for m in messages %}"
    "{{- '<h>' + m.role + '</h>\n\n' + m.content + '<eos>' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<h>assistant</h>\n\n' }}{% endif %}"
)
# As Qwen 2.5: tools in the system message, tool results in a row share one user turn.
TOOLS = (
    "{%- if tools %}{{ '<s>system\n' + (tools | tojson) + '<eos>\n' }}{% endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}"
    "{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{ '<s>user' }}{% endif %}"
    "{{- '\n<r>\n' + m.content + '\n</r>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<eos>\n' }}{% endif %}"
    "{%- else %}{{ '<s>' + m.role + '\n' + m.content + '<eos>\n' }}{% endif %}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
# As Qwen 3: a thought is dropped once the user says something after it; tool results are not the user's words.
STRIPS = (
    "{%- set ns = namespace(last=-1) %}"
    "{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{%- for m in messages %}{% set text = m.content %}"
    "{%- if m.role == 'assistant' and loop.index0 < ns.last and '</think>' in text %}"
    "{%- set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{- '<s>' + ('user' if m.role == 'tool' else m.role) + '\n' + text + '<eos>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}{# tools #}"
)
OPENS = CHATML.replace("'<s>assistant\n' }}", "'<s>assistant\n<think>\n' }}")
TEMPLATES = {
    "chatml": CHATML,
    "headers": HEADERS,
    "tools": TOOLS,
    "opens": OPENS,
    **{name: chat_templates.CHAT_TEMPLATES[name] for name in ("plain", "qa", "r1", "deepseek-r1-zero")},
}
SCHEMA = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
ALPHABET = string.printable + "ünï漢"


def bridge_of(template: str) -> TurnBridge:
    from dataclasses import replace

    return TurnBridge(replace(Tokenizer.from_alphabet(ALPHABET), chat_template=template))


@pytest.mark.parametrize("roles", [("user",), ("tool",), ("tool", "user")])
@pytest.mark.parametrize("name", TEMPLATES)
def test_append_only_template_has_a_bridge(name: str, roles: tuple[str, ...]):
    bridge = bridge_of(TEMPLATES[name])
    assert bridge([{"role": role, "content": "x"} for role in roles], (SCHEMA,)) is not None


def check_talks(name: str, roles: tuple[str, ...], count: int) -> None:
    """Tokens that grow turn by turn equal those of the whole conversation; the policy's own are tokenised alone."""
    bridge = bridge_of(TEMPLATES[name])
    for talk in random_talks(roles, count, seed=1):
        messages = [
            {**m, "content": bridge.content(bridge.turn_text(m["content"]))} if m["role"] == "assistant" else m
            for m in talk
        ]
        whole = bridge.tokenizer.encode(bridge.render(messages, (SCHEMA,)), add_special_tokens=False)
        parts, said = [], []
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                parts.append(bridge.turn_text(message["content"]))
                said.append(i)
        grown = [bridge.tokenizer.encode(bridge.render(messages[: said[0]], (SCHEMA,)), add_special_tokens=False)]
        for place, text in enumerate(parts):
            after = messages[said[place] + 1 : said[place + 1] if place + 1 < len(said) else None]
            between = bridge(after, (SCHEMA,), closed=False)
            assert between is not None
            grown += [bridge.tokenizer.encode(text, add_special_tokens=False), between]
        assert np.array_equal(np.concatenate(grown), whole), (name, talk)


@pytest.mark.parametrize("roles", [("user",), ("tool",)])
@pytest.mark.parametrize("name", TEMPLATES)
def test_bridge_equals_whole_render(name: str, roles: tuple[str, ...]):
    check_talks(name, roles, 40)


@pytest.mark.nightly
@pytest.mark.parametrize("name", TEMPLATES)
def test_bridge_equals_whole_render_10000(name: str):
    for roles in (("user",), ("tool",), ("tool", "user")):
        check_talks(name, roles, 3400)


def test_template_that_drops_thoughts_has_no_bridge_after_the_user_and_one_after_tools():
    bridge = bridge_of(STRIPS)
    assert bridge([{"role": "user", "content": "x"}], (SCHEMA,)) is None
    assert bridge([{"role": "tool", "content": "x"}], (SCHEMA,)) is not None


def test_sampled_end_stands_for_the_template_s_own():
    bridge = bridge_of(CHATML)
    message = [{"role": "user", "content": "x"}]
    assert bridge.text_between(message, closed=True) == "\n<s>user\nx<eos>\n<s>assistant\n"
    assert bridge.text_between(message, closed=False) == "<eos>\n<s>user\nx<eos>\n<s>assistant\n"


def test_template_without_end_token_goes_on_after_the_sampled_one():
    bridge = bridge_of(chat_templates.PLAIN)
    assert bridge.text_between([{"role": "user", "content": "x"}], closed=True) == "\n\nUser: x\n\nAssistant:"


def test_content_has_what_the_prompt_opened():
    bridge = bridge_of(OPENS)
    assert bridge.content("hm</think>4") == "<think>\nhm</think>4" and bridge.turn_text("<think>\nhm") == "hm"
    plain = bridge_of(chat_templates.PLAIN)
    assert plain.content(" 4") == "4" and plain.turn_text("4") == " 4"


def test_two_tool_results_share_a_turn():
    bridge = bridge_of(TOOLS)
    results = [{"role": "tool", "content": "1"}, {"role": "tool", "content": ""}]
    assert bridge.text_between(results, (SCHEMA,)).count("<s>user") == 1
    between = bridge(results, (SCHEMA,))
    assert between is not None and between.dtype == ids([]).dtype
