"""GPT-2 BPE on several processes, with a small vocabulary."""

import pytest
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

from data_prep import gpt2_bpe, parallel

LINES = [
    "the thing — that Ångström thought of: 漢字, 🙂 and\ttabs\n",
    "\n",
    "   the blanks at both ends   \n",
    " \u00a0 \n",
    "don't 'they' say 12,345.67?\r\n",
    "a line\u2028separator, a form\x0cfeed, \x85 and a carriage\rreturn do not end lines\n",
]


@pytest.mark.parametrize("end", ["\n", "and no end"])
def test_the_output_does_not_depend_on_the_number_of_processes(end, tiny_bpe, tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "LINES", 7)
    text = "".join(f"{i} {line}" if line.strip() else line for i in range(20) for line in LINES) + end
    (tmp_path / "text").write_text(text, encoding="utf-8", newline="")
    encoder = get_encoder(str(tiny_bpe / "encoder.json"), str(tiny_bpe / "vocab.bpe"))
    with (tmp_path / "text").open(encoding="utf-8", newline="\n") as file:
        lines = [line.strip() for line in file]
    expected = "".join(" ".join(map(str, encoder.encode(line))) + "\n" for line in lines)
    for workers in (1, 3):
        target = tmp_path / f"encoded{workers}"
        parallel.map_lines(gpt2_bpe.line_encoder(tiny_bpe), tmp_path / "text", target, workers)
        assert target.read_text() == expected
    decoded = [encoder.decode(map(int, line.split())) for line in expected.splitlines()]
    assert decoded == lines and lines.count("") >= 40
    assert not list(tmp_path.glob("*.part"))


def test_copies_are_verified_and_a_longer_dictionary_is_truncated(tiny_bpe, tmp_path):
    short = (tiny_bpe / "dict.txt").read_bytes()
    (tiny_bpe / "dict.txt").write_bytes(short + b"madeupword0003 0\nmadeupword0004 0\n")
    gpt2_bpe.provide(tmp_path / "bpe", tiny_bpe)
    assert (tmp_path / "bpe" / "dict.txt").read_bytes() == short
    assert (tmp_path / "bpe" / "vocab.bpe").read_bytes() == (tiny_bpe / "vocab.bpe").read_bytes()

    (tiny_bpe / "dict.txt").write_bytes(short + b"another 0\n")
    with pytest.raises(ValueError, match=r"dict\.txt is not the published dict\.txt"):
        gpt2_bpe.provide(tmp_path / "other", tiny_bpe)


def test_a_small_vocabulary_has_the_first_merges(tiny_bpe, tmp_path):
    folder = tmp_path / "bpe"
    gpt2_bpe.provide(folder, tiny_bpe, 258)
    ids = [int(line.split()[0]) for line in (folder / "dict.txt").read_text().splitlines()]
    assert ids == list(range(258))
    complete, small = (get_encoder(str(x / "encoder.json"), str(x / "vocab.bpe")) for x in (tiny_bpe, folder))
    for line in LINES:
        encoded = small.encode(line)
        assert set(encoded) <= set(ids) and small.decode(encoded) == line == complete.decode(encoded)
    assert [complete.decoder[i] for i in complete.encode("the the")] == ["the", "Ġthe"]
    assert [small.decoder[i] for i in small.encode("the the")] == ["the", "Ġ", "the"]

    gpt2_bpe.provide(folder, tiny_bpe, 258)
    with pytest.raises(ValueError, match="another --bpe-types: pass the same number, or change --out"):
        gpt2_bpe.provide(folder, tiny_bpe)
    with pytest.raises(ValueError, match=r"--bpe-types 261 is too large: use at most 260, all types"):
        gpt2_bpe.provide(tmp_path / "large", tiny_bpe, 261)
    assert not (tmp_path / "large").exists()
