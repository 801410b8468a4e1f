"""The bench scaffold: results are whole, the page shows them as they are, and sides that are compared do the same."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import engine_tree
import harness
import host_work
import roofline
import write_readme
from fakes import run_async, tiny_decoder
from ponder.engine import rng
from ponder.models.load import load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.tokenizer import Tokenizer
from ponder.nets import hf
from ponder.pipelines.training.gold_episodes import gold_traces
from ponder.tasks.environments.episode_reward import EpisodeReward
from ponder.types import Ids, Sampling, ids
from sampling_backends import (
    BACKENDS,
    VLLM,
    AsyncBackend,
    Backend,
    BackendSetting,
    CompletionGroup,
    PromptRequest,
    Search,
    check_completions,
)

BENCH = harness.HERE


def test_page_is_current() -> None:
    assert (BENCH / "README.md").read_text(encoding="utf-8") == write_readme.render(write_readme.load()), (
        "run: python bench/write_readme.py"
    )


def test_every_token_of_the_vision_step_has_a_text() -> None:
    vision_step = import_module("vision_step")
    for (vocab, *_), _ in vision_step.SHAPES.values():
        tokenizer = vision_step.make_tokenizer(vocab)
        assert tokenizer.inner.get_vocab_size() == vocab
        written = range(max(len(tokenizer.eos) + 8, vocab - 1000), vocab - len(vision_step.SPECIAL_TEXTS))
        assert len({tokenizer.decode([token]) for token in written}) == len(written)


def test_vision_step_samples_and_learns_from_pictures(tmp_path: Path) -> None:
    vision_step = import_module("vision_step")
    pytest.importorskip("transformers")
    options = SimpleNamespace(
        folder=tmp_path / "model", device="cpu", prompts=2, n=2, tokens=3, steps=0, side=64, max_tokens_per_microbatch=0
    )
    vision_step.write_model(options.folder, "tiny", "cpu")
    steps = list(vision_step.ponder_steps(options, "float32"))  # asserts what was sampled and learned
    assert len(steps) == 2 and steps[0]["flops"] > 0
    vision = load_policy(str(options.folder)).net.config.vision
    # two products and two of attention in each layer, patches and the projection, by hand
    matrices = 2 * (4 * 32 * 32 + 2 * 32 * 64) + 3 * 64 * 32
    assert vision_step.tower_flops(vision, 32) == 2 * 64 * matrices + 2 * 4 * 64**2 * 32 + 2 * 16 * 128 * 32


@pytest.mark.parametrize("path", sorted((BENCH / "results").glob("*.json")), ids=lambda p: p.stem)
def test_result_is_whole(path: Path) -> None:
    result = json.loads(path.read_text(encoding="utf-8"))
    assert set(harness.RESULT_KEYS) <= result.keys()
    assert path.stem == f"{result['name']}-{result['hardware']}"
    assert result["commit"] != "unknown", "measured outside a repository: set PONDER_COMMIT there"
    scripts = [p.stem for p in BENCH.glob("*.py") if result["name"].startswith(p.stem)]
    assert scripts, "a result without its script cannot be measured again"


def test_benches_of_ponder_train_show_how_far_a_run_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where it ends before its steps are taken: a bench that is cut must not keep the reason to itself."""
    script = tmp_path / "run.py"
    script.write_text("import sys\nprint('the disk is full', file=sys.stderr)\nsys.exit(3)\n", "utf-8")
    train_start, train_folder = import_module("train_start"), import_module("train_folder")
    monkeypatch.setattr(train_start, "__file__", str(script))
    with pytest.raises(RuntimeError, match="exit code 3"):
        train_start.run({"cache": str(tmp_path), "kill_at": 0}, "")
    assert "the disk is full" in capfd.readouterr().err
    script.write_text("""print('{"event": "phase", "name": "load"}')""", "utf-8")
    monkeypatch.setattr(train_folder, "__file__", str(script))
    result = train_folder.train([], steps=2, limit=60)
    assert result["steps"] == [] and result["events"][0]["name"] == "load"
    assert json.loads(capfd.readouterr().err)["name"] == "load"


