"""Validation of the content of files with pydantic models; errors have one line, which names the key."""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fairseq_lrpe.utils.errors import UserError


class Model(BaseModel):
    """Base class for the contents of YAML files; rejects unknown keys and values of the wrong type."""

    model_config = ConfigDict(strict=True, extra="forbid")


ModelType = TypeVar("ModelType", bound=BaseModel)
MESSAGES = {"extra_forbidden": "unknown key", "missing": "this key is missing"}
"""{pydantic's type of an error: message}"""


def validate(model: type[ModelType], content: object) -> ModelType:
    """Returns the content of a file as a ``model``; raises UserError with one of its errors."""
    try:
        return model.model_validate(content)
    except ValidationError as errors:
        details = errors.errors(include_url=False, include_input=False)
    error = min(details, key=lambda error: error["type"] != "extra_forbidden")  # an unknown key, if any
    location = ""
    for key in error["loc"]:
        location += f"[{key}]" if isinstance(key, int) else f".{key}"
    message = error["msg"].removeprefix("Value error, ").partition(" or instance of ")[0]
    message = MESSAGES.get(error["type"], f"{message[0].lower()}{message[1:]}")
    raise UserError(f"{location.removeprefix('.')}: {message}" if location else message)
