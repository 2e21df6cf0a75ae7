"""Door: asking a model that judges."""

from __future__ import annotations

from nemo_gym.servers.judging import JudgeError, call_judge, judge_failsafe, reraise_judge_errors

__all__ = ["JudgeError", "call_judge", "judge_failsafe", "reraise_judge_errors"]
