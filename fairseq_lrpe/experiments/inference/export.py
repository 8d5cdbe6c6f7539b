"""Export of a trained language model as a folder that Transformers reads."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fairseq_lrpe import extensions
from fairseq_lrpe.data import line_codec
from fairseq_lrpe.experiments.inference.language_model import SyntheticLanguageModel
from fairseq_lrpe.experiments.inference.load import TrainedModel, find, load_model
from fairseq_lrpe.fairseq_ext.checkpoint import read_checkpoint
from fairseq_lrpe.models.decoder import Decoder
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import atomic_folder, output_folder, write_atomic

if TYPE_CHECKING:
    from fairseq_lrpe.hf import exported

TASKS = ("language_modeling", "synthetic_lm")
TOLERANCE = 1e-5
"""Maximum difference of the exported model's logits, relative to the largest one."""
MODELING = "modeling_fairseq_lrpe"
CLASSES = {
    "AutoConfig": f"{MODELING}.ExportedConfig",
    "AutoModelForCausalLM": f"{MODELING}.ExportedLanguageModel",
}
TOKENIZER = {"AutoTokenizer": [f"{MODELING}.ExportedTokenizer", None]}
CODE = '''\
"""The classes of this folder, which are those of the installed package fairseq_lrpe."""

from fairseq_lrpe.hf import exported, tokenizer


class ExportedConfig(exported.ExportedConfig):
    """Configuration of the model."""


class ExportedLanguageModel(exported.ExportedLanguageModel):
    """The language model."""

    config_class = ExportedConfig


class ExportedTokenizer(tokenizer.ExportedTokenizer):
    """The tokenizer of the model's corpus, if the folder has its files."""
'''
README = """\
# {name}

A language model with the architecture {architecture}, trained with fairseq-lrpe and written by `lrpe export`.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(".", trust_remote_code=True)
```

`trust_remote_code=True` lets Transformers run {modeling}.py, which imports its classes from the package
fairseq_lrpe. The package has to be installed with the extras train and hf; nothing is downloaded.
{extension}
{tokenizer}
"""
WITH_TOKENIZER = """\
The tokenizer is that of the training: `AutoTokenizer.from_pretrained(".", trust_remote_code=True)`. The token
</s> starts a text and ends each line. `skip_special_tokens=True` also removes line breaks."""
WITHOUT_TOKENIZER = (
    "The folder has no tokenizer, because the model's tokens are symbols of a synthetic problem."
)


def export(run: Path, folder: Path, data: Path | None = None) -> None:
    """Writes the language model of a run to a new folder.

    Args:
        run: folder of a run, whose evaluated checkpoint is exported, or a checkpoint file.
        folder: the folder to create.
        data: data folder with the dictionary and tokenizer (default: that of the training).

    Raises:
        UserError: if there is no such language model, or the folder exists or cannot be written.
    """
    check_transformers()
    from transformers.utils import logging

    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} exists: remove it, or choose another folder")
    checkpoint, settings = find(run, TASKS)
    with output_folder(folder.parent):
        trained = load_model(checkpoint, data=data, cpu=True)
        exported = exported_model(trained, checkpoint, settings)
        has_tokenizer = not isinstance(trained, SyntheticLanguageModel)
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()
        try:
            with atomic_folder(folder) as part:
                exported.save_pretrained(part)
                if has_tokenizer:
                    write_tokenizer(trained, exported.config, part)
                write_atomic(part / f"{MODELING}.py", CODE)
                write_atomic(part / "README.md", readme(folder.name, exported.config, has_tokenizer))
        finally:
            logging.set_verbosity(verbosity)


def check_transformers() -> None:
    """Raises a UserError if Transformers is not installed."""
    try:
        import fairseq_lrpe.hf  # noqa: F401
    except ImportError as error:
        raise UserError(str(error)) from None


