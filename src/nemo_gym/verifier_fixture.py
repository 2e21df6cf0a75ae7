"""Door: cases with known rewards that a verifier is held to."""

from __future__ import annotations

from nemo_gym.servers.verifier_fixture import (
    VerifierCase,
    VerifierCaseResult,
    VerifierFixture,
    VerifierFixtureError,
    exercise_verifier_fixture,
)

__all__ = [
    "VerifierCase",
    "VerifierCaseResult",
    "VerifierFixture",
    "VerifierFixtureError",
    "exercise_verifier_fixture",
]
