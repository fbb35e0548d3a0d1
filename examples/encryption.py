"""Encrypt what jobs carry, and rotate the key without downtime.

    pip install cryptography
    export SHOP_KEYS=$(python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())")
    export SHOP_HASH_KEY=$(python -c "import secrets; print(secrets.token_hex(32))")
    reltask worker encryption:app

Arguments, results, progress, steps, signals and headers are encrypted in every table. To rotate the
key, deploy three times, each time to all processes before the next one:

    1. SHOP_KEYS=old,new     the new key can be read
    2. SHOP_KEYS=new,old     the new key is written
    3. SHOP_KEYS=new         when no row of the old key is left: see `maintenance.keep_runs`

SHOP_HASH_KEY never changes: unique jobs recognise their arguments by it.
"""

import os

from cryptography.fernet import Fernet, MultiFernet

from reltask import App


class Encryption:
    """Encrypts with the first key, and decrypts with any of them."""

    def __init__(self, keys: str, hash_key: str) -> None:
        self._fernet = MultiFernet([Fernet(key) for key in keys.split(",")])
        self.hash_key = bytes.fromhex(hash_key)

    def encode(self, data: bytes) -> bytes:
        return self._fernet.encrypt(data)

    def decode(self, data: bytes) -> bytes:
        return self._fernet.decrypt(data)


app = App(
    os.environ.get("SHOP_DATABASE", "sqlite:///shop.db"),
    codec=Encryption(os.environ["SHOP_KEYS"], os.environ["SHOP_HASH_KEY"]),
)


@app.task
async def charge(card: str, cents: int) -> str:
    return f"charged {cents} to the card that ends with {card[-4:]}"
