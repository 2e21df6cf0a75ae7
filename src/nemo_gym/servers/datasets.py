"""Datasets as a server's configuration declares them."""

from __future__ import annotations

import warnings
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

LICENSES: Final = (
    "Apache 2.0",
    "MIT",
    "Creative Commons Attribution 4.0 International",
    "Creative Commons Attribution-ShareAlike 4.0 International",
    "CC BY-SA 4.0",
    "CC BY-NC 3.0",
    "GNU General Public License v3.0",
    "NVIDIA Internal Use Only, Do Not Distribute",
    "NVIDIA Evaluation Dataset License Agreement",
    "TBD",
)

_SPDX: Final = {
    "apache-2.0": "Apache 2.0",
    "mit": "MIT",
    "cc-by-4.0": "Creative Commons Attribution 4.0 International",
    "cc-by-sa-4.0": "Creative Commons Attribution-ShareAlike 4.0 International",
    "cc-by-nc-3.0": "CC BY-NC 3.0",
    "gpl-3.0": "GNU General Public License v3.0",
    "gpl-3.0-only": "GNU General Public License v3.0",
    "gpl-3.0-or-later": "GNU General Public License v3.0",
}


def _known_license(value: object) -> object:
    """Accept the spelling that package indexes use beside the long names."""
    if not isinstance(value, str):
        return value
    name = _SPDX.get(value.lower(), value)
    if name not in LICENSES:
        raise ValueError(f"license `{value}` is not one of {', '.join(f'`{known}`' for known in LICENSES)}")
    return name


License: TypeAlias = Annotated[str, BeforeValidator(_known_license)]
TasksetName: TypeAlias = Annotated[str, Field(min_length=1)]


class HuggingFaceSource(BaseModel):
    """A dataset repository on Hugging Face."""

    type: Literal["huggingface"] = "huggingface"
    repo_id: str
    artifact_fpath: str | None = None


class GitlabSource(BaseModel):
    """A file of a GitLab package registry."""

    type: Literal["gitlab"] = "gitlab"
    dataset_name: str
    version: str
    artifact_fpath: str


class JsonlDatasetGitlabIdentifer(BaseModel):
    """The older form of `GitlabSource`."""

    dataset_name: str
    version: str
    artifact_fpath: str


class JsonlDatasetHuggingFaceIdentifer(BaseModel):
    """The older form of `HuggingFaceSource`."""

    repo_id: str
    artifact_fpath: str | None = None


DatasetSource: TypeAlias = Annotated[HuggingFaceSource | GitlabSource, Field(discriminator="type")]

_OMIT_WHEN_UNSET = ("prepare_script", "prepare_dependencies", "taskset")


class _PreparedDataset(BaseModel):
    prepare_dependencies: list[str] = Field(default_factory=list)
    taskset: TasksetName | None = None

    @model_serializer(mode="wrap")
    def _without_unset_preparation(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        dumped: dict[str, Any] = handler(self)
        for name in _OMIT_WHEN_UNSET:
            if name not in self.model_fields_set:
                dumped.pop(name, None)
        return dumped


class DatasetConfig(_PreparedDataset):
    """A JSONL file of rows for training, validation or as an example; the first two need a license."""

    name: str
    type: Literal["train", "validation", "example"]
    jsonl_fpath: str
    num_repeats: int = Field(default=1, ge=1)
    prepare_script: str | None = None
    license: License | None = None
    source: DatasetSource | None = None
    gitlab_identifier: JsonlDatasetGitlabIdentifer | None = None
    huggingface_identifier: JsonlDatasetHuggingFaceIdentifer | None = None

    @model_validator(mode="after")
    def _check(self) -> DatasetConfig:
        if self.type in ("train", "validation") and self.license is None:
            raise ValueError(f"a license is required for the {self.type} dataset `{self.name}`")
        older = [self.gitlab_identifier, self.huggingface_identifier]
        given = [identifier for identifier in older if identifier is not None]
        if self.source is not None and given:
            raise ValueError("give `source`, or `gitlab_identifier`/`huggingface_identifier`, not both")
        if given:
            warnings.warn(
                f"dataset `{self.name}`: `gitlab_identifier` and `huggingface_identifier` are older forms of `source`",
                DeprecationWarning,
                stacklevel=2,
            )
        if len(given) == 1:
            self._mirror_identifier(given[0])
        elif isinstance(self.source, HuggingFaceSource):
            self.huggingface_identifier = JsonlDatasetHuggingFaceIdentifer(**self.source.model_dump(exclude={"type"}))
        elif isinstance(self.source, GitlabSource):
            self.gitlab_identifier = JsonlDatasetGitlabIdentifer(**self.source.model_dump(exclude={"type"}))
        return self

    def _mirror_identifier(self, identifier: JsonlDatasetGitlabIdentifer | JsonlDatasetHuggingFaceIdentifer) -> None:
        source = GitlabSource if isinstance(identifier, JsonlDatasetGitlabIdentifer) else HuggingFaceSource
        self.source = source(**identifier.model_dump())


class BenchmarkDatasetConfig(_PreparedDataset):
    """A dataset that a script prepares; `agent` pins who runs it, which a taskset already decides."""

    name: str
    type: Literal["benchmark"]
    jsonl_fpath: str
    prepare_script: str
    prompt_config: str | None = None
    num_repeats: int = Field(default=1, ge=1)
    agent: str | None = None

    @model_validator(mode="after")
    def _check(self) -> BenchmarkDatasetConfig:
        if self.agent is not None and self.taskset is not None:
            raise ValueError("`agent` cannot be pinned on a dataset that names a `taskset`")
        return self
