"""Train an agent that only knows a server's address: it plays, and says what each episode earned."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from openai import OpenAI

from ponder import GRPO, AdamW, FineTune, OfflineRL, ScratchModel


def play(client: OpenAI, number: int) -> float:
    """The agent asks for a digit, then for a higher or a lower one."""
    episode = f"game-{number}"
    client = client.with_options(default_headers={"x-ponder-episode": episode})  # one episode

    def ask(*texts: str) -> str:
        talk = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
        reply = client.chat.completions.create(model="agent", messages=talk, max_tokens=1, seed=number)
        return reply.choices[0].message.content

    first, wish = ask("?"), ">" if number % 2 else "<"
    second = ask("?", first, wish)
    good = (first + second).isdigit() and (second > first if wish == ">" else second < first)
    client.post(f"/episodes/{episode}", body={"reward": float(good)}, cast_to=object)  # what it earned
    return float(good)


@contextmanager
def serve(model: str, traces: str):
    """A server that records what the agent does."""
    command = [sys.executable, "-m", "ponder", "serve", f"agent={model}", "--traces", traces]
    with subprocess.Popen([*command, "--port", "8124"], stdout=subprocess.PIPE, text=True) as server:
        server.stdout.readline()  # serving agent at http://127.0.0.1:8124/v1
        yield OpenAI(base_url="http://127.0.0.1:8124/v1", api_key="none")
        server.terminate()


def mean_reward(model: str, traces: str, episodes: int) -> float:
    with serve(model, traces) as client, ThreadPoolExecutor(8) as pool:
        return sum(pool.map(lambda number: play(client, number), range(episodes))) / episodes


# A small model to begin with, which has seen the digits and nothing of the game.
digits = [json.dumps({"prompt": "?", "completion": digit}) for digit in "0123"]
Path("digits.jsonl").write_text("\n".join(digits))
start = FineTune(
    "digits.jsonl",
    ScratchModel("0123?<>", width=32, layers=2, heads=2),
    template="{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
    optimizer=AdamW(lr=1e-2),
    steps=30,
    dtype="float32",
)
start("runs/start")

before = mean_reward("runs/start", "runs/played", 160)
job = OfflineRL(
    data=("runs/played",),
    model="runs/start",
    algorithm=GRPO(kl=None, clip_high=5.0),  # what paid may become much likelier
    optimizer=AdamW(lr=3e-3),
    steps=100,
    dtype="float32",
)
job("runs/agent")
after = mean_reward("runs/agent", "runs/played-again", 160)
print(f"reward {before:.2f} -> {after:.2f}")
