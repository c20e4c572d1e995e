"""The digest against the example of its specification."""

from costmodels.digest import blake2b


def test_blake2b_of_abc_is_that_of_the_specification() -> None:
    """RFC 7693, appendix A."""
    assert blake2b(b"abc").hexdigest() == (
        "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1"
        "7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923"
    )
