"""What goes wrong with a registry itself, as opposed to what the user wrote."""

from shoal.core.errors import ShoalError


class RegistryError(ShoalError):
    """The registry cannot do it: a full disk, a damaged blob, another process that does not let go."""
