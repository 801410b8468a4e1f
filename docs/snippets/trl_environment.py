"""An environment class in TRL's form, as it is: public methods are tools, `reward` is the reward."""

import tempfile

from ponder import RL, EpisodeTask, Sampling, ScratchModel, read_metrics


class Wordle:
    def reset(self, secret: str, **columns: object) -> str:
        self.secret, self.reward, self.guesses = secret, 0.0, 0
        return "Guess a word of five letters."

    def guess(self, word: str) -> str:
        """Guess the word. The answer has G for a letter in its place and Y for one elsewhere.

        Args:
            word: five letters
        """
        self.guesses += 1
        if self.guesses > 6:
            raise ValueError("Game over.")
        self.reward = float(word == self.secret)
        marks = zip(word, self.secret, strict=False)
        return "".join("G" if a == b else "Y" if a in self.secret else "X" for a, b in marks)


secrets = ["crane", "slate", "pilot", "mound", "angel", "brick", "chord", "dwarf", "eagle", "flint"]
rows = [{"prompt": "Play Wordle.", "secret": word} for word in secrets]

job = RL(
    task=EpisodeTask(environment=Wordle, data=rows, held_out_tenths=3, max_turns=7),
    model=ScratchModel("".join(map(chr, range(32, 127))) + "\n", width=32, layers=1, context=2048),
    template="{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    sampling=Sampling(max_tokens=32),
    problems_per_step=2,
    group_size=4,
    steps=1,
    preflight=False,
)

with tempfile.TemporaryDirectory() as run:
    job(run)  # a model from scratch calls nothing: give it one that can
    metrics = read_metrics(run)[-1]
    print({name: metrics[name] for name in ("reward", "num_turns/mean", "tools/call_frequency")})
