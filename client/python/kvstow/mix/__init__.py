"""The texts that a model runs over: files of the user's, or the mix that comes with the package.

The mix lies beside this file: prose, code in several languages, chat, JSON, tables, logs and settings, and
other human languages. It was written for this package, or is a piece of the project's own docs and
sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, str]
_MIX = Path(__file__).resolve().parent  # the sources', where the build tree has links
_SPEAKERS = {"User: ": "user", "Assistant: ": "assistant", "System: ": "system"}


def read(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """Names and texts. Raises ValueError for a file that is not UTF-8."""
    found = []
    for path in paths or sorted(_MIX.glob("*.txt")):
        try:
            found.append((path.name, path.read_text(encoding="utf-8")))
        except UnicodeDecodeError as error:
            raise ValueError(f"--texts: {path} is not UTF-8: {error.reason}") from None
    return found


def conversations(text: str) -> list[list[Message]]:
    """The chats of a text: lines `User: ...`, `Assistant: ...`, parted by lines `---`."""
    chats = []
    for part in text.split("\n---\n"):
        chat: list[Message] = []
        for line in part.strip("\n").splitlines():
            speaker = next((start for start in _SPEAKERS if line.startswith(start)), None)
            if speaker is not None:
                chat.append({"role": _SPEAKERS[speaker], "content": line[len(speaker) :]})
            elif chat:
                chat[-1]["content"] += "\n" + line
        if chat:
            chats.append(chat)
    return chats


def in_the_models_words(name: str, text: str, tokenizer: Any) -> str:
    """A chat of the mix as the model's own template writes it; any other text as it is."""
    if name != "chat.txt" or not getattr(tokenizer, "chat_template", None):
        return text
    try:
        return "\n".join(
            str(tokenizer.apply_chat_template(chat, tokenize=False))
            for chat in conversations(text)
        )
    except Exception:  # a template may refuse a speaker, in its own words
        return text


def tokens_of(paths: Sequence[Path], tokenizer: Any) -> list[list[int]]:
    """The token ids of each text, without those that a tokenizer puts before it."""
    return [
        tokenizer(in_the_models_words(name, text, tokenizer), add_special_tokens=False)["input_ids"]
        for name, text in read(paths)
    ]


def cut(
    texts: Sequence[Sequence[int]], first: Sequence[int], count: int, length: int
) -> list[list[int]]:
    """All pieces of `length` tokens, each of which begins with `first`: at least `count`.

    Takes the texts in turn. Short texts and the ends of long ones are joined into pieces of their
    own. Raises ValueError where that is not enough.
    """
    size = length - len(first)
    whole: list[list[Sequence[int]]] = []
    rest: list[int] = []
    for tokens in texts:
        ends = range(size, len(tokens) + 1, size)
        whole.append([tokens[end - size : end] for end in ends])
        rest += tokens[len(tokens) // size * size :]
    whole.append([rest[at : at + size] for at in range(0, len(rest) - size + 1, size)])
    turns = range(max(map(len, whole)))
    pieces = [pieces[turn] for turn in turns for pieces in whole if turn < len(pieces)]
    if len(pieces) < count:
        raise ValueError(
            f"--tokens: the texts are good for {len(pieces) * length}, not for {count * length}; "
            "give more --texts, or fewer --tokens"
        )
    return [[*first, *piece] for piece in pieces]
