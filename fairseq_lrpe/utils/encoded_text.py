"""Detection of text that cannot be encoded as UTF-8."""


def is_utf8(text: str) -> bool:
    """Returns whether a text can be encoded; Python reads bytes that are not UTF-8 as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
