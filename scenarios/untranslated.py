"""What takes the place of Python's ``gettext`` in commands: texts as they are.

click asks for translations of its own texts, of which it brings none. The program's texts are English, and so are
click's beside them. ``gettext`` takes 2 ms to load and to look for files that would hold translations
(``scenarios/on_use.py``).
"""


def gettext(message: str) -> str:
    """Return a text."""
    return message


def ngettext(msgid1: str, msgid2: str, n: int) -> str:
    """Return the text for a number of things: the first for one."""
    return msgid1 if n == 1 else msgid2
