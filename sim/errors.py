"""The form of errors that name a scenario key; each room of ``sim`` has its own.

KeyedError (ValueError)    something that cannot be simulated as it is written
"""


class KeyedError(ValueError):
    """A specification that breaks a rule.

    ``key``: the scenario key to change (``parallel.tensor.degree``). ``rule``: the broken rule, with both sides worked
    out. ``remedy``: what to write instead.
    """

    def __init__(self, key: str, rule: str, remedy: str) -> None:
        super().__init__(f"{key}: {rule}; {remedy}")
        self.key = key
        self.rule = rule
        self.remedy = remedy
