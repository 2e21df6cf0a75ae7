"""The base of every server: configuration in, a FastAPI app out, served by uvicorn."""

from __future__ import annotations

import logging
import os
import re
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

import uvicorn
from fastapi import FastAPI
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.types import ASGIApp

from nemo_gym.config import get_global_config_dict
from nemo_gym.errors import ConfigError, nearest_name
from nemo_gym.records import keys
from nemo_gym.servers import process
from nemo_gym.servers.access import TokenMiddleware, check_binding, server_token
from nemo_gym.servers.boundary import DisconnectMiddleware, ErrorAnswer, ExceptionMiddleware, plain_error
from nemo_gym.servers.http_session import GlobalAIOHTTPAsyncClientConfig, configure_global_aiohttp_client
from nemo_gym.servers.server_client import ServerClient, head_server_config_of
from nemo_gym.servers.server_config import DEFAULT_HOST, BaseRunServerInstanceConfig
from nemo_gym.servers.sessions import SessionMiddleware, server_signing_key
from nemo_gym.servers.validation import add_validation_handler

logger = logging.getLogger(__name__)

_SECRET = re.compile("key|token|secret|password", re.IGNORECASE)

_MAKES_AN_APP = re.compile(r"^\s*app\s*[:=]", re.MULTILINE)

GRACEFUL_SHUTDOWN_S = 0.5
KEEP_ALIVE_S = 30


class BaseServer(BaseModel):
    """A server and its configuration; a subclass narrows the type of `config`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    config: BaseRunServerInstanceConfig

    @classmethod
    def load_config_from_global_config(cls) -> BaseRunServerInstanceConfig:
        """Return this process's own block of the global configuration, as the class annotated on `config`."""
        name = os.environ.get(keys.CONFIG_PATH_ENV)
        if not name:
            raise ConfigError(f"`{keys.CONFIG_PATH_ENV}` must name the server to run; `gym env start` sets it")
        return cls._config_from(get_global_config_dict(), name)

    @classmethod
    def _config_from(cls, config: Mapping[str, Any], name: str) -> BaseRunServerInstanceConfig:
        root = config if isinstance(config, DictConfig) else OmegaConf.create(dict(config))
        kind, implementation = _own_place(root, name)
        block = OmegaConf.to_container(root[name][kind][implementation], resolve=True)
        assert isinstance(block, dict)
        config_class = cls.model_fields["config"].annotation
        assert isinstance(config_class, type)
        assert issubclass(config_class, BaseRunServerInstanceConfig)
        given = {str(key): value for key, value in block.items()}
        try:
            return config_class.model_validate({"host": DEFAULT_HOST, **given, "name": name})
        except ValidationError as error:
            raise _refused_config(error, f"{name}.{kind}.{implementation}") from error


def _refused_config(error: ValidationError, place: str) -> ConfigError:
    """Return one line that names each key with a value that does not fit, its value, and what is wrong with it."""
    said = []
    for item in error.errors(include_url=False):
        key = ".".join((place, *map(str, item["loc"])))
        problem = item["msg"].removeprefix("Value error, ")
        if item["type"] == "missing":
            said.append(f"`{key}` is missing")
            continue
        # What a whole block or a secret holds is not for a log.
        is_shown = item["loc"] and isinstance(item["input"], (bool, int, float, str)) and not _SECRET.search(key)
        shown = f" (it is `{str(item['input'])[:100]}`)" if is_shown else ""
        said.append(f"`{key}`: {problem}{shown}")
    return ConfigError("; ".join(said))


