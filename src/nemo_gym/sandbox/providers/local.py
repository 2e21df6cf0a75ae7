"""Sandboxes on this machine: a private temporary folder each, and commands as processes of the current user.

This keeps rollouts out of each other's files and leaves nothing behind. It isolates nothing: a command can read and do
what the user can, and an absolute path in a command is one of this machine. Paths given to this module are the
sandbox's own: `/work` is the folder `work` in it. Images, resources and entrypoints mean nothing here.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.sandbox.errors import SandboxCreateError
from nemo_gym.sandbox.providers import processes
from nemo_gym.sandbox.providers.confined import inside, open_inside
from nemo_gym.sandbox.spec import SandboxExecResult, SandboxSpec, SandboxStatus

_PREFIX = "gym-sandbox-"
_ID = re.compile(r"[0-9a-f]{32}\Z")
_STATE = "state.json"
_INHERITED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")


@dataclass(slots=True)
class LocalSandbox:
    """Handle of a local sandbox. `home` holds `root`, which is what commands see, and what is known about it."""

    sandbox_id: str
    home: Path
    workdir: str | None
    env: Mapping[str, str]
    ports: tuple[int, ...]
    expires_at: float | None

    @property
    def root(self) -> Path:
        """The sandbox's folder."""
        return self.home / "root"


