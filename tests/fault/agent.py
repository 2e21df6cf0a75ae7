"""An agent as a process of its own: `python agent.py PORT LOG`. Each rollout takes 5 to 50 ms.

What it receives is in LOG before the rollout begins, one id per line, so that a kill loses no knowledge of it.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from aiohttp import web


def main(port: int, log: str) -> None:
    received = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def run(request: web.Request) -> web.Response:
        row = await request.json()
        attempt = row.get("_ng_attempt_index", 0)
        os.write(received, f"{row['_ng_task_index']}-{row['_ng_rollout_index']} {attempt}\n".encode())
        await asyncio.sleep(random.uniform(0.005, 0.05))
        return web.json_response({**row, "reward": row["_ng_task_index"] % 2, "text": "x" * 200})

    app = web.Application()
    app.add_routes([web.post("/run", run)])
    print("ready", flush=True)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
