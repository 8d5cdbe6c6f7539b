"""Models of Hugging Face's Transformers with the encodings of this package in place of their own positions.

For example, for a model in a folder or of the hub:

    model = AutoModelForCausalLM.from_pretrained("llama")
    replace_positions(model, "lrpe", learn_theta=True)
    model.save_pretrained("llama-lrpe")
    model = from_pretrained("llama-lrpe")
"""

try:
    import transformers  # noqa: F401
except ModuleNotFoundError as error:
    message = f"fairseq_lrpe.hf needs Transformers ({error}): run `pip install '.[hf]'` in the checkout"
    raise ImportError(message) from None

from fairseq_lrpe.hf.replacement import from_pretrained, replace_positions

__all__ = ["from_pretrained", "replace_positions"]
