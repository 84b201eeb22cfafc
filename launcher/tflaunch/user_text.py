"""Read text files of users: specs, lists of hosts, files of variables."""

import codecs
import os
from pathlib import Path

MIB = 1 << 20


class UserTextError(Exception):
    """A text cannot be used: a clause without its subject, and ``hint``, the remedy."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def read_user_text(path: Path, most: int = MIB) -> str:
    """Return the text of a file of at most ``most`` bytes.

    Raises:
        UserTextError: it cannot be read, is too large, or is not text.
    """
    try:
        with path.open("rb") as file:
            return decode_user_text(file.read(most + 1), most)
    except PermissionError as error:
        hint = f"user {os.getuid()} needs permission to read it and to enter {path.absolute().parent}"
        raise UserTextError(f"cannot be read: {error.strerror}", hint) from None
    except (OSError, ValueError) as error:  # a path with a NUL character is a ValueError
        raise UserTextError(f"cannot be read: {getattr(error, 'strerror', None) or error}", "") from None


def decode_user_text(data: bytes, most: int = MIB) -> str:
    """Return text in UTF-8 without the byte order mark of editors on Windows.

    Raises:
        UserTextError: it is too large, or is not text.
    """
    if len(data) > most:
        raise UserTextError(f"is larger than {most // MIB} MiB", "write less")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserTextError("is text in UTF-16", "save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserTextError(f"is not text in UTF-8 (byte {error.start})", "save it as UTF-8") from None
