"""Which runs of agents docs/results.py does, and how docs/results.md shows them."""

CALCULATOR = "calculator"
AGENT_RUNS: dict[str, tuple[str, ...]] = {
    "tiny": ("agent --task grid-walk", "agent --task mastermind", "agent --task alphabet-sort", CALCULATOR),
    "smollm2": ("agent --task grid-walk", "agent --task alphabet-sort", "agent --task sql"),
}
AGENTS_TRIED: dict[str, tuple[str, ...]] = {"tiny": ()}
AGENT_ROWS = (  # a run, what its row is called, the stage it is measured at, and what it is to improve on
    ("agent --task grid-walk", "grid-walk", "after", "before"),
    ("agent --task mastermind", "mastermind", "after", "before"),
    ("agent --task alphabet-sort", "alphabet-sort", "after", "before"),
    ("agent --task sql", "sql", "after", "before"),
    (CALCULATOR, "with a calculator: cold start, GRPO", "tool-accuracy", "tool-start-accuracy"),
    (CALCULATOR, "without: cold start, GRPO", "plain-accuracy", "plain-start-accuracy"),
    (CALCULATOR, "a vote without, one answer with", "tool-accuracy", "plain-vote-accuracy"),
)

ABOUT_AGENTS = """\
Each run begins with its own cold start on the environment's gold play and goes on by GRPO on the reward of whole
episodes ([agent.py](../recipes/agent.py)). The share is the mean reward of four episodes of each held-out problem at
temperature 1. Tokens are those of GRPO and, of those trained, the cold start."""

ABOUT_CALCULATOR = """\
Arithmetic of three numbers up to 99 with and without a calculator ([calculator.py](../recipes/calculator.py)). Without
it GRPO has 16 times as many answers in each step, and 16 answers vote at the end, so that both have about as many
sampled tokens."""
