"""Datagrams that only one receiver can read, and only one sender can make.

    own = DatagramKeyPair()                       a new pair, for as long as datagrams of one round travel
    seal = own.seal_with(public)                  with the half that a member has told over its link
    sealed = seal.close(number, body)             number: of this datagram, never used again
    body = other.open(number, sealed)             InvalidDatagramError if anything was changed, or somebody else made it

X25519 gives two members a secret, HKDF makes a key for each direction of it, and AES-GCM encrypts and authenticates:
all three from the package `cryptography`. The nonce is the number, so a datagram can be read whatever was lost before
it; whether it was seen before is for the caller to say.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from shoal.core.errors import PayloadError

# Sizes of X25519 and AES-GCM; AES-128, as secure as the key exchange, which has 128 bits of security itself.
PUBLIC_BYTES, TAG_BYTES = 32, 16
_KEY_BYTES, _NONCE_BYTES = 16, 12
_PURPOSE = b"shoal datagrams"


class InvalidDatagramError(PayloadError):
    """A datagram that the member it claims to come from has not made."""


class DatagramSeal:
    """Between this worker and one other."""

    def __init__(self, leaving: bytes, arriving: bytes) -> None:
        self._leaving, self._arriving = AESGCM(leaving), AESGCM(arriving)

    def close(self, number: int, body: bytes) -> bytes:
        """Encrypt; `TAG_BYTES` longer than `body`."""
        return self._leaving.encrypt(number.to_bytes(_NONCE_BYTES, "little"), body, None)

    def open(self, number: int, sealed: bytes) -> bytes:
        try:
            return self._arriving.decrypt(number.to_bytes(_NONCE_BYTES, "little"), sealed, None)
        except InvalidTag:
            raise InvalidDatagramError(f"datagram {number} was not made by the member that it names") from None


class DatagramKeyPair:
    """This worker's half of the secrets with all others; it never leaves the process."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

    def seal_with(self, public: bytes) -> DatagramSeal:
        """Return the seal with the member that told this half; PayloadError for bytes that are no key."""
        try:
            secret = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:  # also for the few points with which every secret is the same
            raise PayloadError(f"{public[:4].hex()}… ({len(public)} bytes) is no key for datagrams") from None
        # One key for each direction, because both sides count datagrams from 0, and GCM breaks if a nonce is used
        # twice.
        return DatagramSeal(_derive(secret, self.public + public), _derive(secret, public + self.public))


def _derive(secret: bytes, direction: bytes) -> bytes:
    """The key of one direction: sender's half, then receiver's."""
    return HKDF(hashes.SHA256(), _KEY_BYTES, None, _PURPOSE + direction).derive(secret)
