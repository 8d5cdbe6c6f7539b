"""Tasks of fairseq for the data that fairseq itself cannot read."""

FAMILIES = {
    **dict.fromkeys(("language_modeling", "memory_lm", "synthetic_lm"), "lm"),
    **dict.fromkeys(("masked_lm", "sentence_prediction"), "roberta"),
    "translation": "transformer",
    "classification": "classifier",
    "question_generation": "question_generator",
    "image_classification": "vit",
}
"""{task: the family of architectures that it is for}; other tasks, such as a plugin's, are not checked."""
