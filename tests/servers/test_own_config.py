"""A value that does not fit a server's own configuration is one line that names its key."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field, model_validator

from nemo_gym.errors import ConfigError
from nemo_gym.servers.base import BaseServer
from nemo_gym.servers.server_config import BaseRunServerInstanceConfig


class Limits(BaseModel):
    seconds: float = Field(default=1.0, gt=0)


class Config(BaseRunServerInstanceConfig):
    size: int = 1
    limits: Limits = Limits()
    api_key: str = ""
    needed: str

    @model_validator(mode="after")
    def _size_is_even(self) -> Config:
        if self.size == 3:
            raise ValueError("`size` must not be 3")
        return self


class Server(BaseServer):
    config: Config


def load(**settings: Any) -> BaseRunServerInstanceConfig:
    block = {"entrypoint": "app.py", "host": "127.0.0.1", "port": 1, "needed": "yes", **settings}
    given = {key: value for key, value in block.items() if value is not None}
    return Server._config_from({"mine": {"resources_servers": {"impl": given}}}, "mine")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"size": "many"}, "`mine.resources_servers.impl.size`: Input should be a valid integer"),
        ({"limits": {"seconds": -1}}, "`mine.resources_servers.impl.limits.seconds`: Input should be greater than 0"),
        ({"limits": 5}, "`mine.resources_servers.impl.limits`: "),
        ({"size": 3}, "`mine.resources_servers.impl`: `size` must not be 3"),
        ({"needed": None}, "`mine.resources_servers.impl.needed` is missing"),
        ({"port": "http"}, "`mine.resources_servers.impl.port`: "),
        ({"domain": "cooking"}, "`mine.resources_servers.impl.domain`: "),
    ],
)
def test_a_value_that_does_not_fit_is_one_line_that_names_its_key(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(**settings)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_every_key_is_named_and_no_secret_is_shown() -> None:
    with pytest.raises(ConfigError) as raised:
        load(size="many", api_key=12345678, limits={"seconds": 0})
    text = str(raised.value)
    assert all(key in text for key in ("size", "api_key", "limits.seconds"))
    assert "many" in text
    assert "12345678" not in text


def test_values_that_fit_are_loaded() -> None:
    assert load(size=2).name == "mine"