def exported_model(
    trained: TrainedModel, checkpoint: Path, settings: dict
) -> "exported.ExportedLanguageModel":
    """Returns the model of Transformers with the weights of a trained model.

    Args:
        trained: the trained language model.
        checkpoint: its checkpoint.
        settings: the settings of its task.

    Raises:
        UserError: if it is not a model of this plugin, or if the outputs differ.
    """
    from fairseq_lrpe.hf import exported

    decoder = trained.model.decoder
    dictionary = trained.task.target_dictionary
    if not isinstance(decoder, Decoder):
        raise UserError(f"{checkpoint} is fairseq's own model: export a model of this plugin")
    if len(trained.task.source_dictionary) != len(dictionary):
        raise UserError(
            f"{checkpoint} predicts only a part of the tokens that it reads: export another model"
        )
    flags = dict(read_checkpoint(checkpoint, "train it with `lrpe train`")["cfg"]["model"])
    flags["max_target_positions"] = decoder.max_target_positions
    is_of_lines = settings.get("sample_break_mode") == "eos"
    config = exported.ExportedConfig(
        flags=flags,
        shared_weights=shared_weights(trained.model, "model."),
        vocab_size=len(dictionary),
        hidden_size=decoder.embed_dim,
        num_hidden_layers=len(decoder.layers),
        num_attention_heads=decoder.layers[0].self_attn.num_heads,
        bos_token_id=dictionary.bos() if settings.get("add_bos_token") else dictionary.eos(),
        eos_token_id=dictionary.eos() if is_of_lines else None,
        pad_token_id=dictionary.pad(),
        auto_map=CLASSES,
    )
    model = exported.ExportedLanguageModel(config)
    model.model.load_state_dict(trained.model.state_dict())
    model.eval()
    model.generation_config.use_cache = True
    # Like `lrpe generate`, which never chooses padding.
    model.generation_config.suppress_tokens = [dictionary.pad()]
    check_logits(trained, model)
    return model


def shared_weights(module: torch.nn.Module, prefix: str) -> dict[str, str]:
    """Returns {name: first name} of the weights of a module that have several names.

    Args:
        module: the module.
        prefix: beginning of the returned names.
    """
    first_names = {}
    shared = {}
    for name, weight in module.state_dict(keep_vars=True).items():
        first = first_names.setdefault(id(weight), name)
        if first != name:
            shared[prefix + name] = prefix + first
    return shared


@torch.no_grad()
def check_logits(trained: TrainedModel, exported: "exported.ExportedLanguageModel") -> None:
    """Raises a UserError if an exported model has other logits than the trained one."""
    nspecial = trained.task.source_dictionary.nspecial
    length = min(16, trained.model.max_positions())
    tokens = nspecial + torch.arange(length)[None] % (exported.config.vocab_size - nspecial)
    decoder = trained.model.decoder
    expected = decoder(tokens)[0]
    if decoder.adaptive_softmax is not None:
        expected = decoder.adaptive_softmax.get_log_prob(expected, None)
    difference = (exported(tokens).logits - expected).abs().max() / expected.abs().max()
    if not difference <= TOLERANCE:
        raise UserError(
            f"the exported model has other logits (relative difference {difference:.1e}): report it"
        )


def write_tokenizer(trained: TrainedModel, config: "exported.ExportedConfig", folder: Path) -> None:
    """Writes the tokenizer of a trained model's corpus to a folder."""
    from fairseq_lrpe.hf.tokenizer import FILES, ExportedTokenizer

    codec = trained.codec
    files = {"vocab_file": trained.data / FILES["vocab_file"]}
    if isinstance(codec, line_codec.SentencePieces):
        files["spm_file"] = codec.model
    elif isinstance(codec, line_codec.TokenizerFile):
        files["units_file"] = codec.path
    elif isinstance(codec, line_codec.BytePairs):
        for name in ("encoder_file", "merges_file"):
            files[name] = codec.folder / FILES[name]
    start = trained.task.source_dictionary[config.bos_token_id]
    tokenizer = ExportedTokenizer(**files, bos_token=start, auto_map=TOKENIZER)
    if type(tokenizer.codec) is not type(codec):
        raise UserError(
            f"the tokenizer in {trained.data} cannot be exported: export a model of another corpus"
        )
    tokenizer.save_pretrained(folder)


def readme(name: str, config: "exported.ExportedConfig", has_tokenizer: bool) -> str:
    """Returns the README.md of an exported model."""
    return README.format(
        name=name,
        architecture=config.flags["_name"],
        modeling=MODELING,
        extension=describe_extension(config.flags),
        tokenizer=WITH_TOKENIZER if has_tokenizer else WITHOUT_TOKENIZER,
    )


def describe_extension(flags: dict) -> str:
    """Returns a line about the module that registers the encoding, or "" if it is of this package.

    ``flags`` are the flags of fairseq's model.
    """
    extension = extensions.origin(flags.get("encoding", "none"))
    if extension is None:
        return ""
    return f"Import the module that registers the encoding first: {extension.source}.\n"
