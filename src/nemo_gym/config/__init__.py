"""One configuration from many sources: YAML files, `env.yaml`, `+key=value` on the command line.

Names are imported when they are first used, so that `nemo_gym.config.roots` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_gym.config.checks import check_capture_directory, check_capture_settings
    from nemo_gym.config.global_dict import (
        GlobalConfigDictParser,
        GlobalConfigDictParserConfig,
        find_open_port,
        get_first_server_config_dict,
        get_global_config_dict,
        get_hf_token,
        maybe_get_global_config_dict,
        set_global_config_dict,
        use_global_config_dict,
    )
    from nemo_gym.config.loading import ResolvedConfig, assign_ports, load_config
    from nemo_gym.config.masking import mask_secrets
    from nemo_gym.config.roots import (
        INSTALL_ROOT,
        component_config_files,
        component_search_roots,
        find_component,
        find_file,
        resolve_under_roots,
    )
    from nemo_gym.config.servers import ServerBlock

_HOMES = {
    "INSTALL_ROOT": "roots",
    "GlobalConfigDictParser": "global_dict",
    "GlobalConfigDictParserConfig": "global_dict",
    "ResolvedConfig": "loading",
    "ServerBlock": "servers",
    "assign_ports": "loading",
    "check_capture_directory": "checks",
    "check_capture_settings": "checks",
    "component_config_files": "roots",
    "component_search_roots": "roots",
    "find_component": "roots",
    "find_file": "roots",
    "find_open_port": "global_dict",
    "get_first_server_config_dict": "global_dict",
    "get_global_config_dict": "global_dict",
    "get_hf_token": "global_dict",
    "load_config": "loading",
    "mask_secrets": "masking",
    "maybe_get_global_config_dict": "global_dict",
    "resolve_under_roots": "roots",
    "set_global_config_dict": "global_dict",
    "use_global_config_dict": "global_dict",
}

__all__ = [
    "INSTALL_ROOT",
    "GlobalConfigDictParser",
    "GlobalConfigDictParserConfig",
    "ResolvedConfig",
    "ServerBlock",
    "assign_ports",
    "check_capture_directory",
    "check_capture_settings",
    "component_config_files",
    "component_search_roots",
    "find_component",
    "find_file",
    "find_open_port",
    "get_first_server_config_dict",
    "get_global_config_dict",
    "get_hf_token",
    "load_config",
    "mask_secrets",
    "maybe_get_global_config_dict",
    "resolve_under_roots",
    "set_global_config_dict",
    "use_global_config_dict",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
