"""Usual names of columns by their role, and how a user overrides them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from ponder.errors import UnknownName, UsageError
from ponder.measure.readers.row_layout import VALUES_COLUMN

# Names as `shapes.name` gives them; a dotted column is also known by its last part.
COLUMN_ALIASES: dict[str, tuple[str, ...]] = {
    "id": (
        "problem_id", "question_id", "task_id", "doc_id", "example_id", "instance_id", "prompt_id", "item_id",
        "unique_id", "uuid", "qid", "pid", "idx", "problem_idx", "question_idx", "problem_index",
        "orig_dset_idx", "id", "index", "ids", "problem_ids", "task_ids", "question_ids", "problem_name",
        "problem", "question", "prompt", "query", "input",
    ),
    "correct": (
        "correct", "is_correct", "is_corrects", "correctness", "corrects", "correctness_math_verify",
        "passed", "is_passed", "pass", "solved", "is_solved", "success", "successes", "exact_matches",
        "exact_match", "graded_list", "accs", "acc", "accuracy", "accuracy_reward", "is_right", "right",
        "verdict", "verdicts", "outcome", "outcomes", "grade", "grades", "judgement", "judgment",
        "plus_status", "base_status", "status", "result", "results", "raw_scored_generations", "label",
        "labels", "score", "scores", "reward", "rewards", "r", VALUES_COLUMN, "sample", "samples", "attempt",
        "attempts", "run", "runs", "trial", "trials",
    ),
    "answer": (
        "pred", "preds", "prediction", "predictions", "predicted", "predicted_answer", "pred_answer",
        "pred_answers", "extracted_answer", "extracted_answers", "extracted", "parsed_answer",
        "parsed_answers", "model_answer", "model_answers", "final_answer", "final_answers", "filtered_resps",
        "answers", "answer",
    ),
    "gold": (
        "gold", "gold_answer", "gt", "gt_answer", "ground_truth", "ground_truth_answer", "correct_answer",
        "target", "reference", "reference_answer", "expected", "expected_answer", "answer",
    ),
    "score": (
        "agg_scores", "rm_score", "rm_scores", "reward_score", "pred_score", "pred_scores", "verifier_score",
        "verifier_scores", "prm_score", "prm_scores", "orm_score", "orm_scores", "score", "scores", "reward",
        "rewards", "value", "confidence", "prob", "probability", "mean_logprob", "logprob",
        "cumulative_logprob",
    ),
    "tokens": (
        "completion_tokens", "output_tokens", "generated_tokens", "response_tokens", "num_tokens", "n_tokens",
        "token_count", "tokens", "completion_length", "response_length", "length", "lengths",
    ),
    "text": (
        "completion", "completions", "response", "responses", "generation", "generations", "raw_generations",
        "output", "outputs", "resps", "model_output", "solution", "solutions", "code_list", "code", "ys",
        "samples", "text", "texts", "content", "contents", "output_list",
    ),
    "question": ("question", "problem", "prompt", "query", "input", "instruction"),
    "n": (
        "n", "num_samples", "n_samples", "num_attempts", "n_attempts", "attempts", "trials", "num_trials",
        "n_trials", "num_runs", "n_runs", "num_completions", "num_generations", "total_samples", "total",
        "samples", "count",
    ),
    "c": (
        "c", "num_correct", "n_correct", "correct_count", "correctness_count", "num_passed", "n_passed",
        "passes", "successes", "num_solved", "num_successes", "n_successes", "num_success", "num_right",
        "total_correct", "pass_count", "passed_count", "success_count", "correct", "passed",
    ),
    "rate": ("pass_rate", "solve_rate", "success_rate", "accuracy", "acc"),
    "attempt": (
        "attempt", "attempt_id", "attempt_idx", "sample_id", "sample_idx", "sample_index", "sample", "trial",
        "trial_id", "rollout", "rollout_id", "completion_id", "completion_idx", "generation_id",
        "generation_idx", "repeat", "repeat_id", "try", "seed",
    ),
    "system": ("system", "model", "model_name", "model_id", "method", "strategy", "policy", "solver", "filter"),
    "task": ("task", "task_name", "dataset", "benchmark", "subset"),
    "version": ("version", "task_version", "task_hash"),
}  # fmt: skip

ALL_ALIASES = frozenset(n for names in COLUMN_ALIASES.values() for n in names)
LIST_ONLY_ALIASES = (
    VALUES_COLUMN,
    "sample",
    "samples",
    "attempt",
    "attempts",
    "run",
    "runs",
    "trial",
    "trials",
)  # else numbers of rows
# Words of a column's name that say "verdict" where no whole name does.
VERDICT_WORDS = frozenset((
    "acc", "accepted", "accuracy", "correct", "correctness", "equal", "graded", "hit", "match", "matched", "ok",
    "pass", "passed", "right", "solved", "success", "verified", "verify", "win", "won",
))  # fmt: skip
GENERIC_ID_NAMES = ("id", "idx", "index", "uuid")  # say nothing of what they number; within one of these, no problem
NON_PROBLEM_PREFIXES = frozenset((
    "provider", "model", "system", "generator", "author", "user", "run", "session", "request", "response", "completion",
    "output", "choice", "message", "usage", "config",
))  # fmt: skip
AMBIGUOUS_COUNT_NAMES = (
    "total",
    "count",
    "attempts",
    "trials",
    "samples",
)  # may count samples, and may count anything else
MAX_SYSTEMS, MAX_SYSTEM_NAME_CHARS = 64, 120  # systems in one log, and characters of a name: more is a text
FIRST_WEAK_VERDICT_ALIAS = COLUMN_ALIASES["correct"].index(
    "label"
)  # from here on a name says little: the values must be plainly right or wrong


@dataclass(frozen=True)
class ColumnMap:
    """Names of columns by role, for those that the rules shall not detect.

    Several names for `correct`, `answer`, `score` or `tokens` (comma-separated) are the attempts of a wide table.

    `right`: values that mean right. `systems`: columns that each hold one system's verdicts. `step_score_reduction`:
    how a list of step scores becomes one score. `duplicates`: a problem in several rows is an error, or its rows are
    attempts. `version`: none, where a column of that name is not the task's version.
    """

    id: str = ""
    correct: str = ""
    answer: str = ""
    gold: str = ""
    score: str = ""
    tokens: str = ""
    text: str = ""
    question: str = ""
    n: str = ""
    c: str = ""
    rate: str = ""
    attempt: str = ""
    system: str = ""
    task: str = ""
    version: str = ""
    right: str = ""
    systems: str = ""
    step_score_reduction: str = "min"
    duplicates: str = "refuse"

    def __post_init__(self) -> None:
        for choice, known in (("step_score_reduction", STEP_SCORE_REDUCTIONS), ("duplicates", ("refuse", "attempts"))):
            if getattr(self, choice) not in known:
                raise UsageError(f"{choice} is {getattr(self, choice)!r}; it is {' or '.join(known)}")

    @property
    def named_columns(self) -> frozenset[str]:
        """Every column that is named."""
        return frozenset(part for f in fields(self) for part in getattr(self, f.name).split(",") if part)

    @classmethod
    def from_flags(cls, settings: Sequence[str]) -> ColumnMap:
        """From `role=name` as a command line gives them."""
        known = [f.name for f in fields(cls)]
        given: dict[str, str] = {}
        for setting in settings:
            role, equals, column = setting.partition("=")
            if not equals or not column:
                raise UsageError(f"--column takes role=name (correct=passed), not {setting!r}")
            if role not in known:
                raise UnknownName("role of a column", role, known)
            given[role] = column
        return cls(**given)


STEP_SCORE_REDUCTIONS = ("min", "last", "mean", "product")
