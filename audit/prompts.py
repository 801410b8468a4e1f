"""Prompts as they are sent, against prompts as they are shown; and whether any says twice, or against itself, how to
answer. With SmolLM2's own tokenizer and templates, and over HTTP against a server on this machine that records.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from audit.check_result import CheckResult
from ponder.cli import main
from ponder.cli.strategy_flags import strategy_from_flags
from ponder.errors import PonderError
from ponder.models import chat_templates
from ponder.models.load import load_policy, load_tokenizer
from ponder.models.tokenizer import Tokenizer
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.solve import try_solve
from ponder.reason.budget import Budget
from ponder.tasks import TASKS, Addition, DatasetTask
from ponder.types import Completion, Cost, Ids, Message, Problem, Sampling, ids

MODEL = "smollm2"
STRATEGIES = (
    "chain", "direct", "cot", "majority-vote", "self-refine", "tree-of-thoughts", "graph-of-thoughts", "token-control",
    "tool-use",
)  # fmt: skip
TEMPLATES = (None, "plain", "qa", "r1")
NEEDS_USER_DATA = (
    "questions",
    "columns",
    "reasoning-gym",
)  # tasks that are nothing without the user's own data or an extra
ANSWER_PLACES = ("\\boxed", "<answer>", "begins with ####", 'begins with "Answer:"', "in a ```python block")
R1_INSTRUCTION = chat_templates.render_chat("r1", []).partition("Assistant:")[0]


def check() -> Iterator[CheckResult]:
    tokenizer = load_tokenizer(MODEL)
    for name in TASKS:
        if name in NEEDS_USER_DATA:
            yield CheckResult(f"task {name}", None, "needs data or an extra of the user's own")
            continue
        try:
            yield _task(name, tokenizer)
        except PonderError as why:
            yield CheckResult(f"task {name}", None, str(why))
    with recording_server() as server:
        yield from _over_http(server)
    yield _plan()


def _task(name: str, tokenizer: Tokenizer) -> CheckResult:
    """Each strategy and template: what `ponder tasks` shows is what the policy is sent first, and nothing that it is
    sent contradicts itself."""
    looked, refused, wrong = 0, 0, []
    base = TASKS[name]()
    loaded = isinstance(base, DatasetTask)  # a file is read anew by every command
    ways, templates = (STRATEGIES[:3], (None, "r1")) if loaded else (STRATEGIES, TEMPLATES)
    for template in templates:
        known = tokenizer if template is None else chat_templates.with_chat_template(tokenizer, template)
        for way in ways:
            strategy, _, _ = strategy_from_flags(way)
            flags = [] if template is None else ["--template", template]
            text, why = _command("tasks", name, "--strategy", way, *flags, "--json")
            try:
                task = Evaluate(base, strategy=strategy, template=template).task
            except PonderError:
                refused += 1
                wrong += [] if why else [f"{way} with {template} is refused by eval, and shown by tasks"]
                continue
            problem = _first(task)
            scribe = RecordingPolicy(known)
            asyncio.run(try_solve(problem, strategy, scribe, budget=Budget(200)))
            looked += len(scribe.sent)
            if why or not scribe.sent:
                wrong.append(f"{way} with {template}: {why or 'nothing was sent'}")
                continue
            shown = json.loads(text)
            if known.decode(chat_templates.encode_chat(known, shown["messages"]), keep_special=True) != scribe.sent[0]:
                wrong.append(f"{way} with {template} shows another prompt than it sends")
            wrong += [f"{way} with {template}: {f}" for sent in scribe.sent for f in faults(sent, problem)]
    output = f"{looked} prompts by {len(ways)} strategies and {len(templates)} templates; {refused} pairs refused"
    return CheckResult(f"task {name}", not wrong, "; ".join([output, *dict.fromkeys(wrong)][:4]))


def _first(task: Any) -> Problem:
    try:
        result: Problem = task.train[0]
    except PonderError:  # a set to measure with only
        result = task.test[0]
    return result


def faults(sent: str, problem: Problem) -> list[str]:
    """What a prompt says twice or against itself, the question aside."""
    text = sent.replace(problem.bare_question, "").replace(R1_INSTRUCTION, "")
    result = ["to think is said twice"] if text.count("tep by step") > 1 else []
    result += ["to think, and not to"] if "without explanation" in text and "tep by step" in text else []
    places = [place for place in ANSWER_PLACES if place in text]
    if (
        R1_INSTRUCTION in sent
        and "<answer>" not in places
        and [p for p in places if "python" not in p and "Answer:" not in p]
    ):
        result.append("the template and the question name different places for the answer")
    return result + (["several places for the answer"] if len(places) > 1 else [])


@dataclass
class RecordingPolicy:
    """A policy with a real tokenizer and no model: it keeps what it is sent and says 42."""

    tokenizer: Tokenizer
    sent: list[str] = field(default_factory=list)

    def encode(self, messages: Sequence[Message]) -> Ids:
        return chat_templates.encode_chat(self.tokenizer, messages)

    def tokens(self, text: str) -> Ids:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def text(self, tokens: Ids) -> str:
        return self.tokenizer.decode(tokens.tolist(), keep_special=True)

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        self.sent.append(self.text(prefix))
        tokens = self.tokens("Answer: 42")
        cost = Cost(generated_tokens=len(tokens))
        return [Completion("Answer: 42", ids(tokens), np.zeros(len(tokens), np.float32), "eos", cost=cost)] * n


class RecordingServer(ThreadingHTTPServer):
    """Enough of OpenAI's protocol to be asked, on this machine only. It keeps what it is sent, and says 42."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[dict[str, Any]] = []

    @property
    def model(self) -> str:
        return f"openai:http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: RecordingServer
    timeout = 10

    def do_GET(self) -> None:
        self._reply("application/json", json.dumps({"data": [{"id": "recorder"}]}))

    def do_POST(self) -> None:
        body = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), 1 << 22))
        asked = json.loads(body)
        self.server.received.append(asked)
        chats = "messages" in asked
        text = [
            {"choices": [{"delta": {"content": "42"}} if chats else {"text": "42"}]},
            {"choices": [{"delta": {}, "finish_reason": "stop"} if chats else {"text": "", "finish_reason": "stop"}]},
        ]
        events = [*map(json.dumps, text), "[DONE]"]
        self._reply("text/event-stream", "".join(f"data: {event}\n\n" for event in events))

    def _reply(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def recording_server() -> Iterator[RecordingServer]:
    server = RecordingServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _over_http(server: RecordingServer) -> Iterator[CheckResult]:
    """`ponder eval` and `ponder solve` against a server: what it heard, what was shown, how 42 was judged."""
    for name, way in ((n, w) for n in ("addition", "sorting", "gsm8k") for w in ("chain", "direct", "cot")):
        title = f"eval {name} --strategy {way} over HTTP"
        with tempfile.TemporaryDirectory(prefix="ponder-audit-") as folder:
            server.received.clear()
            run = ["--run", str(Path(folder) / "run"), "--limit", "1", "--max-tokens", "8", "--json"]
            text, why = _command("eval", name, "--model", server.model, "--strategy", way, *run)
            if why:
                missing = "PONDER_DATA" in why
                yield CheckResult(title, None if missing else False, why)
                continue
            received = server.received[0]["messages"][-1]["content"]
            done = next(row for row in map(json.loads, text.splitlines()) if "prompt" in row)
            task = Evaluate(TASKS[name](), strategy=strategy_from_flags(way)[0]).task
            same = received == task.test[0].question and received in done["prompt"]
            yield CheckResult(title, same and not faults(received, task.test[0]), f"heard: {received[-90:]!r}")
    for way in ("chain", "direct", "cot"):
        server.received.clear()
        text, why = _command(
            "solve", "What is 6 x 7?", "--model", server.model, "--strategy", way, "--show", "tree", "--json"
        )
        received = server.received[0]["messages"][-1]["content"] if server.received else ""
        shown = [json.loads(line) for line in text.splitlines()]
        trace = next((row["trace"] for row in shown if "trace" in row), {"steps": [{"text": None}]})
        fine = not why and received == trace["steps"][0]["text"] and shown[-1].get("answer") == "42"
        yield CheckResult(f"solve --strategy {way} over HTTP", fine, why or f"heard: {received!r}")


def _plan() -> CheckResult:
    """The prompt that `ponder plan train` shows is the one that the run's first problems are asked with."""
    flags = ["--model", MODEL, "--group-size", "2", "--problems-per-step", "2", "--max-tokens", "8"]
    flags += ["--sample-groups", "0", "--dry-run-steps", "0"]
    text, why = _command("plan", "train", "addition", *flags, "--json")
    if not text:
        return CheckResult("plan train addition", False, why)
    shown = "".join(run["text"] for run in json.loads(text.splitlines()[-1])["prompt"] if run["kind"] == "prompt")
    policy = load_policy(MODEL)
    task = RL(Addition()).task
    sent = {policy.tokenizer.decode(policy.encode(task.train[i].messages), keep_special=True) for i in range(20_000)}
    return CheckResult("plan train addition", shown in sent, f"shown: {shown[-90:]!r}")


def _command(*argv: str) -> tuple[str, str]:
    """What a command prints, and why it failed."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(list(argv))
        except SystemExit as leave:
            code = int(leave.code or 0)
    return out.getvalue(), "" if code == 0 else (err.getvalue().strip() or f"exit code {code}")
