"""bench/demo_settings.py against the product's own network, credit, learner's FLOPs and sums by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import demo_settings
from demo_training import TASKS
from ponder.cli.recipe_files import find_recipe, load_recipe
from ponder.models.chat_templates import render_chat
from ponder.nets.decoder import Decoder
from ponder.train import credit
from ponder.train.flops import pass_flops
from reference_decoder import plain_logits

PROMPTS = [[3, 5, 7], [4, 6, 8]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    raw = {
        "model_type": "llama", "vocab_size": 32, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3,
        "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 40, "rms_norm_eps": 1e-5, "rope_theta": 1e5,
        "tie_word_embeddings": True, "eos_token_id": 0,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(raw))
    draw = torch.Generator().manual_seed(0)
    parts = {"self_attn.q_proj": (24, 24), "self_attn.k_proj": (8, 24), "self_attn.v_proj": (8, 24),
             "self_attn.o_proj": (24, 24), "mlp.gate_proj": (40, 24), "mlp.up_proj": (40, 24),
             "mlp.down_proj": (24, 40), "input_layernorm": (24,), "post_attention_layernorm": (24,)}  # fmt: skip
    shapes = {f"model.layers.{i}.{name}.weight": shape for i in range(3) for name, shape in parts.items()}
    shapes |= {"model.embed_tokens.weight": (32, 24), "model.norm.weight": (24,)}
    save_file({n: 0.3 * torch.randn(s, generator=draw) for n, s in shapes.items()}, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def model(folder: Path) -> demo_settings.Model:
    return demo_settings.Model(folder, "cpu")


def test_the_recipe_is_the_setting_that_was_chosen() -> None:
    chosen = demo_settings.TRIED["s-add5"]
    job = load_recipe(find_recipe("addition"))()
    for problem in job.task.test[:20]:
        a, b = demo_settings._numbers(problem.question)
        assert render_chat(job.template, problem.messages) == chosen.prompt.format(a=a, b=b)
    made = (job.problems_per_step, job.group_size, job.sampling.max_tokens, job.sampling.temperature)
    assert made == (chosen.problems, chosen.group, chosen.max_tokens, chosen.temperature)
    assert job.steps == job.optimizer.decay_steps == 33 > chosen.steps  # as many as six minutes of two cores allow
    assert (job.frozen_layers, job.optimizer.lr, job.optimizer.betas) == (chosen.frozen, chosen.lr, chosen.betas)
    assert (chosen.reward, chosen.advantage, chosen.lr_shape) == ("exact", "group", "linear")


def test_an_answer_of_the_recipe_has_room_for_its_sum_and_the_end_of_the_line() -> None:
    recipe = load_recipe(find_recipe("addition"))
    for digits in range(1, 8):
        assert recipe(digits=digits).sampling.max_tokens > len(str(2 * (10**digits - 1)) + "\n")
    assert recipe(max_tokens=9).sampling.max_tokens == 9


def logprobs(model: demo_settings.Model, prompt: list[int], tokens: list[int], temperature: float) -> torch.Tensor:
    w = {n: t.double() for n, t in model.start.items()}
    logits = plain_logits(w, model.config, [*prompt, *tokens])[len(prompt) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]


def test_greedy_samples_are_those_of_the_reference_decoder(model: demo_settings.Model) -> None:
    found = model.sample(model.start, PROMPTS, 2, 5, 0.0, [], None)
    for row, tokens in enumerate(found):
        path = list(PROMPTS[row // 2])
        for token in tokens:
            assert token == int(plain_logits(model.start, model.config, path)[-1].argmax())
            path.append(token)
    first = found[0][0]
    assert model.sample(model.start, PROMPTS[:1], 1, 5, 0.0, [first], None) == [[first]]


def test_samples_have_the_model_s_probabilities(model: demo_settings.Model) -> None:
    draw = torch.Generator().manual_seed(0)
    counts = np.bincount([t[0] for t in model.sample(model.start, PROMPTS[:1], 4000, 1, 1.5, [], draw)], minlength=32)
    chances = torch.softmax(plain_logits(model.start, model.config, PROMPTS[0])[-1] / 1.5, -1).numpy()
    assert np.abs(counts / 4000 - chances).max() < 4 * 0.5 / np.sqrt(4000)


def test_gradient_is_that_of_the_weighted_mean_log_probability(model: demo_settings.Model) -> None:
    search = object.__new__(demo_settings.Search)
    search.model, search.device = model, "cpu"
    tokens, weights = [[9, 2], [1, 1, 4]], np.array([0.5, -2.0])
    w = {n: t.clone().requires_grad_() for n, t in model.start.items()}
    search._backward(w, PROMPTS, tokens, weights, 0.7)
    with torch.enable_grad():
        model.start = {n: t.clone().requires_grad_() for n, t in model.start.items()}
        wanted = -sum(a * logprobs(model, p, t, 0.7).mean() for a, p, t in zip(weights, PROMPTS, tokens, strict=True))
    wanted.backward()
    for name, leaf in model.start.items():
        torch.testing.assert_close(w[name].grad, leaf.grad, rtol=1e-4, atol=1e-5)


def test_advantages_are_those_of_the_product() -> None:
    rewards = np.array([[1.0, 0, 0, 1], [1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]])
    for kind, divides, factor in (("group", True, 1), ("none", False, 2), ("centred", False, 1)):
        wanted = [factor * credit.group_relative(row, divides) for row in rewards]
        np.testing.assert_allclose(demo_settings.advantages(kind, rewards), wanted)
    whitened = credit.whiten([rewards.reshape(-1)])[0].reshape(4, 4)
    np.testing.assert_allclose(demo_settings.advantages("batch", rewards), whitened)
    lost = demo_settings.advantages("wrong", rewards)
    assert (lost[3] == -0.3).all() and (lost[1] == 0).all()
    np.testing.assert_allclose(demo_settings.advantages("maxrl", rewards)[2], [-1, 3, -1, -1])
    mixed = demo_settings.advantages("mixed", rewards)
    np.testing.assert_allclose(mixed[1], (1 - 0.5 - 0.5 * 7 / 16) / rewards.std())


def test_flops_are_the_product_s_without_attention(model: demo_settings.Model) -> None:
    search = object.__new__(demo_settings.Search)
    search.model = model
    net = Decoder(model.config)
    net.requires_grad_(False)
    for layer in net.layers[1:]:
        layer.requires_grad_(True)
    tokens = [[1, 2], [1, 2, 3], [4, 5], [6]]
    # A group that learns: a prompt of three tokens, and all of its completions but their last tokens.
    wanted = pass_flops(net, [3, 1, 2], [-1, 0, 0], 5, backward=True)
    attention = model.config.attention_flops(sum((1, 2, 3, 4, 4, 5)))
    assert search._learning_flops(PROMPTS, tokens, [0, 1], 2, 1) == wanted - attention * (3 + 2 * 2)
    wanted = pass_flops(net, [3, 1, 2, 3, 1], [-1, 0, 0, -1, 3], 2 + 4, backward=False)
    assert search._sampling_flops(PROMPTS, tokens) == wanted - 3 * model.config.attention_flops(19 + 10)


def test_choice_problems_are_in_no_other_split_and_never_trained() -> None:
    splits = {name: {frozenset(demo_settings._numbers(p.question)) for p in TASKS[name]().test}
              for name in ("validation", "test", "choice")}  # fmt: skip
    assert len(splits["choice"]) == len(TASKS["choice"]().test) > 500
    assert not splits["choice"] & (splits["validation"] | splits["test"])
    train = TASKS["choice"]().train
    asked = {frozenset(demo_settings._numbers(train[i].question)) for i in range(3000)}
    assert not asked & (splits["choice"] | splits["validation"] | splits["test"])


def test_digit_reward_and_rates_by_hand() -> None:
    assert demo_settings.digit_reward(" 75.", "85") == 0.5 and demo_settings.digit_reward("185", "85") == 0
    assert demo_settings.digit_reward("85 + 1", "85") == 0
    assert [demo_settings.lr_factor("linear", x) for x in (0, 0.25)] == [1, 0.75]
    assert [demo_settings.lr_factor("late", x) for x in (0.5, 5 / 6)] == pytest.approx([1, 0.5])


def test_runs_are_functions_of_their_seed_and_are_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    letters = {c: i for i, c in enumerate("\x00\n +=?:0123456789WhatisQueonAwr")}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    small = replace(
        demo_settings.QA, steps=3, problems=4, frozen=1, max_tokens=3, late=2, group_late=2, problems_late=8
    )
    tried = {"qa": small, "w": replace(small, replay=0.5, reward="digits", advantage="wrong", lr_per_layer=0.9)}
    monkeypatch.setattr(demo_settings, "TRIED", tried)
    monkeypatch.setattr(demo_settings, "EARLY_STEPS", 1)
    monkeypatch.setattr(demo_settings, "find_model", lambda name: folder)
    monkeypatch.setattr(demo_settings.Search, "is_right", lambda self, text, pair: len(text) % 2 == 0)
    for out in ("a", "b"):
        monkeypatch.setattr(
            "sys.argv", ["x", "run", "--out", str(tmp_path / out), "--seeds", "1", "2", "--averaged", "2"]
        )
        demo_settings.main()
    first, again = ([json.loads(p.read_text()) for p in sorted((tmp_path / d).iterdir())] for d in ("a", "b"))
    assert [(r["name"], r["seed"]) for r in first] == [("qa", 1), ("qa", 2), ("w", 1), ("w", 2)]
    for one, other in zip(first, again, strict=True):
        same = ("accuracy", "reward", "live", "tokens", "flops")
        assert all(one[key] == other[key] for key in same) and any(one["live"]) and len(one["reward"]) == 3
    assert first[0]["reward"] != first[1]["reward"]
    monkeypatch.setattr("sys.argv", ["x", "table", "--out", str(tmp_path / "a")])
    monkeypatch.setattr(demo_settings, "report", lambda *args, **more: print(json.dumps(more["details"])))
    demo_settings.main()
    shown = capsys.readouterr().out.splitlines()[-1]
    qa, w = json.loads(shown)["settings"]
    assert w["changed"]["replay"] == 0.5 and [run["seed"] for run in qa["runs"]] == [1, 2]
    assert qa["runs"][0]["all"] == round(first[0]["accuracy"]["last"]["all"], 2)
