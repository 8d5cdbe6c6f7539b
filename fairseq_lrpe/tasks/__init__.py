"""fairseq tasks for kinds of data and training that fairseq itself does not support."""

FAMILIES = {
    **dict.fromkeys(("language_modeling", "memory_lm", "synthetic_lm"), "lm"),
    **dict.fromkeys(("masked_lm", "sentence_prediction"), "roberta"),
    "translation": "transformer",
    "classification": "classifier",
    "question_generation": "question_generator",
    "image_classification": "vit",
}
"""{task: required family of architectures}; all other tasks accept every architecture."""
