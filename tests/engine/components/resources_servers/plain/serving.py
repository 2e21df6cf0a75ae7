"""A server that needs nothing but the standard library, and that misbehaves as its settings say."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SLEEPER = "import time; time.sleep(600)"
DAEMON = (
    "import os, sys, time\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
    "time.sleep(600)\n"
)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/stuck":
            re.match(r"(a+)+$", "a" * 60 + "b")  # holds the interpreter for longer than anybody waits
        roots = os.environ["NEMO_GYM_EXTRA_ROOTS"]
        told = {"status": "ok", "cwd": str(Path.cwd()), "path": sys.path, "argv": sys.argv, "extra_roots": roots}
        package = sys.modules["nemo_gym"]  # what started this process has imported it
        told["folders"] = [str(package.WORKING_DIR), str(package.CACHE_DIR), str(package.RESULTS_DIR)]
        told["caches"] = [os.environ["HF_HOME"], os.environ["HF_DATASETS_CACHE"]]
        body = json.dumps(told).encode()
        self.send_response(200 if self.path in ("/", "/readyz") else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    config = json.loads(os.environ["NEMO_GYM_CONFIG_DICT"])
    name = os.environ["NEMO_GYM_CONFIG_PATH"]
    block = next(iter(next(iter(config[name].values())).values()))
    behaviour = block.get("behaviour", "serve")
    print(f"{name} says {block.get('greeting', 'hello')}")
    if behaviour == "die":
        for number in range(30):
            print(f"line {number}")
        raise SystemExit(3)
    if behaviour == "end":
        return
    if behaviour == "hang":
        time.sleep(600)
    if behaviour == "import":
        import not_installed_anywhere  # noqa: F401
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "children" in block:
        # A child, and a daemon of its own session whose parent is gone.
        child = subprocess.Popen([sys.executable, "-c", SLEEPER])
        folder = Path(block["children"])
        (folder / f"{name}.child").write_text(str(child.pid))
        subprocess.run([sys.executable, "-c", DAEMON, str(folder / f"{name}.daemon")], check=True)
    ThreadingHTTPServer((block["host"], block["port"]), Handler).serve_forever()