def test_report_ends_with_the_object_it_keeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = harness.report(
        "adding", "add two numbers", 30.0, {"slow": 10.0, "fast": 20.0, "gone": None}, promised=1.0,
        unit="sums/s", packages=["numpy", "no-such-package"], results=tmp_path,
    )  # fmt: skip
    shown = capsys.readouterr().out.splitlines()
    (path,) = tmp_path.iterdir()
    assert json.loads(shown[-1]) == json.loads(path.read_text(encoding="utf-8")) == kept
    assert set(harness.RESULT_KEYS) <= kept.keys()
    assert kept["ratio"] == 1.5
    assert kept["versions"]["no-such-package"] == "absent"
    assert path.stem == f"adding-{kept['hardware']}"
    assert any("not measured here" in line for line in shown)
    assert (
        "| adding | add two numbers | 30 sums/s | slow 10, fast 20, gone – | 1.50 | 1.00 | – |"
        in write_readme.render([kept])
    )


def test_report_without_a_peer_is_kept_only_in_a_named_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    alone = harness.report("adding", "add", 30.0, {"gone": None}, results=tmp_path)
    assert not [*tmp_path.iterdir()]
    harness.report("adding", "add", 30.0, {"gone": None}, results=tmp_path / "named")
    assert [*(tmp_path / "named").iterdir()]
    assert "| adding | add | 30 | gone – | – | – | – |" in write_readme.render([alone])


def test_the_table_says_which_share_of_the_limit_was_reached(tmp_path: Path) -> None:
    kept = harness.report(
        "adding",
        "add",
        30.0,
        {"slow": 10.0},
        details={"share_of_limit": {"ponder": 0.153, "slow": 0.1}},
        results=tmp_path,
    )
    assert "| 15 % |" in write_readme.render([kept])
    rate = harness.report("trainer_rate_small", "train", 0.537, {"slow": 0.4}, results=tmp_path)
    assert "| 54 % |" in write_readme.render([rate])


def test_report_of_earlier_runs_names_their_machine(tmp_path: Path) -> None:
    origin = {"hardware": "nvidia-h200", "versions": {"torch": "2.11.0"}, "commit": "1776e5c923b4", "seed": 0}
    kept = harness.report("adding", "add", 30.0, {"slow": 10.0}, results=tmp_path, origin=origin)
    assert {key: kept[key] for key in ("hardware", "versions", "commit")} == {
        k: v for k, v in origin.items() if k != "seed"
    }
    assert (tmp_path / "adding-nvidia-h200.json").is_file()


def test_ratio_above_one_means_ponder_wins() -> None:
    assert harness.best_ratio(2.0, {"a": 8.0, "b": 4.0}, "lower") == 2.0
    assert harness.best_ratio(2.0, {"a": 8.0, "b": 4.0}, "higher") == 0.25
    assert harness.best_ratio(2.0, {"a": None}) is None


def test_names_fit_a_file() -> None:
    assert harness.slug("NVIDIA H200") == "nvidia-h200"
    assert harness.slug("Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz 14") == "intel-xeon-e5-2690-v4-14"
    assert harness.slug(harness.hardware()) == harness.hardware() != ""
    with pytest.raises(ValueError, match="lower-case"):
        harness.report("No Good", "", 1.0, {})


def test_an_incomplete_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"name": "half"}')
    with pytest.raises(SystemExit, match=r"half\.json lacks work"):
        write_readme.load(tmp_path)


