"""Chat templates: a conversation as text, by the model's template or one of ponder's, as Hugging Face renders it.

A template is a small jinja2 program that comes with the model, so it runs in a sandbox (`template_sandbox`): it can
build a string and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jinja2

from ponder.errors import ModelError, UnknownName, UsageError
from ponder.models import template_sandbox as templates
from ponder.models.tokenizer import Tokenizer
from ponder.pictures.message_parts import content_pictures, content_text
from ponder.types import Ids, Message

# For a model without a template: roles and contents, one paragraph each.
PLAIN = """\
{%- for message in messages %}
{{- message.role | capitalize + ': ' + message.content + '\n\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""

# For a base model that is to learn to reason, after DeepSeek-R1-Zero (2025, table 1). It opens the tag where
# thinking begins, unless `open_think=False`.
R1 = """\
{{- 'A User asks a question and the Assistant answers it. The Assistant first thinks the problem through and then \
gives the User the answer. The thinking stands inside <think> </think> and the answer inside <answer> </answer>, \
like this: <think> the thinking </think> <answer> the answer </answer>.\n' }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ message.content + '\n' }}
{%- else %}{{ message.role | capitalize + ': ' + message.content + '\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}
{%- if open_think is not defined or open_think %}{{ ' <think>' }}{% endif %}
{%- endif %}"""

# The template of DeepSeek-R1-Zero word for word (DeepSeek-AI 2025, arXiv 2501.12948, table 1). It opens no tag.
DEEPSEEK_R1_ZERO = """\
{{- 'A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant \
first thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning \
process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., <think> \
reasoning process here </think> <answer> answer here </answer>.' }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ ' ' + message.content }}
{%- else %}{{ ' ' + message.role | capitalize + ': ' + message.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ ' Assistant:' }}{% endif %}"""

# The shortest: a question, and its answer.
QA = """\
{%- for message in messages %}
{{- ('Question: ' if message.role == 'user' else 'Answer: ' if message.role == 'assistant' else '') }}
{{- message.content + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'Answer:' }}{% endif %}"""


class ChatTemplateError(ModelError):
    """A chat template that cannot render a conversation."""


# What a faulty template raises.
_TEMPLATE_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, SyntaxError, MemoryError)

CHAT_TEMPLATES = {"plain": PLAIN, "qa": QA, "r1": R1, "deepseek-r1-zero": DEEPSEEK_R1_ZERO}


def check_template_name(template: str) -> None:
    """Raise unless this is jinja2 text or the name of one of ponder's templates."""
    if template not in CHAT_TEMPLATES and "{" not in template:
        raise UnknownName("chat template", template, CHAT_TEMPLATES)


def render_chat(
    template: str | None, messages: Sequence[Message], add_generation_prompt: bool = True, **extra: Any
) -> str:
    """The text that a model continues. `template`: jinja2 text, a name in `CHAT_TEMPLATES`, or None for "plain"."""
    check_template_name(template or "plain")
    text = CHAT_TEMPLATES.get(template or "plain", template or "")
    given = {"bos_token": "", "eos_token": "", **extra}
    try:
        conversation = {"messages": [dict(m) for m in messages], "add_generation_prompt": add_generation_prompt}
        return templates.render_sandboxed(text, conversation | given)
    except RecursionError:
        raise ChatTemplateError("the chat template cannot render these messages: it is nested too deeply") from None
    except (jinja2.TemplateError, *_TEMPLATE_ERRORS) as reason:
        raise ChatTemplateError(
            f"the chat template cannot render these messages: {str(reason) or type(reason).__name__:.1000}"
        ) from None


def encode_chat(tokenizer: Tokenizer, messages: Sequence[Message], **extra: Any) -> Ids:
    """The tokens of a conversation up to the assistant's answer, by the model's own template, else "plain"."""
    text = render_chat_for(tokenizer, [_as_plain_text(message) for message in messages], **extra)
    return tokenizer.encode(text, add_special_tokens=False)


def render_chat_for(tokenizer: Tokenizer, messages: Sequence[Message], **extra: Any) -> str:
    """The text of a conversation by the tokenizer's own template, with its special tokens."""
    if tokenizer.chat_template is None:
        tokenizer = with_chat_template(tokenizer, "plain")
    first, last = tokenizer.token(tokenizer.bos), tokenizer.token(next(iter(tokenizer.eos), None))
    given = {"bos_token": first or "", "eos_token": last or "", **extra}
    return render_chat(tokenizer.chat_template, messages, **given)


def _as_plain_text(message: Message) -> Message:
    """The message with its parts of text as one text. A picture raises."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message
    if content_pictures(content):
        raise UsageError("the problem shows a picture, and this model reads text only; take a vision-language model")
    return {**message, "content": content_text(content)}


def with_chat_template(tokenizer: Tokenizer, template: str) -> Tokenizer:
    """The tokenizer with this template (a name or jinja2 text) as its own.

    A template writes the BOS token itself, so ponder's get one if the tokenizer would add one.
    """
    check_template_name(template)
    text = CHAT_TEMPLATES.get(template, template)
    if (
        "bos_token" not in text
        and tokenizer.bos is not None
        and tokenizer.bos in tokenizer.encode("", add_special_tokens=True)
    ):
        text = "{{- bos_token }}" + text
    return replace(tokenizer, chat_template=text)
