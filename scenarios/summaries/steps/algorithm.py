"""The training algorithm of a job: its mathematics, apart from how it is computed."""

from sim.training.spec.method import LocalUpdate, Method

BACKPROPAGATION = "backpropagation"
DELAYED = "backpropagation, gradients one step late"


def algorithm_name(method: Method, update: LocalUpdate, gradient_delay: int) -> str:
    """Return the algorithm's name, as the summary has it; ``gradient_delay``: in steps."""
    if method == "local":
        return f"local updates, {update}"
    return DELAYED if gradient_delay else BACKPROPAGATION


def algorithm_words(name: str) -> str:
    """Return the algorithm's difference from backpropagation; empty for backpropagation."""
    return {
        "local updates, greedy": "every block learns from its own loss; NOT the gradients of backpropagation",
        DELAYED: "asynchronous: W(t+1) = W(t) - update(g(W(t-1))), staleness 1; NOT synchronous SGD",
        "local updates, overlapping": "every block learns from its own loss and the next one's; "
        "NOT the gradients of backpropagation",
    }.get(name, "")