class LocalProvider:
    """Local sandboxes below `base_dir` (default: the folder for temporary files).

    `inherit_env`: variables of this process that commands see, beside `PATH` and the locale; keys stay out of the
    sandbox unless they are named here.
    """

    def __init__(self, base_dir: str | Path | None = None, inherit_env: Sequence[str] = ()) -> None:
        self._base = Path(base_dir or tempfile.gettempdir()).expanduser().resolve()
        self._inherit = (*_INHERITED, *inherit_env)

    async def create(self, spec: SandboxSpec) -> LocalSandbox:
        """Make the folder of a sandbox, its `workdir` included."""
        sandbox_id = secrets.token_hex(16)
        handle = LocalSandbox(
            sandbox_id,
            self._base / f"{_PREFIX}{sandbox_id}",
            spec.workdir,
            {str(key): str(value) for key, value in spec.env.items()},
            tuple(spec.ports),
            None if spec.ttl_s is None else time.time() + spec.ttl_s,
        )
        try:
            self._base.mkdir(parents=True, exist_ok=True)
            handle.home.mkdir(mode=0o700)
            (handle.root / "tmp").mkdir(parents=True)
            inside(handle.root, spec.workdir or ".").mkdir(parents=True, exist_ok=True)
            self._save(handle)
        except (OSError, ValueError) as error:
            shutil.rmtree(handle.home, ignore_errors=True)
            raise SandboxCreateError(f"no local sandbox could be made in `{self._base}`: {error}") from error
        return handle

    async def exec(
        self,
        handle: LocalSandbox,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
        preserve_background_services: bool = False,
    ) -> SandboxExecResult:
        """Run a command; paths of `cwd` are the sandbox's own. Raises `ValueError` for another user's name."""
        await self._check_open(handle)
        if user is not None and str(user) not in (own_names := _own_names()):
            raise ValueError(f"local sandboxes run everything as `{own_names[-1]}`, not as `{user}`")
        where = inside(handle.root, cwd or handle.workdir or ".")
        if not where.is_dir():
            raise ValueError(f"`{cwd or handle.workdir or '.'}` is no folder of the sandbox")
        inherited = {name: os.environ[name] for name in self._inherit if name in os.environ}
        own = {"HOME": str(handle.root), "TMPDIR": str(handle.root / "tmp"), "PWD": str(where)}
        given = {str(key): str(value) for key, value in (env or {}).items()}
        return await processes.run(
            command,
            cwd=where,
            env={"PATH": os.defpath, **inherited, **own, **handle.env, **given},
            mark=f"{handle.sandbox_id}/{secrets.token_hex(8)}",
            timeout_s=timeout_s,
            preserve_background=preserve_background_services,
        )

    async def upload_file(self, handle: LocalSandbox, local: str | Path, remote: str) -> None:
        """Copy a file in, with its permissions. Raises `ValueError` for a path that leads out of the sandbox."""
        await self._check_open(handle)

        def copy() -> None:
            with Path(local).open("rb") as source:
                file = open_inside(handle.root, remote, write=True)
                with os.fdopen(file, "wb") as target:
                    os.ftruncate(file, 0)
                    shutil.copyfileobj(source, target)
                    os.fchmod(file, stat.S_IMODE(os.fstat(source.fileno()).st_mode) & 0o777)

        await asyncio.to_thread(copy)

    async def download_file(self, handle: LocalSandbox, remote: str, local: str | Path) -> None:
        """Copy a file out. Raises `ValueError` for a path that leads out of the sandbox."""
        await self._check_open(handle)

        def copy() -> None:
            with os.fdopen(open_inside(handle.root, remote, write=False), "rb") as source:
                Path(local).parent.mkdir(parents=True, exist_ok=True)
                with Path(local).open("wb") as target:
                    shutil.copyfileobj(source, target)

        await asyncio.to_thread(copy)

    async def status(self, handle: LocalSandbox) -> SandboxStatus:
        """`running` while the folder is there and its time is not up."""
        if handle.expires_at is not None and time.time() >= handle.expires_at:
            await self.close(handle)
        return SandboxStatus.RUNNING if handle.root.is_dir() else SandboxStatus.STOPPED

    async def endpoint(self, handle: LocalSandbox, port: int) -> str:
        """Return the URL of one of the spec's ports: commands listen on this machine."""
        if port not in handle.ports:
            raise ValueError(f"port {port} is not among the sandbox's `ports` {list(handle.ports)}")
        return f"http://127.0.0.1:{port}"

    async def close(self, handle: LocalSandbox) -> None:
        """Kill what still runs and remove the folder."""

        def end() -> None:
            processes.end_marked(handle.sandbox_id)
            if handle.home.is_dir():
                _make_removable(handle.home)
                shutil.rmtree(handle.home)

        await asyncio.to_thread(end)

    async def aclose(self) -> None:
        """Nothing is held: sandboxes live until they are closed."""

    async def serialize_handle(self, handle: LocalSandbox, *, scope: str | None = None) -> dict[str, Any]:
        """Return the sandbox's id; where it is and what it knows stays on this machine."""
        return {"provider": "local", "sandbox_id": handle.sandbox_id}

    async def connect(self, descriptor: Mapping[str, Any]) -> LocalSandbox:
        """Return the handle of a sandbox of this user below the same `base_dir`. Raises `RuntimeError` when it is gone.

        A descriptor comes from elsewhere, and closing removes a folder: only the form that `create` makes is accepted.
        """
        sandbox_id = descriptor.get("sandbox_id")
        if descriptor.get("provider") != "local" or not isinstance(sandbox_id, str) or not _ID.match(sandbox_id):
            raise ValueError("the descriptor is not of a local sandbox")
        home = self._base / f"{_PREFIX}{sandbox_id}"
        try:
            facts = home.lstat()
            state = json.loads((home / _STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RuntimeError(f"there is no local sandbox `{sandbox_id}` in `{self._base}`") from error
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
            raise RuntimeError(f"`{home}` is not a sandbox of this user")
        return LocalSandbox(
            sandbox_id, home, state["workdir"], state["env"], tuple(state["ports"]), state["expires_at"]
        )

    async def _check_open(self, handle: LocalSandbox) -> None:
        if await self.status(handle) is not SandboxStatus.RUNNING:
            raise RuntimeError("the sandbox was stopped, or its `ttl_s` is over")

    @staticmethod
    def _save(handle: LocalSandbox) -> None:
        state = {
            "workdir": handle.workdir,
            "env": dict(handle.env),
            "ports": list(handle.ports),
            "expires_at": handle.expires_at,
        }
        (handle.home / _STATE).write_text(json.dumps(state), encoding="utf-8")


def _own_names() -> list[str]:
    """The id of the current user, and the name, which not every id has."""
    try:
        return [str(os.geteuid()), pwd.getpwuid(os.geteuid()).pw_name]
    except KeyError:
        return [str(os.geteuid())]


def _make_removable(folder: Path) -> None:
    """Give folders back the permissions that a command may have taken from them."""
    for parent, names, _ in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            if not path.is_symlink():
                path.chmod(0o700)