def test_seconds_is_the_median_after_warming_up() -> None:
    calls: list[int] = []
    assert harness.median_seconds(lambda: calls.append(1), repeats=3, warmup=2) >= 0
    assert len(calls) == 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model as a peer reads it."""
    path = tmp_path_factory.mktemp("bench") / "tiny"
    hf.save(tiny_decoder(), path)
    Tokenizer.from_alphabet("0123456789").save(path)
    return path


PROMPTS = [ids(np.random.default_rng(length).integers(3, 60, length)) for length in (5, 9, 20)]


@pytest.mark.parametrize("name", ["ponder", "transformers", "plain loop"])
def test_a_side_says_the_log_probabilities_of_what_it_writes(folder: Path, name: str) -> None:
    side = BACKENDS[name](BackendSetting(str(folder), "cpu", "float32", 64, 64, 1))
    asks: list[PromptRequest] = list(zip(PROMPTS, (2, 3, 1), strict=True))
    result = side.generate_all(asks, 12)
    side.close()
    check_completions(result, asks, 12)
    judge = PonderPolicy(tiny_decoder(), Tokenizer.from_alphabet("0123456789"))
    for (prompt, _), group in zip(asks, result, strict=True):
        for tokens, logprobs in group:
            np.testing.assert_allclose(logprobs, run_async(judge.token_logprobs(prompt, tokens)), atol=1e-4)
    assert len({tuple(tokens) for group in result for tokens, _ in group}) == 6  # each draws for itself


def test_host_work_samples_what_the_random_numbers_say() -> None:
    """Forks of a path, several launches each: the tokens are functions of the sequences' keys and nothing else."""
    with host_work.without_network():
        side = host_work.InstantPonder(Tokenizer.from_alphabet("0123456789"))
        vocab, prefix = side.policy.vocab_size, ids([3, 4, 5])
        for seed in range(4):
            completions = run_async(side.policy.generate(prefix, Sampling(max_tokens=40, seed=seed), 5))
            for key, completion in zip(rng.stream_keys(seed, 5), completions, strict=True):
                uniforms = rng.uniforms(np.asarray([key], np.uint64), np.arange(40))
                assert completion.token_ids.tolist() == (uniforms * vocab).astype(int).tolist()
            prefix = np.append(prefix, completions[seed].token_ids)
        assert all(c.cost.cached_tokens for c in completions), "the path is in the cache"
        side.close()


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("engine_groups", ["--prompts", "2", "--n", "3", "--tokens", "4"]),
        ("engine_tree", ["--problems", "2", "--beams", "3", "--steps", "3", "--tokens-per-step", "4"]),
    ],
)
def test_an_engine_bench_measures_all_sides(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    sizes: list[str],
) -> None:
    script: Any = import_module(name)
    monkeypatch.setattr(script, "measure_peaks", lambda device, dtype: roofline.MachinePeaks(1e10, 1e10))
    result = _run(script, folder, tmp_path, monkeypatch, capsys, [*sizes, "--backends", "ponder", "transformers"])
    details = result["details"]
    assert [p.stem for p in tmp_path.iterdir()] == [f"{result['name']}-{result['hardware']}"]
    assert result["ours"] > 0 and result["peers"]["transformers"] > 0 and not details["failed"]
    assert len(details["seconds"]["ponder"]) == len(details["seconds"]["transformers"]) == 2
    assert 0 < details["share_of_limit"]["ponder"] < 1
    inside = details["inside_ponder"]
    parts = [inside[name] for name in roofline.TIME_SHARES]
    assert min(parts) >= 0 and sum(parts) == pytest.approx(inside["seconds"])
    assert inside["calls"]["network"] >= 4


@pytest.mark.nightly
def test_the_start_is_measured_in_a_fresh_process(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(BENCH.parent / "src"))
    sizes = ["--prompts", "2", "--n", "2", "--tokens", "3", "--backends", "ponder"]
    result = _run(import_module("engine_start"), folder, tmp_path, monkeypatch, capsys, sizes, repeats=0)
    first = result["details"]["first_turn"]["ponder"]
    assert 0 < first["opened"] < first["first_token"] == result["ours"] < first["first_group"]


def _run(
    script: Any,
    folder: Path,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: list[str],
    repeats: int = 2,
) -> dict[str, Any]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the scripts set it, for the processes they start
    common = ["--model", str(folder), "--repeats", str(repeats), "--results", str(results)]
    monkeypatch.setattr(sys, "argv", ["bench", *common, *given])
    script.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


