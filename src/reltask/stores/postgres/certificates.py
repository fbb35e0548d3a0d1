"""The files of PostgreSQL's TLS options: which of them the driver reads, and which one made a connection fail.

    sslmode     disable │ allow  prefer │ require  verify-ca  verify-full
    it reads    nothing │ sslcert and sslkey
                        │               │ sslrootcert and sslcrl; to verify there has to be an sslrootcert

If neither the URL nor the environment names a file, it reads the one in ~/.postgresql, if it exists.

The driver reads these files before it connects, and their errors look like network errors: "no such file" is also the
error for a socket whose server has not started yet. So after such an error the files are read again here: a wrong
option is permanent, an outage is not. For an error that no file can cause, this is skipped.
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
"""The errors that the driver raises for an unusable file or option."""


def tls_mistake(query: Mapping[str, str], error: BaseException) -> SettingsError | None:
    """The first TLS option, in the URL or the environment, that may have caused this error of the driver."""
    if not isinstance(error, _OF_FILES):
        return None
    given = _given(query)
    mode = (given["sslmode"] or "prefer").replace("_", "-")
    if mode not in MODES:
        return SettingsError(
            f"sslmode is not one of {', '.join(MODES)}.", remedy="Correct it in the database URL or in PGSSLMODE."
        )
    try:
        _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), _files(mode, given), given)
    except SettingsError as mistake:
        return mistake
    return None


def load_files(context: ssl.SSLContext, query: Mapping[str, str]) -> None:
    """Load the other files that psql would read into a context of reltask's own, which has its CA certificates.

    From ~/.postgresql only the client certificate is read: the revocation list there belongs to the CA file there.
    """
    passed_over = {"sslcrl"} if can_look_into_home() else set(_USUAL_NAMES)
    given = {
        name: "" if name in passed_over and path == _usual_path(name) else path for name, path in _given(query).items()
    }
    _load(context, [(name, path) for name, path in _files("verify-full", given) if name != "sslrootcert"], given)


def limit_versions(context: ssl.SSLContext, query: Mapping[str, str]) -> None:
    """Set the minimum and maximum TLS version that the URL or the environment demands."""
    for name, bound in _VERSIONS.items():
        wanted = query.get(name) or os.environ.get(f"PG{name.replace('_', '').upper()}")
        if not wanted:
            continue
        version = ssl.TLSVersion.__members__.get(wanted.replace(".", "_"))
        if version is None:
            raise SettingsError(f"{name} is not a TLS version.", remedy="Write TLSv1.2 or TLSv1.3.")
        setattr(context, bound, version)


def can_look_into_home() -> bool:
    """Whether this process may see if ~/.postgresql exists; not with systemd's ProtectHome= or another user's home."""
    try:
        Path(_usual_path("sslcert")).stat()
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def has_usual_authorities() -> bool:
    """Whether the driver would find CA certificates in ~/.postgresql."""
    return can_look_into_home() and bool(_usual_file("sslrootcert"))


def unusable_file(name: str, path: str, error: OSError) -> SettingsError:
    """The error for a file that an option names and that cannot be used."""
    reason = (
        f"it does not contain {_CONTENTS[name]} in PEM format" if isinstance(error, ssl.SSLError) else error.strerror
    )
    remedy = f"Put {_CONTENTS[name]} there, or name another file: {name}=… in the URL, or {_variable(name)}."
    if isinstance(error, PermissionError) and path == _usual_path(name):
        remedy = "Set HOME to a directory that this process may read."
    return SettingsError(f"the file of {name} cannot be used: {safe_value(path)}: {reason}.", remedy=remedy)


_CONTENTS = {
    "sslrootcert": "the server's CA certificates",
    "sslcrl": "the revocation list",
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
    """The file that the driver reads by default for an option; "" for none."""
    if name not in _USUAL_NAMES:
        return ""
    try:
        Path(_usual_path(name)).stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except PermissionError:
        pass  # the driver would try to read it
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
    """Read a file as the driver does. A key is read with its certificate; here it is only opened."""
    if name == "sslkey":
        Path(path).open("rb").close()
    elif name == "sslcert":
        # always pass a password, even an empty one: otherwise OpenSSL would ask for it on the terminal
        context.load_cert_chain(path, given["sslkey"] or None, password=lambda: given["sslpassword"])
    else:
        context.load_verify_locations(cafile=path)
    if name == "sslcrl":
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
