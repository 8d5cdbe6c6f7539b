"""The tokenization of a corpus as a tokenizer of Transformers, which ``lrpe export`` writes."""

import os
import shutil
from pathlib import Path

from fairseq.data import Dictionary
from transformers import PreTrainedTokenizer

from fairseq_lrpe.data import line_codec

FILES = {
    "vocab_file": "dict.txt",
    "spm_file": line_codec.SENTENCEPIECE,
    "encoder_file": "encoder.json",
    "merges_file": "vocab.bpe",
    "units_file": "corpus_tokenizer.json",
}
"""{argument: file}; the dictionary, and files for SentencePiece, GPT-2 BPE, and a tokenizer.json

The last one has another name than in the corpus, because its numbers of tokens are not those of the model.
"""


class ExportedTokenizer(PreTrainedTokenizer):
    """Tokenizer of a corpus, as in the training of a model.

    A text starts with ``</s>``, or with ``<s>`` if the training used it. ``</s>`` also represents a line
    break.

    Args:
        vocab_file: path of the dictionary.
        spm_file: path of the SentencePiece model, or None.
        encoder_file: path of the vocabulary of GPT-2 BPE, next to its merges, or None.
        merges_file: path of the merges of GPT-2 BPE, or None.
        units_file: path of a tokenizer of the package tokenizers, or None.
        **kwargs: see Transformers' ``PreTrainedTokenizer``.
    """

    vocab_files_names = FILES
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(
        self, vocab_file, spm_file=None, encoder_file=None, merges_file=None, units_file=None, **kwargs
    ):
        self.dictionary = Dictionary.load(str(vocab_file))
        given = [vocab_file, spm_file, encoder_file, merges_file, units_file]
        self.files = dict(zip(FILES.values(), given, strict=True))
        if spm_file:
            self.codec = line_codec.SentencePieces(Path(spm_file))
        elif units_file:
            self.codec = line_codec.TokenizerFile(Path(units_file))
        elif encoder_file:
            self.codec = line_codec.BytePairs(Path(encoder_file).parent)
        else:
            symbols = self.dictionary.symbols[self.dictionary.nspecial :]
            self.codec = line_codec.load(Path(vocab_file).parent, symbols)
        special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "bos_token": "</s>"}
        others = {"padding_side": "left", "clean_up_tokenization_spaces": False}
        super().__init__(**(special | others | kwargs))

    @property
    def vocab_size(self) -> int:
        return len(self.dictionary)

    def get_vocab(self) -> dict[str, int]:
        return self.dictionary.indices | self.added_tokens_encoder

    def tokenize(self, text: str, **kwargs: object) -> list[str]:
        """Returns the symbols of lines of text, with ``</s>`` between lines."""
        first, *others = text.split("\n")
        symbols = self.codec.encode(first).split()
        for line in others:
            symbols += [line_codec.END, *self.codec.encode(line).split()]
        return symbols

    def _convert_token_to_id(self, token):
        return self.dictionary.index(token)

    def _convert_id_to_token(self, index):
        return self.dictionary[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return self.codec.decode(" ".join(tokens))

    def build_inputs_with_special_tokens(self, token_ids_0, token_ids_1=None):
        return [self.bos_token_id, *token_ids_0, *(token_ids_1 or [])]

    def save_vocabulary(self, save_directory, filename_prefix=None):
        copies = []
        for name, file in self.files.items():
            if file:
                copies.append(str(Path(save_directory, name)))
                if os.path.abspath(file) != os.path.abspath(copies[-1]):
                    shutil.copyfile(file, copies[-1])
        return tuple(copies)
