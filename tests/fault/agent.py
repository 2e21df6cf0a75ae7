"""An agent as a process of its own: `python agent.py PORT LOG LIMIT`. Each rollout takes 5 to 50 ms.

What it receives is in LOG before the rollout begins, one id per line, so that a kill loses no knowledge of it. The
file LIMIT holds a number: how many of all that ever arrive are worked on. The rest wait, so that a collector which
should be killed in the middle of its work cannot come to the end of it.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from aiohttp import web


def main(port: int, log: str, limit: str) -> None:
    received = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    arrived = Path(log).read_bytes().count(b"\n")

    async def run(request: web.Request) -> web.Response:
        nonlocal arrived
        row = await request.json()
        attempt = row.get("_ng_attempt_index", 0)
        os.write(received, f"{row['_ng_task_index']}-{row['_ng_rollout_index']} {attempt}\n".encode())
        arrived += 1
        number = arrived
        while number > int(Path(limit).read_text()):
            await asyncio.sleep(0.01)
        await asyncio.sleep(random.uniform(0.005, 0.05))
        return web.json_response({**row, "reward": row["_ng_task_index"] % 2, "text": "x" * 200})

    async def settled(_: web.Request) -> web.Response:
        """Answer once what had reached this process before is in the log."""
        for _turn in range(20):
            await asyncio.sleep(0)
        return web.Response()

    app = web.Application()
    app.add_routes([web.post("/run", run), web.get("/settled", settled)])
    print("ready", flush=True)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
