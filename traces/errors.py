"""Errors of the traces room.

TraceError (ValueError)   a file of timelines or published measurements that cannot be used as such
└── StreamError           a timeline whose ops overlap on a stream: no device can have run it so
"""


class TraceError(ValueError):
    """Input that breaks a rule: file and line (0: no line), key or column, rule and remedy.

    ``problem``: the message without the remedy.
    """

    def __init__(self, file: str, rule: str, remedy: str, *, line: int = 0, key: str = "") -> None:
        where = f"{file}:{line}: " if line else f"{file}: "
        named = f"{key}: " if key else ""
        self.problem = f"{where if file else ''}{named}{rule}"
        super().__init__(f"{self.problem};\n    {remedy}")
        self.file = file
        self.line = line
        self.key = key
        self.rule = rule
        self.remedy = remedy


class StreamError(TraceError):
    """Two ops of one stream of one rank that ran at the same time."""
