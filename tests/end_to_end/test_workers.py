"""A server with several worker processes: started with others, capturing, and gone afterwards."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from end_to_end_support import Gym, servers_of, wait_until

from nemo_gym.capture import CaptureStore

CALLS = 24
ANSWER = {"id": "r", "object": "response", "created_at": 1, "model": "any", "status": "completed", "output": []}


class Provider(BaseHTTPRequestHandler):
    """Answers every call the same."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps(ANSWER).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()


def test_the_workers_of_a_model_server_capture_into_one_file(gym: Gym, provider: str) -> None:
    captures = gym.folder / "model-calls"
    process = gym.start(
        *("--resources-server", "ledger", "--model-type", "openai_model", "--model-url", provider),
        *(
            "--model",
            "any",
            "--model-api-key",
            "none",
            "++policy_model.responses_api_models.openai_model.wire=responses",
        ),
        "++policy_model.responses_api_models.openai_model.num_workers=2",
        *("+observability_enabled=true", f"+model_call_capture_dir={captures}"),
    )
    listed = json.loads(gym.run("env", "status", "--json", gym.head).stdout)
    url = next(server["url"] for server in listed if server["name"] == "policy_model")

    def call(number: int) -> str:
        body = json.dumps({"model": "any", "input": f"question {number}"}).encode()
        request = urllib.request.Request(
            f"{url}/ng-rollout/0-0/v1/responses", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.headers["x-ng-model-call-id"])

    with ThreadPoolExecutor(8) as callers:
        ids = set(callers.map(call, range(CALLS)))
    recorded = CaptureStore(captures).read("0-0")
    assert {line["model_call_id"] for line in recorded} == ids
    assert len(recorded) == CALLS
    process.terminate()
    process.wait(30)
    wait_until(lambda: servers_of(gym) == [], what="nothing is left behind")


def test_a_server_that_makes_no_app_for_its_workers_is_told_how(gym: Gym) -> None:
    done = gym.run(
        *("env", "start", "--resources-server", "ledger", "--model-type", "scripted_model", gym.head),
        "++policy_model.responses_api_models.scripted_model.num_workers=2",
        code=1,
    )
    assert "elif is_nemo_gym_fastapi_entrypoint(__file__): app = ScriptedModel.run_webserver()" in done.stderr
