"""The files of PostgreSQL's TLS options: which of them the driver reads, and what is wrong with one once it has failed.

    sslmode     disable │ allow  prefer │ require  verify-ca  verify-full
    it reads    nothing │ sslcert and sslkey
                        │               │ sslrootcert and sslcrl; to verify there has to be an sslrootcert

Where the URL and the environment are silent, it reads the file in ~/.postgresql, if there is one.

The driver reads these files before it connects, and an error of theirs looks like one of the network: "no such file" is
also what a socket file says whose server is not up yet. Only a second look tells a mistake, which stays one, from an
outage, which passes. An error that no file can cause is not looked into.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from reltask.errors import SettingsError
from reltask.model.connection_url import safe_value

MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
"""What `sslmode` may be, from the weakest to the strongest."""
_READ_TO_VERIFY = frozenset({"require", "verify-ca", "verify-full"})
_VERIFIED = frozenset({"verify-ca", "verify-full"})
_OF_FILES = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, ssl.SSLError, ValueError)
"""What a file or an option that cannot be used makes the driver raise."""


def tls_mistake(query: Mapping[str, str], error: BaseException) -> SettingsError | None:
    """The first TLS option, of a URL's query or the environment, that may have brought the driver to this error."""
    if not isinstance(error, _OF_FILES):
        return None
    given = _given(query)
    mode = (given["sslmode"] or "prefer").replace("_", "-")
    if mode not in MODES:
        return SettingsError(
            f"sslmode is none of {', '.join(MODES)}.", remedy="Correct it in the database URL, or in PGSSLMODE."
        )
    try:
        _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), _files(mode, given), given)
    except SettingsError as mistake:
        return mistake
    return None


def load_files(context: ssl.SSLContext, query: Mapping[str, str]) -> None:
    """Give a context of reltask's own, which has its authorities, the other files that psql would read.

    Of those in ~/.postgresql that is a client's certificate: the revocations there belong to the authorities there.
    """
    passed_over = {"sslcrl"} if can_look_into_home() else set(_USUAL_NAMES)
    given = {
        name: "" if name in passed_over and path == _usual_path(name) else path for name, path in _given(query).items()
    }
    _load(context, [(name, path) for name, path in _files("verify-full", given) if name != "sslrootcert"], given)


def limit_versions(context: ssl.SSLContext, query: Mapping[str, str]) -> None:
    """Give it the least and the newest TLS that a URL or the environment wants."""
    for name, bound in _VERSIONS.items():
        wanted = query.get(name) or os.environ.get(f"PG{name.replace('_', '').upper()}")
        if not wanted:
            continue
        version = ssl.TLSVersion.__members__.get(wanted.replace(".", "_"))
        if version is None:
            raise SettingsError(f"{name} is no version of TLS.", remedy="Write TLSv1.2 or TLSv1.3.")
        setattr(context, bound, version)


def can_look_into_home() -> bool:
    """Whether ~/.postgresql is there, or is not: systemd's ProtectHome=, or another user's home, says neither."""
    try:
        Path(_usual_path("sslcert")).stat()
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def unusable_file(name: str, path: str, error: OSError) -> SettingsError:
    """The file that an option names, and why it cannot be used."""
    reason = "it does not hold that in PEM format" if isinstance(error, ssl.SSLError) else error.strerror
    remedy = f"Put {_CONTENTS[name]} there, or name another file: {name}=… in the URL, or {_variable(name)}."
    if isinstance(error, PermissionError) and path == _usual_path(name):
        remedy = "Let HOME name a folder that this process may look into."
    return SettingsError(f"the file of {name} cannot be used: {safe_value(path)}: {reason}.", remedy=remedy)


_CONTENTS = {
    "sslrootcert": "the certificates of the server's authorities",
    "sslcrl": "the certificates that were revoked",
    "sslcert": "this client's certificate",
    "sslkey": "the key of the certificate in sslcert",
}
_VERSIONS = {"ssl_min_protocol_version": "minimum_version", "ssl_max_protocol_version": "maximum_version"}
_USUAL_NAMES = {
    "sslrootcert": "root.crt",
    "sslcrl": "root.crl",
    "sslcert": "postgresql.crt",
    "sslkey": "postgresql.key",
}
_OPTIONS = ("sslmode", *_CONTENTS, "sslpassword")


def _given(query: Mapping[str, str]) -> dict[str, str]:
    return {name: query.get(name) or os.environ.get(_variable(name)) or _usual_file(name) for name in _OPTIONS}


def _variable(name: str) -> str:
    return f"PG{name.upper()}"


def _usual_path(name: str) -> str:
    return os.path.expanduser(f"~/.postgresql/{_USUAL_NAMES[name]}")  # noqa: PTH111 - a Path raises where there is no home


def _usual_file(name: str) -> str:
    """The file that the driver reads for an option that nobody gives; "" for none."""
    if name not in _USUAL_NAMES:
        return ""
    try:
        Path(_usual_path(name)).stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except PermissionError:
        pass  # the driver does not pass over this one
    return _usual_path(name)


def _files(mode: str, given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The files that the driver has to read in this mode."""
    names = ["sslrootcert", "sslcrl"] if mode in _READ_TO_VERIFY else []
    if given["sslcert"] and mode != "disable":
        names += ["sslkey", "sslcert"]
    for name in names:
        if given[name]:
            yield name, given[name]
        elif name == "sslrootcert" and mode in _VERIFIED:
            yield name, _usual_path(name)


def _load(context: ssl.SSLContext, files: Iterable[tuple[str, str]], given: Mapping[str, str]) -> None:
    for name, path in files:
        try:
            _load_file(context, name, path, given)
        except OSError as error:
            raise unusable_file(name, path, error) from None


def _load_file(context: ssl.SSLContext, name: str, path: str, given: Mapping[str, str]) -> None:
    """Read a file as the driver does. A key is read with its certificate, here only for being there."""
    if name == "sslkey":
        Path(path).open("rb").close()
    elif name == "sslcert":
        # the password is given even where there is none: OpenSSL would ask for it at the terminal
        context.load_cert_chain(path, given["sslkey"] or None, password=lambda: given["sslpassword"])
    else:
        context.load_verify_locations(cafile=path)
    if name == "sslcrl":
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
