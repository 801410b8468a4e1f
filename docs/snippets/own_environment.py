"""An environment of your own, in which a small model learns to find a number by asking."""

import tempfile
from dataclasses import dataclass

from ponder import RL, Action, AdamW, EpisodeTask, Problem, Sampling, ScratchModel, Turn, read_metrics


@dataclass
class Guess:
    """Find a digit below 4. Each wrong guess is answered: higher or lower."""

    secret: int = 0
    turns: int = 0

    def reset(self, problem: Problem, seed: int) -> Turn:
        self.secret = seed % 4
        return Turn()

    def act(self, action: Action) -> Turn:
        self.turns += 1
        guess = int(action.text) if action.text.isdigit() else -1
        if guess == self.secret:
            return Turn(reward=1.0, done=True, reason=f"found in {self.turns}")
        if self.turns == 2:
            return Turn(reward=0.0, done=True, reason="not found")
        return Turn(({"role": "user", "content": ">" if self.secret > guess else "<"},))


job = RL(
    task=EpisodeTask(environment=Guess, prompt="?", max_turn_tokens=1),
    model=ScratchModel("0123?<>", width=32, layers=2, heads=2),
    template="{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
    sampling=Sampling(max_tokens=2),
    optimizer=AdamW(lr=3e-3),
    steps=25,
    problems_per_step=16,
    dtype="float32",
)

with tempfile.TemporaryDirectory() as run:
    job(run)
    rewards = [step["reward"] for step in read_metrics(run)]
    print(f"reward {rewards[0]:.2f} -> {rewards[-1]:.2f}")
