"""Models as services: policies and scorers of other processes do what they do in this one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from fakes import run_async
from models.policy_contract import TOKENIZER, PolicyContract, small_net
from ponder.cli import main
from ponder.errors import ModelError, PonderError, UnknownName, UsageError
from ponder.models.base_policy import BasePolicy
from ponder.models.guides import load_guide
from ponder.models.load import load_inference_policy
from ponder.models.load_scorer import load_scorer
from ponder.models.openai_policy import OpenAIPolicy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.remote_head_reader import RemoteHeadReader
from ponder.models.reward_models import PRM, ValueModel
from ponder.pipelines.solve import solve
from ponder.protocols import Scorer, Strategy
from ponder.reason.operators.cut import parse_cut
from ponder.reason.strategies import MCTS, BeamSearch, BestOfN
from ponder.runs import read_traces
from ponder.serve.guard import GuardSettings
from ponder.serve.load_models import load_served_models
from ponder.serve.served_models import ServedModel, ServedModels
from ponder.types import Problem, Sampling, Trace, user_messages
from serve.live_server import LiveServer, live_server
from serve.served_folders import save_policy, save_scorer
from serve.served_process import served_processes

HERE: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
DRAW = Sampling(max_tokens=40)
CUT = parse_cut("tokens:6")
SEARCHES: dict[str, Strategy] = {
    "beam-search": BeamSearch(n=8, beam_width=2, sampling=DRAW, cut=CUT),
    "mcts": MCTS(simulations=12, sampling=DRAW, cut=CUT),
    "best-of-n": BestOfN(n=6, sampling=DRAW),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("models")
    return {
        "policy": save_policy(home / "policy"),
        "value": save_scorer(home / "value"),
        "process": save_scorer(home / "process", "process"),
    }


@pytest.fixture(scope="module")
def addresses(folders: dict[str, Path]) -> Iterator[dict[str, str]]:
    """A process for the policy, and one for both scorers."""
    exact = ("--dtype", "float32")
    first, second = (folders["policy"], *exact), (folders["value"], folders["process"], *exact)
    with served_processes(first, second) as (policy, scorers):
        yield {"policy": f"openai:{policy}", **{name: f"reward:{scorers}#{name}" for name in ("value", "process")}}


def search(strategy: Strategy, policy: BasePolicy, guide: Scorer | None, seed: int) -> Trace:
    policy.reseed(seed)
    problem = Problem("question", user_messages("the cat sat"))
    return run_async(solve(problem, strategy, policy, guide=guide), 120)


@pytest.mark.parametrize("scorer", ["value", "process"])
@pytest.mark.parametrize("name", SEARCHES)
def test_search_over_two_servers_gives_the_tree_of_one_process(
    name: str, scorer: str, folders: dict[str, Path], addresses: dict[str, str]
) -> None:
    """Equal to the token: ids, texts, parents, stops, pruned branches and the choice; numbers to float32's rounding."""
    local, guide = load_inference_policy(str(folders["policy"]), **HERE), load_scorer(str(folders[scorer]), **HERE)
    here = search(SEARCHES[name], local, guide, 3)
    remote = load_inference_policy(addresses["policy"])
    there = search(SEARCHES[name], remote, load_guide(addresses[scorer], remote), 3)
    assert_same_tree(here, there)
    assert here.cost.generated_tokens == there.cost.generated_tokens > 50


def assert_same_tree(one: Trace, other: Trace) -> None:
    assert len(one.steps) == len(other.steps) and one.chosen == other.chosen
    for mine, theirs in zip(one.steps, other.steps, strict=True):
        for field in ("parent", "text", "stop", "visits", "cites", "pruned", "last", "meta", "version"):
            assert getattr(mine, field) == getattr(theirs, field), field
        assert mine.token_ids.tolist() == theirs.token_ids.tolist()
        if mine.logprobs is not None and theirs.logprobs is not None:
            np.testing.assert_allclose(mine.logprobs, theirs.logprobs, rtol=1e-5, atol=1e-5)
        assert (mine.logprobs is None) == (theirs.logprobs is None)
        assert mine.value == pytest.approx(theirs.value, abs=1e-5)
        assert mine.prior == pytest.approx(theirs.prior, abs=1e-5)
        assert mine.scores.keys() == theirs.scores.keys()
        for name, score in mine.scores.items():
            assert score.value == pytest.approx(theirs.scores[name].value, abs=1e-5)
            assert score.steps == pytest.approx(theirs.scores[name].steps, abs=1e-5)


