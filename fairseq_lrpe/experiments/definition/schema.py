"""Validation of YAML files with pydantic models; errors have one line, which names the key."""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.suggest import choices


class Model(BaseModel):
    """Base class for the contents of YAML files; rejects unknown keys and values of the wrong type."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def check_keys(cls, content: object) -> object:
        for key in content if isinstance(content, Mapping) else ():
            if key not in cls.model_fields:
                raise error_at(str(key), f"unknown key{choices(key, cls.model_fields)}")
        return content


ModelType = TypeVar("ModelType", bound=Model)


def error_at(key: str, message: str) -> PydanticCustomError:
    """Returns the exception that a model's validator raises for one of its keys."""
    return PydanticCustomError("invalid_key", "{message}", {"message": message, "key": key})


def validate(model: type[ModelType], content: object) -> ModelType:
    """Returns the content of a YAML file as a ``model``; raises UserError for the first error."""
    try:
        return model.model_validate(content)
    except ValidationError as errors:
        error = errors.errors(include_url=False, include_input=False)[0]
    keys = [*error["loc"], *([error["ctx"]["key"]] if error["type"] == "invalid_key" else [])]
    location = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
    message = error["msg"].removeprefix("Value error, ").partition(" or instance of ")[0]
    raise UserError(f"{location}{': ' * bool(location)}{message[0].lower()}{message[1:]}")
