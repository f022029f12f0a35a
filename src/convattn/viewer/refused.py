"""What a host of the page does not do, with the HTTP status that says so."""

from convattn.errors import DataError

__all__ = ["RefusedError"]


class RefusedError(DataError):
    """A request that is not carried out; the message is for whoever asked."""

    def __init__(self, status: int, message: str) -> None:
        """Takes the HTTP status and what was wrong."""
        self.status = status
        super().__init__(message)

    def __reduce__(self) -> tuple[type, tuple[int, str]]:
        """Lets the error cross from one process to another."""
        return type(self), (self.status, str(self))