def test_a_peer_that_fails_leaves_the_others(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(Backend):
        def generate_all(self, asks: Sequence[PromptRequest], tokens: int) -> list[CompletionGroup]:
            raise MemoryError("no room")

    script: Any = import_module("engine_groups")
    monkeypatch.setattr(script, "measure_peaks", lambda device, dtype: roofline.MachinePeaks(1e10, 1e10))
    monkeypatch.setitem(BACKENDS, "vLLM", Broken)
    sizes = ["--prompts", "1", "--n", "2", "--tokens", "2", "--backends", "ponder", "vLLM", "plain loop"]
    result = _run(script, folder, tmp_path, monkeypatch, capsys, sizes, repeats=1)
    assert result["peers"]["vLLM"] is None and result["peers"]["plain loop"] > 0
    assert result["details"]["failed"] == {"vLLM": "MemoryError: no room"}


def _answer(ask: PromptRequest, tokens: int) -> CompletionGroup:
    """Tokens that say what they answer."""
    seed = [*ask[0].tolist(), ask[1]]
    return [
        (ids(new), np.full(tokens, -1.0, np.float32))
        for new in np.random.default_rng(seed).integers(0, 50, (ask[1], tokens))
    ]


class _LockStep(Backend):
    def generate_all(self, asks: Sequence[PromptRequest], tokens: int) -> list[CompletionGroup]:
        return [_answer(ask, tokens) for ask in asks]


class _Free(AsyncBackend):
    async def generate_one(self, ask: PromptRequest, tokens: int) -> CompletionGroup:
        return _answer(ask, tokens)


class _LastFirst:
    """Stands for vLLM's engine: what came last is done first."""

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()

    def add_request(self, name: str, prompt: dict[str, list[int]], params: tuple[int, int]) -> None:
        self.waiting.append((name, ids(prompt["prompt_token_ids"]), *params))

    def step(self) -> list[Any]:
        name, prefix, n, tokens = self.waiting.pop()
        groups = [
            SimpleNamespace(token_ids=t.tolist(), logprobs=[{int(i): SimpleNamespace(logprob=-1.0)} for i in t])
            for t, _ in _answer((prefix, n), tokens)
        ]
        unfinished = SimpleNamespace(finished=False, request_id="another")
        return [unfinished, SimpleNamespace(finished=True, request_id=name, outputs=groups)]


def _vllm() -> VLLM:
    side = object.__new__(VLLM)
    side.llm, side._asked = SimpleNamespace(llm_engine=_LastFirst()), 0
    side._params = lambda n, tokens: (n, tokens)  # type: ignore[method-assign]
    return side


@pytest.mark.parametrize("kind", ["lock step", "free", "vLLM"])
def test_every_way_to_drive_searches_asks_the_same(kind: str) -> None:
    setting = BackendSetting("", "cpu", "float32", 1, 1, 1)
    side: Backend = {"lock step": _LockStep(setting), "free": _Free(setting), "vLLM": _vllm()}[kind]
    asked: dict[int, list[list[PromptRequest]]] = {}

    def heard(search: Search, who: int) -> Search:
        answers: list[CompletionGroup] = []
        asks = next(search)
        while True:
            asked.setdefault(who, []).append(asks)
            answers = yield asks
            assert [g[0][0].tolist() for g in answers] == [_answer(ask, 4)[0][0].tolist() for ask in asks]
            try:
                asks = search.send(answers)
            except StopIteration:
                return

    searches = [engine_tree.search(p, 5, 3 + who, 4, who, []) for who, p in enumerate(PROMPTS)]
    side.run_searches([heard(search, who) for who, search in enumerate(searches)], 4)
    assert {who: len(rounds) for who, rounds in asked.items()} == {0: 3, 1: 4, 2: 5}
    for who, rounds in asked.items():
        assert [sum(n for _, n in asks) for asks in rounds] == [5] * (3 + who)
        for step, asks in enumerate(rounds):
            assert {len(path) for path, _ in asks} == {len(PROMPTS[who]) + 4 * step}
    assert any(n > 1 for _, n in asked[2][1]), "some beams fork"


def test_the_limit_counts_what_must_be_read_and_computed() -> None:
    net = tiny_decoder()
    config, machine = net.config, roofline.MachinePeaks(bandwidth=1000.0, matrix_rate=1e6)
    matrices = sum(p.numel() for p in net.parameters() if p.dim() == 2)  # the embedding is the head
    per_key = 2 * 4 * config.layers * config.kv_heads * config.head_dim
    result = roofline.min_seconds(config, torch.float32, 0, [roofline.DecodePass(3, 10, 0)], machine)
    assert result["reading_seconds"] == pytest.approx((4 * matrices + 10 * per_key) / 1000.0)
    assert result["matrix_seconds"] == pytest.approx(3 * 2 * matrices / 1e6)
    assert result["seconds"] == max(result["reading_seconds"], result["matrix_seconds"])
    two = roofline.min_seconds(config, torch.float32, 7, [roofline.DecodePass(3, 10, 0)] * 2, machine)
    prompts = 7 * 2 * (matrices - config.vocab * config.width) / 1e6
    assert two["seconds"] == pytest.approx(2 * result["seconds"] + prompts)


def test_shared_prefixes_count_once() -> None:
    assert roofline.count_distinct_prefixes([ids([1, 2, 3]), ids([1, 2, 4, 5]), ids([2, 2])]) == 3 + 2 + 2
    prompts = [ids([7, 8, 9, who]) for who in range(3)]
    shape = (4, 5, 6)
    counted, sharing = engine_tree.passes(prompts, *shape)
    assert len(counted) == 5 * 6 and {p.rows for p in counted} == {3 * 4}

    rounds: list[list[Ids]] = [[] for _ in range(5)]  # of each step the paths of all problems
    for who, prompt in enumerate(prompts):
        tree = engine_tree.search(prompt, *shape, who, [])
        asks = next(tree)
        for step in range(5):
            rounds[step] += [path for path, _ in asks]
            if step < 4:
                asks = tree.send([_answer(ask, 6) for ask in asks])
    for step, paths in enumerate(rounds):
        assert counted[6 * step].keys == roofline.count_distinct_prefixes(paths)
        assert counted[6 * step + 5].keys == roofline.count_distinct_prefixes(paths) + 5 * 12
    assert sharing["of_them_distinct"] < sharing["prefix_tokens_sent"] / 2


def test_watching_the_engine_ends() -> None:
    before = [getattr(owner, name) for owner, name, _ in roofline._TIMED_METHODS]
    with pytest.raises(ValueError), roofline.time_engine("cpu"):
        raise ValueError
    assert [getattr(owner, name) for owner, name, _ in roofline._TIMED_METHODS] == before


def test_episodes_are_counted_by_turns_and_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without TRL only ponder plays: the class in TRL's form is its environment as it is."""
    script: Any = import_module("episodes")
    model, lr, _ = script.MODELS["tiny"]
    monkeypatch.setitem(script.MODELS, "tiny", (model, lr, 2))
    monkeypatch.setattr(script.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["bench", "--prompts", "2", "--n", "2", "--turns", "2", "--repeats", "1"])
    script.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    counts = result["details"]["per_episode"]["ponder"]
    assert result["ours"] > 0 and result["peers"] == {"TRL": None} and len(result["details"]["seconds"]["ponder"]) == 2
    assert counts["episodes"] == 4 and 1 <= counts["turns"] <= 2
    assert counts["turns"] <= counts["sampled_tokens"] <= 2 * script.TURN_TOKENS


def test_taught_episodes_call_the_tool_in_every_turn() -> None:
    script: Any = import_module("episodes")
    policy = load_policy(script.MODELS["tiny"][0], template=script.TEMPLATE, dtype="float32")
    task = script.game(SimpleNamespace(turns=3), 4, seed=1)
    traces = gold_traces(policy, task.train, EpisodeReward(lambda: script.Taught(3), task.limits))
    counts = script.count_traces(traces)
    assert (
        counts["episodes"] == 3
        and counts["turns"] == 3
        and counts["prompt_tokens"] == len("tools: guess\n") + len(f"user: {script.PROMPT}") + 1 + len("\nassistant: ")
    )
    answers = [step.text for step in traces[0].steps if step.turn]
    assert len(answers) == 2 and set(answers) <= {"higher", "lower", "right"}
