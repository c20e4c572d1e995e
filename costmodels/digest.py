"""BLAKE2b, which tells contents apart: Python's own function, which ``hashlib`` has too.

``hashlib`` loads OpenSSL for its other functions, which takes longer than all digests of a step.
"""

from _blake2 import blake2b as blake2b
