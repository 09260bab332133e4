"""Messages of errors: as long as a reader can take in, whatever a file holds."""

import pytest

from segunc.core.errors import MAX_MESSAGE_LENGTH, InputError


@pytest.mark.parametrize("length", [MAX_MESSAGE_LENGTH + 1, 100_000])
def test_an_error_shows_the_start_of_what_was_given(length: int) -> None:
    given = "x" * length
    error = InputError(given, "give a shorter one")
    assert str(error) == f"{given[:1000]} ... Hint: give a shorter one"
    assert error.command_line == str(error)


def test_a_message_of_the_greatest_length_is_whole() -> None:
    message = "x" * MAX_MESSAGE_LENGTH
    assert str(InputError(message)) == message