def _own_place(config: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Return the kind and the implementation of a named server."""
    block = config.get(name)
    if not isinstance(block, Mapping):
        raise ConfigError(f"the configuration has no server `{name}`.{nearest_name(name, map(str, config))}")
    for kind in keys.SERVER_KINDS:
        implementations = block.get(kind)
        if isinstance(implementations, Mapping) and implementations:
            return kind, str(next(iter(implementations)))
    raise ConfigError(f"`{name}` is no server: it has none of {', '.join(f'`{kind}`' for kind in keys.SERVER_KINDS)}")


class SimpleServer(BaseServer):
    """A server that can be run: routes come from `setup_webserver`, the rest of the process from here."""

    server_client: ServerClient

    ray_enabled: ClassVar[bool | None] = None

    @abstractmethod
    def setup_webserver(self) -> FastAPI:
        """Return the app with this server's routes."""

    def finish_webserver(self, app: FastAPI) -> None:
        """Add what depends on all routes; called when the subclass has made its app."""
        del app

    def global_config(self) -> Mapping[str, Any]:
        """Return the configuration of the whole run; {} when this server was made without one."""
        config = getattr(self.server_client, "global_config_dict", None)
        return config if isinstance(config, Mapping) else {}

    def get_session_middleware_key(self) -> str:
        """Return the name of the session cookie; its signing key is derived from it and a secret of this launch."""
        return f"{type(self).__name__}___{self.config.name}"

    def setup_session_middleware(self, app: FastAPI, *, only_used: bool = False) -> None:
        """Give requests a session; a second call on the same app changes nothing."""
        if any(cast(Any, middleware.cls) is SessionMiddleware for middleware in app.user_middleware):
            return
        name = self.get_session_middleware_key()
        app.add_middleware(cast(Any, SessionMiddleware), cookie=name, key=server_signing_key(name), only_used=only_used)

    def setup_exception_middleware(self, app: FastAPI) -> None:
        """Answer unhandled exceptions, and stop the handler of a client that left."""
        app.add_middleware(cast(Any, ExceptionMiddleware), name=self.config.name, answer=self._error_answer())
        app.add_middleware(cast(Any, DisconnectMiddleware))

    def _error_answer(self) -> ErrorAnswer:
        return plain_error

    def startup_notice(self) -> str | None:
        """Return a line to print when the server starts, or None."""
        return None

    @classmethod
    def run_webserver(cls) -> ASGIApp | None:
        """Serve until the process is stopped, then return the app; the last line of every `app.py`.

        In a worker process, and with `dry_run`, nothing is served: a worker's uvicorn serves the returned app.
        """
        global_config = get_global_config_dict()
        config = cls.load_config_from_global_config()
        process.prefix_output(config.name)
        process.log_to_stderr()
        process.start_ray(global_config, enabled=cls.ray_enabled)
        client = ServerClient(head_server_config=head_server_config_of(global_config), global_config_dict=global_config)
        server = cls(config=config, server_client=client)
        if global_config.get("dry_run"):
            return None
        configure_global_aiohttp_client(
            GlobalAIOHTTPAsyncClientConfig.from_global_config(global_config, num_workers=config.num_workers)
        )
        check_binding(config.host)
        process.raise_open_files_limit()
        app = server.served_app()
        if process.is_nemo_gym_fastapi_worker():
            return app
        if notice := server.startup_notice():
            logger.info("%s", notice)
        server._serve(app, global_config)
        return app

    def served_app(self) -> FastAPI:
        """Return the app as it is served: the routes, liveness, error answers, and the token where one is set."""
        app = self.setup_webserver()
        self.finish_webserver(app)
        process.add_liveness_routes(app)
        add_validation_handler(app, name=self.config.name)
        self.setup_exception_middleware(app)
        if token := server_token():
            app.add_middleware(cast(Any, TokenMiddleware), token=token)
        return app

    def _serve(self, app: FastAPI, global_config: Mapping[str, Any]) -> None:
        options = uvicorn_options(self.config, global_config)
        workers = self.config.num_workers or 1
        if workers == 1:
            uvicorn.Server(uvicorn.Config(app, **options)).run()
            return
        self._check_makes_an_app(workers)
        kind, implementation = _own_place(global_config, self.config.name)
        target = f"{kind}.{implementation}.{Path(self.config.entrypoint).stem}:app"
        with process.worker_markers(self.config.entrypoint, workers):
            uvicorn.run(target, workers=workers, **options)

    def _check_makes_an_app(self, workers: int) -> None:
        """Raise ConfigError when workers would look in vain for the app of the entry file."""
        entry = Path(self.config.entrypoint)
        if not entry.is_file() or _MAKES_AN_APP.search(entry.read_text(encoding="utf-8", errors="replace")):
            return
        raise ConfigError(
            f"`{self.config.name}` is to have {workers} workers (`num_workers`), but its `{entry}` makes no "
            "module-level `app` for them. If several processes may share the work, end it with "
            f"`elif is_nemo_gym_fastapi_entrypoint(__file__): app = {type(self).__name__}.run_webserver()`."
        )


def uvicorn_options(config: BaseRunServerInstanceConfig, global_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how uvicorn serves: this host and port, quick shutdown, and the access log only on request."""
    return {
        "host": config.host or DEFAULT_HOST,
        "port": config.port,
        "loop": "uvloop",
        "http": "httptools",
        "timeout_graceful_shutdown": GRACEFUL_SHUTDOWN_S,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "access_log": bool(global_config.get("uvicorn_logging_show_200_ok", False)),
        "proxy_headers": bool(global_config.get("uvicorn_proxy_headers", False)),
        "forwarded_allow_ips": global_config.get("uvicorn_forwarded_allow_ips"),
        "server_header": False,
        "log_level": "info" if global_config.get("uvicorn_logging_show_200_ok") else "warning",
    }
