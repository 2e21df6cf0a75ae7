"""What is wrong with a configuration is said before anything starts, with the nearest name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_gym.config import ResolvedConfig, check_capture_directory, check_capture_settings, mask_secrets
from nemo_gym.config.checks import block_keys
from nemo_gym.config.component_fields import config_fields
from nemo_gym.config.names import IGNORED_KEYS
from nemo_gym.config.roots import INSTALL_ROOT, component_config_files, component_search_roots, find_component
from nemo_gym.config.servers import ServerBlock
from nemo_gym.errors import (
    ConfigError,
    ConfigFileNotFoundError,
    UnsupportedAgentPairingError,
    UnsupportedModelPairingError,
)

Load = Callable[..., ResolvedConfig]
Write = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("world")


def failure(load: Load, *overrides: str, **options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*overrides, **options)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_an_unknown_key_on_the_command_line_is_an_error_with_the_nearest_name(load: Load) -> None:
    message = failure(load, "+observabilty_enabled=true")
    assert "unknown key `observabilty_enabled`" in message
    assert "Did you mean `observability_enabled`?" in message
    assert "unknown key `zzz`" in failure(load, "+zzz=1")


def test_a_key_of_a_file_is_an_error_when_it_is_nearly_a_known_one_and_a_notice_otherwise(
    load: Load, write: Write
) -> None:
    write("a.yaml", "num_repeat: 4\n")
    assert "Did you mean `num_repeats`?" in failure(load, config_paths=["a.yaml"])
    write("b.yaml", "my_own_setting: 4\n")
    assert any("my_own_setting" in notice for notice in load(config_paths=["b.yaml"]).notices)
    assert load("++my_own_setting=5", config_paths=["b.yaml"]).data["my_own_setting"] == 5
    write("env.yaml", "another_projects_key: abc\n")
    assert load().notices == ()


def test_what_an_interpolation_or_the_command_reads_is_known(load: Load, write: Write) -> None:
    write("a.yaml", "responses_create_params: {model: '${judge_model}'}\n")
    assert load("+judge_model=m", config_paths=["a.yaml"]).notices == ()
    assert load("+of_the_command=1", known_keys={"of_the_command"}).notices == ()


OVER_DEPTH = "+quiz_agent.responses_api_agents.thinker.depth=5"


@pytest.mark.parametrize(
    ("given", "options", "noted"),
    [
        # The key came with the agent's own file, which reads it; the place that read it was replaced.
        ("", {}, False),
        # The user wrote the key, and the same user's override leaves nothing that reads it.
        ("how_deep: 3\n", {}, True),
        # The user's own file is whole in itself, as a component's is.
        ("how_deep: 3\nquiz_agent: {responses_api_agents: {talker: {depth: '${how_deep}'}}}\n", {"agent": None}, False),
    ],
)
def test_a_key_that_is_unread_only_since_its_place_was_replaced_is_noted_to_whoever_wrote_it(
    load: Load, write: Write, files: list[str], model: tuple[str, ...], given: str, options: dict, noted: bool
) -> None:
    write(
        "responses_api_agents/thinker/configs/thinker.yaml",
        "how_deep: 2\nthinker: {responses_api_agents: {thinker: {entrypoint: app.py, depth: '${how_deep}'}}}\n",
    )
    write("mine.yaml", given)
    chosen = {"agent": "thinker", **options}
    override = OVER_DEPTH if chosen["agent"] else OVER_DEPTH.replace("thinker", "talker")
    config = load(*model, override, config_paths=[*files, "mine.yaml"], **chosen)
    assert any("`how_deep` is read by nothing" in notice for notice in config.notices) == noted


def test_a_key_of_a_file_whose_place_another_file_replaced_is_not_noted(
    load: Load, write: Write, files: list[str], model: tuple[str, ...]
) -> None:
    write("base.yaml", "how_deep: 2\nquiz_agent: {responses_api_agents: {talker: {max_steps: '${how_deep}'}}}\n")
    write("over.yaml", "quiz_agent: {responses_api_agents: {talker: {max_steps: 9}}}\n")
    assert load(*model, config_paths=[*files, "base.yaml", "over.yaml"]).notices == ()
    write("over.yaml", "how_deep: 1\nquiz_agent: {responses_api_agents: {talker: {max_steps: 9}}}\n")
    assert any("how_deep" in text for text in load(*model, config_paths=[*files, "base.yaml", "over.yaml"]).notices)


@pytest.mark.parametrize("kind", ["resources_servers", "responses_api_agents", "responses_api_models"])
def test_no_shipped_file_has_a_key_that_is_noted(load: Load, kind: str) -> None:
    roots = component_search_roots((), environ={})
    names = component_config_files(kind, roots)
    assert names
    needed_keys = {"agent_command"}  # given here, whether the component takes it or not
    for name in names:
        file = str(find_component(kind, name, roots))
        base = str(find_component("resources_servers", "ledger", roots))
        chosen = {"agent": name, "config_paths": [base]} if kind == "responses_api_agents" else {"config_paths": [file]}
        needed = ["+agent_command=x"]
        if name == "replay_model":
            needed.append("+policy_model.responses_api_models.replay_model.captures_fpath=x")
        config = load(*needed, lenient=True, known_keys=needed_keys, allow_missing_model=True, compose=True, **chosen)
        assert [text for text in config.notices if "read" in text] == [], file


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("+quizz.resources_servers.quiz.bonus=1", "no server is called `quizz`. Did you mean `quiz`?"),
        ("++quizz.resources_servers.quiz.bonus=1", "no server is called `quizz`. Did you mean `quiz`?"),
        ("+quiz_agnt.responses_api_agents.talker.max_steps=1", "Did you mean `quiz_agent`?"),
        ("+quiz_agnt.responses_api_agents.talker={max_steps: 1}", "Did you mean `quiz_agent`?"),
        ("+policy_mdel.responses_api_models.oracle.url=x", "Did you mean `policy_model`?"),
        ("+zzz.resources_servers.quiz.bonus=1", "no server is called `zzz`. Configured: `quiz`, `quiz_agent`"),
        ("+zzz.responses_api_agents.nobody.x=1", "no server is called `zzz`."),
    ],
)
def test_an_override_of_a_server_that_does_not_exist_names_the_nearest(
    load: Load, files: list[str], model: tuple[str, ...], override: str, says: str
) -> None:
    message = failure(load, *model, override, config_paths=files)
    assert message.startswith(f"override `{override}`: ")
    assert says in message
    assert "domain" not in message


def test_a_server_may_be_added_by_overrides_alone(load: Load, files: list[str], model: tuple[str, ...]) -> None:
    near = ("+quiz2.resources_servers.quiz.domain=math", "+quiz2.resources_servers.quiz.entrypoint=app.py")
    far = ("+other.resources_servers.quiz.domain=math",)
    whole = ("+quizz={resources_servers: {quiz: {domain: math}}}",)
    for added in (near, far, whole):
        load(*model, *added, config_paths=files)


@pytest.mark.parametrize(
    ("tokens", "ignored"),
    [
        (("+upload_rollouts=true", "+wandb_project=p"), "`upload_rollouts`, `wandb_project`"),
        (("+uv_cache_dir=/x",), "`uv_cache_dir`"),
        (
            ("+mlflow_anything=1", "+uvicorn_backlog=1", "+global_aiohttp_limit=2"),
            "`mlflow_anything`, `uvicorn_backlog`",
        ),
        (("+pip_install_verbose=true",), "`pip_install_verbose`"),
        (("+upload_rollouts=false", "+pip_install_verbose=false"), None),
        (("+wandb_api_key=secret",), None),
        (("+wandb_project=p", "+prompt_config=${wandb_project}.yaml"), None),
        (("+limit=3", "+hf_token=t"), None),
    ],
)
def test_a_setting_without_any_effect_is_said_once(load: Load, tokens: tuple[str, ...], ignored: str | None) -> None:
    notices = load(*tokens).notices
    assert len(notices) == (ignored is not None)
    if ignored is not None:
        assert notices[0].startswith(f"nothing that is shipped here acts on {ignored}")


def test_what_is_said_to_have_no_effect_is_read_nowhere() -> None:
    texts = {
        path: path.read_text()
        for path in INSTALL_ROOT.parent.rglob("*.py")
        if path.parts[-2:] != ("config", "names.py")
    }
    assert len(texts) > 100
    other_meanings = {"json", "telemetry"}  # arguments of libraries are called so
    readers = {
        key: [path for path, text in texts.items() if f'"{key}"' in text] for key in IGNORED_KEYS - other_meanings
    }
    assert {key: paths for key, paths in readers.items() if paths} == {}


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("++quiz_agent.responses_api_agents.talker.resources_server.name=quizz", "Did you mean `quiz`?"),
        ("++quiz_agent.responses_api_agents.talker.resources_server.name=policy_model", "is defined under"),
        ("++quiz.resources_servers.quiz.domain=knowlege", "Did you mean `knowledge`?"),
        ("~quiz.resources_servers.quiz.domain", "needs a `domain`"),
        ("+quiz.resources_servers.quizz={entrypoint: app.py}", "exactly one implementation"),
        ("+quiz.responses_api_models={}", "exactly one kind"),
        ("+new={resource_servers: {quiz: {entrypoint: app.py}}}", "Did you mean `resources_servers`?"),
        ("+new={resources_servers: {quizz: {domain: math}}}", "Did you mean `quiz`?"),
        ("++quiz.resources_servers.quiz.entrypoint=ap.py", "has no file `ap.py`"),
        ("++quiz.resources_servers.quiz.port=http", "`port` must be a number"),
        ("++head_server.port=0", "`head_server.port` must be a number"),
        ("++quiz.resources_servers.quiz.port=11000", "both have port 11000"),
        ("++observability_enabled=yes", "must be `true` or `false`"),
    ],
)
def test_a_broken_server_block_is_named(
    load: Load, files: list[str], model: tuple[str, ...], override: str, problem: str
) -> None:
    assert problem in failure(load, *model, override, config_paths=files)


def test_a_block_that_is_almost_a_server_can_be_let_pass(load: Load, files: list[str], model: tuple[str, ...]) -> None:
    odd = "+new={resource_servers: {quiz: {entrypoint: app.py}}}"
    config = load(*model, odd, "+error_on_almost_servers=false", config_paths=files)
    assert any("resource_servers" in notice for notice in config.notices)


def test_only_a_missing_model_can_be_let_pass(load: Load, files: list[str]) -> None:
    assert "`policy_base_url` is required and not set" in failure(load, config_paths=files)
    config = load(config_paths=files, allow_missing_model=True)
    assert len(config.model_problems) == 2
    without = load(config_paths=files[:1], allow_missing_model=True)
    assert "`--model-type NAME`" in without.model_problems[0]
    assert "required and not set" in failure(load, "+other=${absent}", config_paths=files, allow_missing_model=True)


def test_capture_needs_an_absolute_directory_A1(load: Load, tmp_path: Path) -> None:
    assert "model_call_capture_dir is required" in failure(load, "+observability_enabled=true")
    relative = failure(load, "+observability_enabled=true", "+model_call_capture_dir=calls")
    assert "must be an absolute path, not `calls`" in relative
    load("+observability_enabled=false", "+model_call_capture_dir=calls")  # off: not looked at
    file = tmp_path / "file"
    file.write_text("")
    check_capture_directory({"observability_enabled": True, "model_call_capture_dir": str(tmp_path / "new" / "deep")})
    with pytest.raises(ConfigError, match="is a file"):
        check_capture_directory({"observability_enabled": True, "model_call_capture_dir": str(file / "calls")})
    assert not (tmp_path / "new").exists()
    check_capture_settings({})


def test_capture_keys_inside_a_server_block_are_said_to_have_no_effect_A1(
    load: Load, files: list[str], model: tuple[str, ...]
) -> None:
    config = load(*model, "+quiz.resources_servers.quiz.observability_enabled=true", config_paths=files)
    assert any("`observability_enabled` has no effect" in notice for notice in config.notices)


def test_a_misspelled_setting_is_an_error_for_a_shipped_component_and_a_notice_for_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    app = write(
        "shipped/app.py",
        """
        from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent

        class Shared(BaseResponsesAPIAgentConfig):
            max_steps: int = 10

        class MyConfig(Shared):
            tool_timeout_s: float = 1.0

        class MyAgent(SimpleResponsesAPIAgent):
            config: MyConfig
        """,
    )
    fields = config_fields(app)
    assert fields is not None
    assert {"max_steps", "tool_timeout_s", "entrypoint", "datasets"} <= fields

    def block(**settings: object) -> ServerBlock:
        return ServerBlock(
            name="a", kind="responses_api_agents", implementation="shipped", settings=settings,
            host="127.0.0.1", port=None, entrypoint="app.py", directory=app.parent,
        )  # fmt: skip

    own = block_keys([block(max_step=3, max_steps=1)])
    assert own.problems == []
    (notice,) = own.notices
    assert "key `max_step` is not read" in notice
    assert "Did you mean `max_steps`?" in notice
    monkeypatch.setattr("nemo_gym.config.checks.INSTALL_ROOT", tmp_path)
    assert "Did you mean `max_steps`?" in block_keys([block(max_step=3)]).problems[0].message
    found = block_keys([block(max_steps=3, use_completions_api=True)])
    assert found.problems == []
    assert "`use_completions_api` is not read" in found.notices[0]


def test_fields_that_cannot_be_told_from_the_source_are_unknown(write: Write) -> None:
    foreign = write("a/app.py", "from other import Base\nclass C(Base): x: int\nclass S:\n    config: C\n")
    assert config_fields(foreign) is None
    assert config_fields(write("b/app.py", "def broken(:\n")) is None
    assert config_fields(write("c/app.py", "x = 1\n")) is None


def test_fields_of_another_component_and_classes_that_take_anything(write: Write) -> None:
    write("kinds/resources_servers/a/app.py", "class A(BaseResourcesServerConfig): x: int\nclass S:\n    config: A\n")
    b = write(
        "kinds/resources_servers/b/app.py",
        "from resources_servers.a.app import A\nclass B(A): y: int\nclass S:\n    config: B\n",
    )
    fields = config_fields(b)
    assert fields is not None
    assert {"x", "y"} <= fields
    c = write(
        "kinds/resources_servers/c/app.py",
        "class C(BaseModel):\n    model_config = ConfigDict(extra='allow')\nclass S:\n    config: C\n",
    )
    assert config_fields(c) is None
    d = write("kinds/resources_servers/d/app.py", "class D(D): y: int\nclass S:\n    config: D\n")
    assert config_fields(d) is None


def test_the_settings_of_every_shipped_component_can_be_told_from_its_source() -> None:
    apps = sorted(INSTALL_ROOT.glob("*/*/app.py"))
    assert apps
    assert [str(app) for app in apps if config_fields(app) is None] == []


def test_pairings_that_an_environment_does_not_list_are_refused_unless_allowed(
    load: Load, files: list[str], model: tuple[str, ...]
) -> None:
    listed = "+quiz.resources_servers.quiz.allowed_agents=[thinker]"
    assert "not declared to work with agent `talker`" in failure(load, *model, listed, config_paths=files)
    load(*model, listed, "+allow_unsupported_pairing=true", config_paths=files)
    load(*model, listed, config_paths=files, environ={"NEMO_GYM_ALLOW_UNSUPPORTED_PAIRING": "1"})
    models = "+quiz.resources_servers.quiz.allowed_model_types=[other]"
    assert "model server type `oracle`" in failure(load, *model, models, config_paths=files)
    for tokens, kind in (
        ((listed,), UnsupportedAgentPairingError),
        ((models,), UnsupportedModelPairingError),
        ((listed, models), ConfigError),
        ((listed, "+quiz.resources_servers.quizz={entrypoint: app.py}"), ConfigError),
    ):
        with pytest.raises(ValueError) as refused:
            load(*model, *tokens, config_paths=files)
        assert type(refused.value) is kind


def test_an_agent_takes_the_place_of_the_composed_one(load: Load, files: list[str], model: tuple[str, ...]) -> None:
    data = load(*model, config_paths=files, agent="thinker").data
    block = data["quiz_agent"]["responses_api_agents"]["thinker"]
    assert block["depth"] == 2
    assert block["resources_server"]["name"] == "quiz"
    assert block["datasets"][0]["name"] == "example"
    assert "max_steps" not in block
    message = failure(load, *model, config_paths=files, agent="thinkr")
    assert "no agent is called `thinkr`. Did you mean `thinker`?" in message


def test_a_resources_server_without_an_agent_gets_one(
    load: Load, write: Write, files: list[str], model: tuple[str, ...]
) -> None:
    write("resources_servers/quiz/configs/quiz.yaml", "quiz: {resources_servers: {quiz: {domain: math}}}\n")
    assert len(load(*model, config_paths=files).server_blocks()) == 2
    write("responses_api_agents/simple_agent/app.py")
    write(
        "responses_api_agents/simple_agent/configs/simple_agent.yaml",
        "simple_agent: {responses_api_agents: {simple_agent: {entrypoint: app.py, max_steps: 7}}}\n",
    )
    composed = load(*model, config_paths=files, compose=True)
    assert [block.name for block in composed.server_blocks()] == ["quiz", "policy_model", "quiz_simple_agent"]
    assert composed.data["quiz_simple_agent"]["responses_api_agents"]["simple_agent"]["max_steps"] == 7
    named = load(*model, config_paths=files, agent="thinker")
    assert named.data["quiz_thinker"]["responses_api_agents"]["thinker"]["resources_server"]["name"] == "quiz"


def test_a_legacy_environment_block_is_a_route_and_no_process(
    load: Load, files: list[str], model: tuple[str, ...]
) -> None:
    route = (
        "+quiz_env={environment_servers: {legacy_agent: {entrypoint: app.py, "
        "agent_server: {type: responses_api_agents, name: quiz_agent}}}}"
    )
    blocks = load(*model, route, config_paths=files).server_blocks()
    assert [block.name for block in blocks if not block.starts_process] == ["quiz_env"]


@pytest.mark.parametrize("kind", ["environments", "benchmarks"])
def test_what_is_retired_is_not_listed_and_still_found_by_its_name(kind: str, write: Write, tmp_path: Path) -> None:
    for name in ("old", "kept"):
        write(f"{kind}/{name}/config.yaml")
        write(f"{kind}/{name}/config_small.yaml")
    write(f"{kind}/old/.nemo_gym_tombstone")
    assert set(component_config_files(kind, [tmp_path])) == {"kept", "kept/small"}
    assert find_component(kind, "old", [tmp_path]) == tmp_path / kind / "old" / "config.yaml"


def test_a_component_is_found_by_name_and_flavour_and_users_own_shadow_others(write: Write, tmp_path: Path) -> None:
    other = write("other/resources_servers/quiz/configs/quiz.yaml")
    hard = write("resources_servers/quiz/configs/hard.yaml")
    write("environments/world/config.yaml")
    write("environments/world/config_small.yaml")
    roots = component_search_roots([tmp_path / "other"], environ={}, cwd=tmp_path)
    assert roots == [tmp_path / "other", tmp_path, INSTALL_ROOT]
    assert find_component("resources_servers", "quiz", roots) == other
    assert find_component("resources_servers", "quiz/hard", roots) == hard
    assert {"world", "world/small"} <= set(component_config_files("environments", roots))
    with pytest.raises(ConfigFileNotFoundError, match=r"no resources server is called `quizz`. Did you mean `quiz`\?"):
        find_component("resources_servers", "quizz", roots)


def test_secrets_are_masked_and_nothing_else() -> None:
    shown = mask_secrets(
        {
            "policy_api_key": "sk-1",
            "hf_token": "hf",
            "max_tokens": 100,
            "max_output_tokens": 5,
            "tokenizer": "bert",
            "return_token_id_information": True,
            "empty_api_key": "",
            "unset_api_key": "???",
            "openai_api_key": None,
            "default_headers": {"Authorization": "Bearer x", "X-Api-Key": "y", "Accept": "json"},
            "api_keys": ["a", "b"],
            "url": "http://me:pw@host/v1",
            "credentials": {"user": "u"},
        }
    )
    assert shown == {
        "policy_api_key": "****",
        "hf_token": "****",
        "max_tokens": 100,
        "max_output_tokens": 5,
        "tokenizer": "bert",
        "return_token_id_information": True,
        "empty_api_key": "",
        "unset_api_key": "???",
        "openai_api_key": None,
        "default_headers": {"Authorization": "****", "X-Api-Key": "****", "Accept": "json"},
        "api_keys": ["****", "****"],
        "url": "http://me:****@host/v1",
        "credentials": {"user": "****"},
    }


@pytest.mark.parametrize("token", ["concurrency=3", "+concurrency=3", "++concurrency=3"])
def test_a_key_that_is_an_option_of_the_command_is_called_one(load: Load, token: str) -> None:
    message = failure(load, token, flags={"--concurrency", "--num-repeats"})
    assert "`--concurrency` is an option of this command" in message
    assert "To add a key" not in message
    assert "is an option" not in failure(load, token)


def test_a_key_of_a_file_that_is_an_option_of_the_command_is_noted_as_one(load: Load, write: Write) -> None:
    write("a.yaml", "concurrency: 3\n")
    [notice] = load(config_paths=["a.yaml"], flags={"--concurrency"}).notices
    assert "`--concurrency` is an option of this command" in notice


@pytest.mark.parametrize(
    ("token", "place"),
    [
        ('+policy_api_key="****"', "policy_api_key"),
        ("++policy_model={openai_api_key: '****'}", "policy_model.openai_api_key"),
        ("+policy_base_url=http://me:****@host/v1", "policy_base_url"),
        ("+judge={api_keys: [a, '****']}", "judge.api_keys[1]"),
    ],
)
def test_a_secret_that_is_the_mask_of_one_is_refused(load: Load, token: str, place: str) -> None:
    message = failure(load, token, known_keys={"judge"})
    assert f"`{place}` holds `****`" in message
    assert "set it in env.yaml" in message


def test_a_mask_in_a_file_is_said_once_and_with_the_file(load: Load, write: Write) -> None:
    write("a.yaml", "policy_api_key: '****'\nother_api_key: ${policy_api_key}\n")
    message = failure(load, config_paths=["a.yaml"])
    assert "a.yaml`) holds `****`" in message
    assert message.count("holds `****`") == 1
    write("env.yaml", "policy_api_key: '****'\n")
    message = failure(load)
    assert "env.yaml`) holds `****`, which only stands for a secret" in message
    assert message.endswith("Put the secret itself there.")


def test_what_merely_looks_like_a_mask_is_none(load: Load) -> None:
    given = load("+policy_model_name='****'", "+policy_api_key=*****", "+policy_base_url=http://me:x****@host/v1")
    assert given.data["policy_model_name"] == "****"
