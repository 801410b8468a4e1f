"""Chat templates render as transformers renders them, and can do nothing but render."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest
from tokenizers import processors

from ponder.errors import ModelError, UnknownName
from ponder.models import chat_templates
from ponder.models.tokenizer import Tokenizer
from ponder.types import user_messages

CHATML = """\
{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\nBe kind.<|im_end|>\n' }}
    {% endif %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' + '\n' }}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{% endif %}"""
LLAMA = """\
{{- bos_token }}{%- set date = strftime_now("%d %b %Y") %}Today: {{ date }}
{%- for m in messages %}
    {%- if m.role == 'tool' %}{% continue %}{% endif %}
    {%- if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}
    {%- else %}[{{ m.role }}] {{ m | tojson }}{{ m | tojson(indent=2) }}{% endif %}
{%- endfor %}{% if not add_generation_prompt %}.{% endif %}"""
TALK = (
    {"role": "system", "content": "Be <brief> & 'clear'."},
    {"role": "user", "content": "What is 2 + 2? é"},
    {"role": "assistant", "content": "4"},
    {"role": "tool", "content": "{}"},
    {"role": "user", "content": "Sure?"},
)


@pytest.mark.parametrize("template", [CHATML, LLAMA, *chat_templates.CHAT_TEMPLATES.values()])
@pytest.mark.parametrize("prompt", [True, False])
def test_renders_as_transformers_does(template: str, prompt: bool) -> None:
    transformers = pytest.importorskip("transformers")
    inner = Tokenizer.from_alphabet("ab").inner
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<bos>", eos_token="<eos>")
    for talk in (TALK, TALK[1:], TALK[1:2]):
        expected = theirs.apply_chat_template(
            list(talk), chat_template=template, tokenize=False, add_generation_prompt=prompt
        )
        assert chat_templates.render_chat(template, talk, prompt, bos_token="<bos>", eos_token="<eos>") == expected


def test_r1_template_opens_think_tag() -> None:
    text = chat_templates.render_chat("r1", user_messages("What is 2 + 2?"))
    assert text.endswith("User: What is 2 + 2?\nAssistant: <think>")
    assert "<answer> </answer>" in text
    assert chat_templates.render_chat("r1", user_messages("2 + 2?"), open_think=False).endswith("Assistant:")
    assert "Answer in French.\nUser:" in chat_templates.render_chat(
        "r1", user_messages("2 + 2?", system="Answer in French.")
    )


def test_model_without_template_uses_plain() -> None:
    assert (
        chat_templates.render_chat(None, user_messages("Hi", system="Be kind."))
        == "System: Be kind.\n\nUser: Hi\n\nAssistant:"
    )
    assert chat_templates.render_chat(None, user_messages("Hi")) == chat_templates.render_chat(
        "plain", user_messages("Hi")
    )
    assert chat_templates.render_chat("plain", user_messages("Hi"), add_generation_prompt=False) == "User: Hi\n\n"


def test_dates() -> None:
    assert chat_templates.render_chat("{{ strftime_now('%Y') }}", ()) == str(datetime.datetime.now().year)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ messages[9].content }}", "has no element 9"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "unsafe"),
    ],
)
def test_failing_template_reports_the_reason(template: str, reason: str) -> None:
    with pytest.raises(ModelError, match="cannot render these messages") as error:
        chat_templates.render_chat(template, user_messages("Hi"))
    assert reason in str(error.value)


def test_a_template_by_name() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'plain'"):
        chat_templates.render_chat("plan", user_messages("Hi"))


def test_rendering_does_not_change_messages() -> None:
    talk = ({"role": "user", "content": "Hi"},)
    with pytest.raises(ModelError):
        chat_templates.render_chat("{% set _ = messages[0].update({'x': 1}) %}", talk)
    assert talk == ({"role": "user", "content": "Hi"},)


def test_encode_adds_no_second_bos() -> None:
    plain = Tokenizer.from_alphabet("USERAsitant: Hser\n")
    plain.inner.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    own = replace(plain, chat_template="{{ bos_token }}{{ messages[0].content }}")
    assert chat_templates.encode_chat(own, user_messages("Hi")).tolist() == [
        1,
        *plain.encode("Hi", add_special_tokens=False),
    ]
    assert (
        chat_templates.encode_chat(plain, user_messages("Hi")).tolist()
        == plain.encode("User: Hi\n\nAssistant:").tolist()
    )
    assert (
        chat_templates.encode_chat(chat_templates.with_chat_template(own, "plain"), user_messages("Hi")).tolist()
        == chat_templates.encode_chat(plain, user_messages("Hi")).tolist()
    )
    assert chat_templates.with_chat_template(own, "{{ bos_token }}x").chat_template == "{{ bos_token }}x"
