"""The model of the conformance scenarios: plays their scripts, and testifies to what it was asked and answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from nemo_gym.builtin.responses_api_models.scripted_model.app import ScriptedModel, ScriptedModelConfig
from nemo_gym.builtin.responses_api_models.scripted_model.script import Chosen, Outcome
from nemo_gym.dialects import Dialect
from nemo_gym.records import codec
from nemo_gym.servers.upstream import UpstreamError
from nemo_gym.testing.witness import MODEL_CALL, WitnessFile


class ConformanceModelConfig(ScriptedModelConfig):
    """Where to testify."""

    witness_fpath: str


class ConformanceModel(ScriptedModel):
    """A scripted model that writes down each exchange, whatever the server around it records."""

    config: ConformanceModelConfig

    async def _play(self, dialect: Dialect, request: Request, asked: dict[str, Any], body: dict[str, Any]) -> Any:
        try:
            answer = await super()._play(dialect, request, asked, body)
        except UpstreamError as error:
            self._testify(request, body, status=error.status, response=None)
            raise
        outcome: Outcome = request.state.played[1]
        if outcome.cut_after_events is None:
            self._testify(request, body, status=200, response=answer if isinstance(answer, dict) else None)
            return answer
        self._testify(request, body, status=200, response=None, cut=True)
        return answer if isinstance(answer, Response) else _cut(codec.encode(answer))

    def _outcome(self, request: Request, chosen: Chosen, asked: dict[str, Any]) -> Outcome:
        outcome = super()._outcome(request, chosen, asked)
        request.state.played = (chosen.script.name, outcome)
        return outcome

    def _testify(
        self, request: Request, body: dict[str, Any], *, status: int | None, response: Any, cut: bool = False
    ) -> None:
        name, outcome = getattr(request.state, "played", ("unknown", None))
        WitnessFile(self.config.witness_fpath).write(
            MODEL_CALL,
            name.partition(":")[0],
            request=body,
            status=status,
            finished=status == 200 and not cut,
            streamed=bool(body.get("stream")),
            response_id=response.get("id") if response is not None else None,
            reports_usage=outcome is not None and outcome.usage is not None,
        )


def _cut(body: bytes) -> Response:
    """Return an answer whose connection ends in the middle of the body."""

    async def half() -> AsyncIterator[bytes]:
        yield body[: len(body) // 2]
        raise ConnectionResetError("the scenario cuts the answer here")

    headers = {"content-length": str(len(body))}
    return StreamingResponse(half(), media_type="application/json", headers=headers)


if __name__ == "__main__":
    ConformanceModel.run_webserver()
