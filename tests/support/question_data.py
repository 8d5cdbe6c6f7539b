"""A small data set of questions in SQuAD's format."""

import json

from data_prep.prepare import main

CITIES = "Rome Paris Oslo Lima Cairo Delhi".split()


def prepare_questions(out, *options):
    """Prepares questions about six paragraphs, 20 for training and 10 for validation, in ``out``.

    Args:
        out: folder to write; the source file is written next to it.
        *options: further options of ``lrpe prepare squad``, by default ``--pieces 90``.
    """
    paragraphs = []
    for i, city in enumerate(CITIES):
        context = f"In {1000 + i} Anna and {i} others lived in {city}, far away from home."
        pairs = [("Who lived there?", "Anna"), ("Where did Anna live?", city), ("When?", str(1000 + i))]
        pairs += [("How many others?", f"{i} others"), ("How far away?", "far away from home")]
        qas = [
            {"id": f"{i}-{k}", "question": question, "answers": [{"text": answer, "answer_start": 0}]}
            for k, (question, answer) in enumerate(pairs)
        ]
        paragraphs.append({"context": context, "qas": qas})
    source = out.with_suffix(".json")
    source.write_text(json.dumps({"version": "v2.0", "data": [{"title": "Anna", "paragraphs": paragraphs}]}))
    words = ["squad", "--from", source, "--cut", 20, 10, "--longest", 40, "--out", out, "--workers", 1]
    main([*map(str, words), *(options or ("--pieces", "90"))])
    return out
