"""The one configuration of a process: handed down by the launcher, or read from files and the command line once."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import orjson
import yaml
from omegaconf import DictConfig, OmegaConf

from nemo_gym.config import names, ports
from nemo_gym.config.loading import assign_ports, load_config
from nemo_gym.config.sources import ENV_FILE
from nemo_gym.errors import ConfigError, nearest_name
from nemo_gym.records.keys import CONFIG_DICT_ENV

CONFIG_FILE_KEY = "_nemo_gym_config_file"
"""The only key of a handed-down configuration that is too large for an environment variable: the file that holds it."""

_LONGEST_VARIABLE = 120_000  # Linux takes 131,072 bytes for one variable, its name included

_cached: DictConfig | None = None


@dataclass(slots=True)
class GlobalConfigDictParserConfig:
    """What `GlobalConfigDictParser.parse` reads.

    `dotenv_path`: the `env.yaml` to use instead of the one found on the search path. `initial_global_config_dict`:
    settings between `env.yaml` and the command line. `skip_load_from_cli`, `skip_load_from_dotenv`: leave a source
    out. `hide_secrets`: put `****` in place of secrets. `offline`: accepted, changes nothing.
    """

    dotenv_path: str | Path | None = None
    initial_global_config_dict: Mapping[str, Any] | DictConfig | None = field(default=None)
    skip_load_from_cli: bool = False
    skip_load_from_dotenv: bool = False
    hide_secrets: bool = False
    offline: bool = False

    NO_MODEL_GLOBAL_CONFIG_DICT: ClassVar[DictConfig] = OmegaConf.create(
        {
            "policy_base_url": "",
            "policy_api_key": "",
            "policy_model_name": "",
            "policy_model": {"responses_api_models": {"dummy_model": {"entrypoint": "app.py"}}},
        }
    )


class GlobalConfigDictParser:
    """Merges and checks a configuration into an OmegaConf `DictConfig`; ports are assigned."""

    def parse(self, config: GlobalConfigDictParserConfig | None = None) -> DictConfig:
        """Read files, `env.yaml`, the initial mapping and the command line. Raises `ConfigError`."""
        options = config or GlobalConfigDictParserConfig()
        tokens = [] if options.skip_load_from_cli else [token for token in sys.argv[1:] if _is_override(token)]
        env_file: str | Path | None = options.dotenv_path or ENV_FILE
        loaded = load_config(
            overrides=tokens,
            initial=_as_dict(options.initial_global_config_dict),
            env_file=None if options.skip_load_from_dotenv else env_file,
            # A script of the user's own reads keys that this package has never heard of, and may need no model.
            lenient=True,
            allow_missing_model=True,
        )
        loaded = assign_ports(loaded)
        return as_dict_config(loaded.masked() if options.hide_secrets else loaded.data)

    def parse_no_environment(self, initial_global_config_dict: Mapping[str, Any] | DictConfig | None) -> DictConfig:
        """Merge and check only the given mapping: neither `env.yaml` nor the command line is read."""
        return self.parse(
            GlobalConfigDictParserConfig(
                initial_global_config_dict=initial_global_config_dict,
                skip_load_from_cli=True,
                skip_load_from_dotenv=True,
            )
        )


def get_global_config_dict(
    global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None,
    global_config_dict_parser_cls: type[GlobalConfigDictParser] = GlobalConfigDictParser,
) -> DictConfig:
    """Return the configuration of this process, reading it at the first call.

    A process that the launcher started uses what it was handed, unchecked; any other one parses files and command
    line.
    """
    found = maybe_get_global_config_dict()
    if found is not None:
        return found
    return set_global_config_dict(global_config_dict_parser_config, global_config_dict_parser_cls)


def maybe_get_global_config_dict() -> DictConfig | None:
    """Return the cached or handed-down configuration, or None. Parses no command line."""
    global _cached
    if _cached is None and os.environ.get(CONFIG_DICT_ENV):
        _cached = as_dict_config(read_handed_down(os.environ[CONFIG_DICT_ENV]))
    return _cached


def set_global_config_dict(
    global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None,
    global_config_dict_parser_cls: type[GlobalConfigDictParser] = GlobalConfigDictParser,
) -> DictConfig:
    """Parse the configuration and make it the one of this process."""
    global _cached
    _cached = global_config_dict_parser_cls().parse(global_config_dict_parser_config)
    return _cached


def use_global_config_dict(data: Mapping[str, Any] | None) -> None:
    """Make resolved plain data the configuration of this process; None forgets what was cached."""
    global _cached
    _cached = None if data is None else as_dict_config(data)


def get_first_server_config_dict(global_config_dict: Mapping[str, Any] | DictConfig, name: str) -> Any:
    """Return the implementation block of instance `name`. Raises `ConfigError` with the nearest name."""
    if name not in global_config_dict:
        raise ConfigError(f"no server `{name}` is configured.{nearest_name(name, map(str, global_config_dict))}")
    kind = next(iter(global_config_dict[name].values()))
    return next(iter(kind.values()))


def get_hf_token() -> str | None:
    """Return the top-level `hf_token`, or None."""
    token = get_global_config_dict().get("hf_token")
    return None if token is None else str(token)


def find_open_port(disallowed_ports: list[int] | None = None, max_retries: int = 50) -> int:
    """Return a random free port in the configured range, outside the disallowed ports. Raises `RuntimeError`."""
    config: Mapping[str, Any] = maybe_get_global_config_dict() or {}
    low, high = names.DEFAULT_PORT_RANGE
    port_range = (int(config.get(names.PORT_RANGE_LOW) or low), int(config.get(names.PORT_RANGE_HIGH) or high))
    taken = [*(disallowed_ports or []), *(config.get(names.DISALLOWED_PORTS) or [])]
    return ports.find_open_port(taken, max_retries, port_range=port_range)


def as_dict_config(data: Mapping[str, Any]) -> DictConfig:
    """Return resolved plain data as a `DictConfig` in which nothing is interpolated again."""
    return cast(DictConfig, OmegaConf.create(_escaped(dict(data))))


def hand_down(data: Mapping[str, Any], spill_file: Path) -> str:
    """Return the text for `NEMO_GYM_CONFIG_DICT`; what is too long for a variable goes to `spill_file` (mode 0600)."""
    text = orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS, default=str)
    if len(text) <= _LONGEST_VARIABLE:
        return text.decode()
    with os.fdopen(os.open(spill_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(text)
    return orjson.dumps({CONFIG_FILE_KEY: str(spill_file)}).decode()


def read_handed_down(text: str) -> dict[str, Any]:
    """Return the configuration in the text of `NEMO_GYM_CONFIG_DICT`, which is JSON or YAML."""
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            data = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"`{CONFIG_DICT_ENV}` holds neither JSON nor YAML: {error}.") from error
        if isinstance(data, Mapping):
            # YAML written by a person or another launcher may still hold interpolations.
            data = OmegaConf.to_container(OmegaConf.create(dict(data)), resolve=True)
    if not isinstance(data, dict):
        raise ConfigError(f"`{CONFIG_DICT_ENV}` holds no mapping.")
    if set(data) == {CONFIG_FILE_KEY}:
        return read_handed_down(Path(data[CONFIG_FILE_KEY]).read_text(encoding="utf-8"))
    return data


def _escaped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _escaped(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escaped(inner) for inner in value]
    return value.replace("${", "\\${") if isinstance(value, str) and "${" in value else value


def _as_dict(value: Mapping[str, Any] | DictConfig | None) -> dict[str, Any] | None:
    if value is None:
        return None
    content = OmegaConf.to_container(value, resolve=False) if isinstance(value, DictConfig) else dict(value)
    return cast("dict[str, Any]", content)


def _is_override(token: str) -> bool:
    return token.startswith(("+", "~")) or ("=" in token and not token.startswith("-"))