def test_another_seed_gives_another_tree(folders: dict[str, Path], addresses: dict[str, str]) -> None:
    """So that equal trees above are not equal whatever was asked."""
    remote = load_inference_policy(addresses["policy"])
    guide = load_guide(addresses["value"], remote)
    one, other = (search(SEARCHES["best-of-n"], remote, guide, seed) for seed in (1, 2))
    with pytest.raises(AssertionError):
        assert_same_tree(one, other)


def test_command_line_search_over_two_servers(
    folders: dict[str, Path], addresses: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    how = ["solve", "the cat", "--strategy", "beam-search", "--strategy.cut", "tokens:6", "--n", "4"]
    how += ["--max-tokens", "30", "--temperature", "1", "--seed", "7", "--show", "tree"]
    assert main([*how, "--model", str(folders["policy"]), "--guide", f"reward:{folders['value']}", "--device", "cpu",
                 "--dtype", "float32"]) == 0  # fmt: skip
    here = capsys.readouterr().out.partition("cost:")[0]
    assert main([*how, "--model", addresses["policy"], "--guide", addresses["value"]]) == 0
    assert capsys.readouterr().out.partition("cost:")[0] == here


def test_evaluation_over_two_servers_equals_one_process(
    folders: dict[str, Path], addresses: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole job: its run directory has the same traces, and resumes."""
    how = ["eval", "addition", "--strategy", "best-of-n", "--n", "3", "--limit", "2", "--max-tokens", "20"]
    here = ["--model", str(folders["policy"]), "--guide", f"reward:{folders['value']}", "--device", "cpu"]
    there = ["--model", addresses["policy"], "--guide", addresses["value"]]
    for name, models in (("here", [*here, "--dtype", "float32"]), ("there", there), ("there", there)):
        assert main([*how, *models, "--run", str(tmp_path / name)]) == 0, capsys.readouterr().err
    assert "answer:" in capsys.readouterr().out.rpartition("prompt")[2], "the prompt is shown as text"
    one, other = ({t.problem.id: t for _, t in read_traces(tmp_path / name)} for name in ("here", "there"))
    assert one.keys() == other.keys() and len(one) == 2
    for problem, trace in one.items():
        assert_same_tree(trace, other[problem])


# one server with a policy and scorers over its weights


@pytest.fixture(scope="module")
def shared(folders: dict[str, Path]) -> Iterator[LiveServer]:
    with live_server(load_served_models([str(path) for path in folders.values()], **HERE)) as server:
        yield server


def test_policy_and_heads_share_one_engine(shared: LiveServer, folders: dict[str, Path]) -> None:
    models = shared.service.models
    policy = models.models["policy"].policy
    assert all(scorer.reader.engine_policy is policy for scorer in models.scorers.values())  # type: ignore[attr-defined]
    assert set(models.models["policy"].guides) == {"likelihood", "p_true", "value", "process"}
    listed = {entry["id"]: entry for entry in shared.get("/v1/models").json["data"]}
    assert listed["value"]["head"] == {"predicts": "value", "separator": "\n"} and "head" not in listed["policy"]


def test_shared_server_gives_the_tree_of_one_process(shared: LiveServer, folders: dict[str, Path]) -> None:
    local = load_inference_policy(str(folders["policy"]), **HERE)
    here = search(SEARCHES["mcts"], local, load_guide(f"reward:{folders['value']}", local, None, "cpu", "float32"), 5)
    remote = load_inference_policy(f"openai:{shared.url}")
    there = search(SEARCHES["mcts"], remote, load_guide(f"reward:{shared.url}#value", remote), 5)
    assert_same_tree(here, there)
    assert here.cost.scorer_tokens == there.cost.scorer_tokens


def test_a_request_names_a_served_guide(shared: LiveServer) -> None:
    strategy = {"name": "best-of-n", "n": 4, "guide": "value"}
    reply = shared.chat("the cat", "policy", strategy=strategy, max_completion_tokens=200, seed=1)
    assert reply.status == 200 and reply.json["usage"]["search"]["scorer_tokens"] > 0


def test_scorers_load_by_name(shared: LiveServer, folders: dict[str, Path]) -> None:
    process = load_guide(f"reward+product:{shared.url}#process", None)
    assert isinstance(process, PRM) and process.reduce == "product"
    assert isinstance(load_scorer(f"{shared.url}#value"), ValueModel)
    with pytest.raises(UsageError, match="2 scorers; name one"):
        load_scorer(shared.url)
    with pytest.raises(UnknownName):
        load_scorer(f"{shared.url}#nobody")
    with pytest.raises(UsageError, match="device"):
        load_scorer(f"{shared.url}#value", "cpu")
    with pytest.raises(UsageError, match="URL#MODEL"):
        load_scorer(f"{shared.url}?tokenizer=x#value")
    with pytest.raises(UsageError, match="is a scorer"):
        load_inference_policy(f"openai:{shared.url}#value")


def test_scorer_refuses_another_tokenizer(shared: LiveServer) -> None:
    guide = load_scorer(f"{shared.url}#value")
    trace = search(BestOfN(n=2, sampling=DRAW), PonderPolicy(small_net(), TOKENIZER), guide, 1)
    trace.steps[1] = replace(trace.steps[1], text="another text")
    (score,) = run_async(guide(trace, [1]))
    assert score.value is None and "another tokenizer" in score.reason


def test_server_with_scorers_only(folders: dict[str, Path]) -> None:
    with live_server(load_served_models([str(folders["value"])], **HERE)) as server:
        assert isinstance(load_scorer(server.url).reader, RemoteHeadReader)
        with pytest.raises(UsageError, match="serves scorers only"):
            load_inference_policy(f"openai:{server.url}")
        assert server.chat("a", "value").status == 404


def test_server_without_scorers() -> None:
    with live_server() as server, pytest.raises(UsageError, match="serves no reward"):
        load_scorer(server.url)


def test_key_of_a_scorer_is_sent_and_never_shown(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    models = load_served_models([str(folders["value"])], **HERE)
    with live_server(models, guard=GuardSettings(api_keys=("top-secret",))) as server:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        with pytest.raises(PonderError, match="OPENAI_API_KEY"):
            load_scorer(server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "top-secret")
        guide = load_scorer(server.url)
        values, cost = run_async(guide.reader(TOKENIZER.encode("the cat"), [0, 1]))
        assert len(values) == 2 and cost.scorer_tokens > 0
        with pytest.raises(PonderError) as error:
            run_async(guide.reader(TOKENIZER.encode("the cat"), [0, 10_000]))
        assert "positions" in str(error.value) and "top-secret" not in str(error.value)


def test_weight_versions_reach_the_client() -> None:
    policy = PonderPolicy(small_net(), TOKENIZER)
    with live_server(ServedModels([ServedModel("small", policy)])) as server:
        client = load_inference_policy(f"openai:{server.url}")
        policy.version = 7
        (completion,) = run_async(client.generate(TOKENIZER.encode("a"), Sampling(max_tokens=3)))
        assert completion.version == 7


def test_names_of_served_models(folders: dict[str, Path]) -> None:
    models = load_served_models([f"base={folders['policy']}", str(folders["value"])], **HERE)
    assert list(models.models) == ["base"] and list(models.scorers) == ["value"]
    with pytest.raises(UsageError, match="two models are named 'a'"):
        load_served_models([f"a={folders['policy']}", f"a={folders['value']}"], **HERE)
    with pytest.raises(UsageError, match="NAME=MODEL"):
        load_served_models([f"={folders['policy']}"], **HERE)
    with pytest.raises((ModelError, UsageError)):
        load_served_models(["nobody"], **HERE)


class TestPonderServer(PolicyContract):
    """The contract of every policy, over ponder's own server."""

    @pytest.fixture(scope="class")
    @classmethod
    def policy(cls) -> Iterator[BasePolicy]:
        models = ServedModels([ServedModel("small", PonderPolicy(small_net(), TOKENIZER))])
        with live_server(models) as server:
            yield OpenAIPolicy.connect(server.url)
