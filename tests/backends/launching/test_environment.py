"""What the environment may say of a running job, and what is refused by name."""

import socket
from pathlib import Path

import pytest

from backends.execution.errors import JobError
from backends.torch.launching.environment import JobMember, job_member, refuse_unknown_address
from scenarios.cli import main
from tests.backends.plans import ring_plan

TINY = Path(__file__).parents[3] / "scenarios" / "library" / "tiny-gpt-2x2.yaml"
JOB = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
LOCAL = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def member(**changes: str | None) -> JobMember | None:
    """Return the place in the job of two with other variables; None takes one away."""
    found = {name: value for name, value in {**JOB, **changes}.items() if value is not None}
    return job_member(found, [ring_plan()])


def test_a_job_is_read() -> None:
    """Rank, size and address come from torchrun's variables; the rest is known only where it is said."""
    alone = member()
    assert alone is not None
    assert (alone.rank, alone.size, alone.local_rank, alone.local_size) == (1, 2, 0, None)
    assert (alone.address, alone.port, alone.serves_store) == ("localhost", 29500, False)
    full = member(RANK="0", **LOCAL)
    assert full is not None
    assert (full.local_rank, full.local_size, full.serves_store) == (1, 2, True)
    served = member(RANK="0", TORCHELASTIC_USE_AGENT_STORE="True")
    assert served is not None
    assert not served.serves_store


def test_an_address_alone_is_no_job() -> None:
    """Some computers set MASTER_ADDR for all processes; without a rank they start local ones."""
    assert member(RANK=None, WORLD_SIZE=None) is None
    assert job_member({}, []) is None


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"RANK": "x"}, r"RANK=x: this is not a whole number; the ranks of 2 processes \(WORLD_SIZE\) count"),
        ({"RANK": ""}, "RANK=: it is empty"),
        ({"RANK": "7"}, r"RANK=7: the ranks of 2 processes \(WORLD_SIZE\) count from 0 to 1"),
        ({"RANK": "2"}, "RANK=2: the ranks"),
        ({"RANK": "-1"}, "RANK=-1: this is not a whole number"),
        ({"RANK": "1.0"}, "RANK=1.0: this is not"),
        ({"RANK": "\u0663"}, "RANK=\u0663: this is not"),
        ({"RANK": None}, "RANK: it is not set, but WORLD_SIZE=2 says"),
        ({"WORLD_SIZE": None}, "WORLD_SIZE: it is not set, but RANK=1 says"),
        ({"WORLD_SIZE": "zz"}, "WORLD_SIZE=zz: this is not a whole number"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0: it is the number of processes"),
        ({"WORLD_SIZE": "3"}, r"WORLD_SIZE=3: plan 'ring' has 2 ranks, the job has 3 \(WORLD_SIZE\)"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR: it is not set"),
        ({"MASTER_ADDR": " "}, "MASTER_ADDR= : it is empty"),
        ({"MASTER_PORT": None}, "MASTER_PORT: it is not set"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT=http: this is not a whole number"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT=0: a port is a number from 1 to 65535"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT=99999: a port is"),
        ({"LOCAL_RANK": "b"}, "LOCAL_RANK=b: this is not a whole number"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2: the ranks of this machine count from 0 to 1"),
        ({"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "1"}, "LOCAL_RANK=1: the ranks of this machine count from 0 to 0"),
        ({"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE=3: it is the number of the job's processes on this machine"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE=0: it is"),
        ({"RANK": None, "WORLD_SIZE": None, "LOCAL_RANK": "0"}, "WORLD_SIZE: it is not set, but LOCAL_RANK=0 says"),
    ],
)
def test_variables_that_break_a_rule_are_refused(changes: dict[str, str | None], rule: str) -> None:
    """The message has the variable, its value and the rule, and then the remedy."""
    with pytest.raises(JobError, match=rf"(?s)^{rule}.*;\n    \w"):
        member(**changes)


def test_an_unknown_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that no computer has is refused by its variable before anything waits for it."""

    def nobody(*_: object, **_named: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    found = member(MASTER_ADDR="nowhere")
    assert found is not None
    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    with pytest.raises(JobError, match="MASTER_ADDR=nowhere: no computer of this name is known here"):
        refuse_unknown_address(found)


def test_the_command_line_refuses_it_as_bad_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One message, exit code 2, no traceback; and nothing is started."""
    monkeypatch.setenv("RANK", "x")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(
        "scenarios.workloads.steps.executing.execution.load_torch_backend", lambda: pytest.fail("went on")
    )
    with pytest.raises(SystemExit) as caught:
        main(["execute", str(TINY)])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("error: RANK=x: this is not a whole number;")
