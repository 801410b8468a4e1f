"""The commands: what each does, where its function is, and the overview of `ponder --help`."""

from __future__ import annotations

from typing import NamedTuple


class CommandSpec(NamedTuple):
    target: str  # module:function
    group: str
    summary: str
    raw_args: bool = False  # takes the arguments as they are: its flags depend on them


COMMANDS = {
    "demo": CommandSpec(
        "ponder.cli.demo:demo", "start", "train a small model on this machine and see what it learned", raw_args=True
    ),
    "doctor": CommandSpec("ponder.cli.doctor:doctor", "start", "what this machine can do, and what is missing"),
    "tasks": CommandSpec("ponder.cli.tasks:tasks", "start", "which tasks there are, with a problem of each"),
    "strategies": CommandSpec("ponder.cli.strategies:strategies", "start", "strategies, presets, and efforts"),
    "completion": CommandSpec("ponder.cli.completion:completion", "start", "completion for bash, zsh or fish"),
    "plan": CommandSpec(
        "ponder.cli.plan:plan", "train", "before a run: its cost, prompt, pass rate, and checks", raw_args=True
    ),
    "attack": CommandSpec("ponder.cli.attack:attack", "train", "what cheap answers earn under a task's reward"),
    "run": CommandSpec("ponder.cli.job_commands:run", "train", "run a recipe, or a run directory again", raw_args=True),
    "train": CommandSpec("ponder.cli.job_commands:train", "train", "reinforcement learning on a task"),
    "sft": CommandSpec(
        "ponder.cli.job_commands:sft", "train", "supervised fine-tuning on a task or a file of conversations"
    ),
    "offline": CommandSpec("ponder.cli.job_commands:offline", "train", "reinforcement learning on recorded episodes"),
    "reward": CommandSpec("ponder.cli.reward_models:reward", "train", "train a reward, process reward or value model"),
    "cluster": CommandSpec("ponder.cli.cluster:cluster", "train", "Ray on this machine, for jobs with --cluster"),
    "export": CommandSpec("ponder.cli.export:export", "train", "write a model as a Hugging Face folder or a GGUF file"),
    "solve": CommandSpec("ponder.cli.solve:solve", "think", "ask a model a question, and think by a strategy"),
    "serve": CommandSpec("ponder.cli.serve:serve", "think", "serve models over HTTP, as OpenAI's API"),
    "chat": CommandSpec("ponder.cli.chat:chat", "think", "talk with a model, here or behind a server"),
    "eval": CommandSpec("ponder.cli.job_commands:evaluate", "think", "measure a model on a task's held-out problems"),
    "data": CommandSpec("ponder.cli.data:data", "data", "public data sets: where they come from, and fetch one"),
    "play": CommandSpec("ponder.cli.play:play", "think", "let players play a game: a model, a search, or you"),
    "problems": CommandSpec(
        "ponder.cli.problems:problems", "data", "make problems, and keep those of fitting difficulty"
    ),
    "collect": CommandSpec(
        "ponder.cli.job_commands:collect", "data", "a model's answers to training problems, to learn from"
    ),
    "label": CommandSpec("ponder.cli.reward_models:label", "data", "label the steps of answers by completing them"),
    "harvest": CommandSpec("ponder.cli.harvest:harvest", "data", "the traces of runs as data to learn from"),
    "contamination": CommandSpec(
        "ponder.cli.contamination:contamination", "data", "is an evaluation in the training data?"
    ),
    "runs": CommandSpec("ponder.cli.runs:runs", "measure", "run directories: state, best value, size and age"),
    "view": CommandSpec("ponder.cli.view:view", "measure", "runs in a browser: curves, rollouts, trees, comparisons"),
    "traces": CommandSpec("ponder.cli.traces:traces", "measure", "what the model wrote in a run, with verdicts"),
    "compare": CommandSpec("ponder.cli.compare:compare", "measure", "runs and logs side by side, with intervals"),
    "plot": CommandSpec("ponder.cli.plot:plot", "measure", "figures of runs and logs, with their numbers"),
    "replay": CommandSpec("ponder.cli.replay:replay", "measure", "score and decide stored traces again, another way"),
    "reflect": CommandSpec(
        "ponder.cli.reflect:reflect", "measure", "where a run's answers doubt and correct themselves"
    ),
    "book": CommandSpec("ponder.cli.book:book", "measure", "claims of the field's papers, each made from scratch"),
    "processbench": CommandSpec(
        "ponder.cli.reward_models:processbench", "measure", "does a process reward model find the first wrong step"
    ),
}

DEMO_RECIPE = "addition"
DEMO_DESCRIPTION = """\
Train a small model on this machine and see what it learned: its accuracy on held-out problems before and after,
the reward curve, and what it writes. An interrupted demo resumes with the same command. The flags are those of this
recipe:"""


def commands_help() -> str:
    """All commands, by group."""
    width = max(map(len, COMMANDS))
    rows: list[str] = []
    for group in dict.fromkeys(command.group for command in COMMANDS.values()):
        own = [(name, command) for name, command in COMMANDS.items() if command.group == group]
        rows += [f"{group}:", *(f"  {name:<{width}} {command.summary}" for name, command in own), ""]
    listed = "\n".join(rows)
    return f"""\
ponder trains, runs and measures reasoning language models.

usage: ponder COMMAND ...

{listed}
`ponder COMMAND --help` lists a command's flags; `ponder run RECIPE --help` a recipe's. Settings of a task, a strategy
or an algorithm are dotted: --task.digits 3 --strategy.width 4 --algorithm.clip_high 0.3.
Programs that a model writes run in a jail; where none can be built they are refused, or run without one under
--unsafe-sandbox. Code that a run directory names, beside ponder's own, is loaded only under --trust.
A stopped run resumes when the same command is given again."""
