"""Which algorithm a job trains by: what it computes, not how."""

from sim.training.spec import DenseTraining, TextbookTraining

BACKPROPAGATION = "backpropagation"


def algorithm_of(job: DenseTraining | TextbookTraining) -> str:
    """Return the algorithm's name, as the summary has it."""
    training = job if isinstance(job, TextbookTraining) else job.training
    return f"local updates, {training.update}" if training.method == "local" else BACKPROPAGATION


def algorithm_words(name: str) -> str:
    """Return what an algorithm does other than backpropagation; nothing for that."""
    return {
        "local updates, greedy": "every block learns from its own loss; NOT the gradients of backpropagation",
        "local updates, overlapping": "every block learns from its own loss and the next one's; "
        "NOT the gradients of backpropagation",
    }.get(name, "")
